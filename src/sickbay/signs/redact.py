"""Redaction: secrets are cut out of text before a person or a machine beyond this one reads it.

By the name of what is set (`…_KEY=`, `--token …`, `password:`), by where it stands (addresses, headers), and by its
own form (private keys, JWTs, cloud and forge tokens). It rather cuts too much than too little. Every pattern begins at
a fixed word and is bounded, so that no text takes longer than its length.
"""

import re
from collections.abc import Iterable

REMOVED = "(removed)"
SHORTEST = 4  # characters; what is known and shorter would cut everything to pieces

_QUOTED = r"""\\+"[^"\r\n]{0,4000}"?|"(?:\\.|[^"\\\r\n]){0,4000}"?|'[^'\r\n]{0,4000}'?"""
_VALUE = rf"""(?P<value>{_QUOTED}|(?:(?:bearer|basic|token)[ \t]{{1,4}})?[^\s\0"'\\][^\s\0]*)"""
# The end of a name; what stands before it does not matter.
_NAME = (
    r"(?:(?:secret|passw|passphrase|credential)[\w.-]{0,60}|token|pwd|psk|(?<![a-z])pass|api[_-]?key|[_.-]key|access[_-]?key(?:[_-]?id)?"
    r"|(?<![a-z])auth|(?-i:(?<=[a-z])Key)|(?-i:(?<![A-Za-z])KEY))"
)
_FLAG = r"--?[\w-]{0,40}?(?:(?:secret|passw|credential)[\w-]{0,40}|token|pwd|auth|api-?key|-key)"

# What a match keeps before (`kept`) and what is cut: `value`, or all the rest.
PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        # private keys, whole or cut off at either end
        (
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?!-----END)[\s\S]){0,20000}(?:-----END [A-Z0-9 ]{0,40}-----)?"
        ),
        r"(?:^[A-Za-z0-9+/=]{16,80}\r?\n){1,100}(?=-----END [A-Z0-9 ]{0,40}PRIVATE KEY)",
        # headers
        (
            r"(?P<kept>(?<![\w-])(?:proxy-)?authorization[\\\"']{0,4}[ \t]{0,4}[:=][ \t]{0,4})"
            r"(?P<value>\"[^\"\r\n]*\"?|[^\r\n]+)"
        ),
        r"(?P<kept>(?<![\w-])(?:set-)?cookie:[ \t]{0,4})[^\r\n]+",
        # addresses
        (
            r"(?P<kept>://)(?:[^\s\0\"'<>/@:]{0,200}:[^\s\0\"'<>@]{0,500}@(?:[^\s\0\"'<>@]{0,500}@)?"
            r"|[^\s\0\"'<>/@]{1,500}@)(?=\S)"
        ),
        r"(?P<kept>://(?:hooks\.slack\.com/(?:services|workflows)|(?:\w{1,20}\.)?discord(?:app)?\.com/api/webhooks)/)[^\s\0\"']+",
        r"(?P<kept>[?&](?:x-amz-signature|signature|sig)=)[^\s\0&\"']+",
        # names with values
        rf"(?P<kept>{_NAME}[\\\"'\]]{{0,4}}[ \t]{{0,4}}(?:=>|:=|=|:)[ \t]{{0,4}}){_VALUE}",
        rf"(?P<kept>(?<![\w-]){_FLAG}[\s\0]{{1,4}})(?!-){_VALUE}",
        r"(?P<kept>(?<![^\s\0])(?:-u|--user|--proxy-user)[\s\0=]{1,4})[^\s\0:]{1,200}:[^\s\0]+",
        r"(?P<kept>(?<![\w-])bearer[ \t]{1,4})[^\s\0\"']{12,}",
        # what is a secret by its own form
        r"\$(?:[1256y]|2[aby]|argon2id?|scrypt)\$[\w./=,$+-]{8,}",
        r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",
        r"(?<![A-Z0-9])(?-i:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}(?![A-Z0-9])",
        r"(?<![\w-])(?:gh[opsru]_|github_pat_|glpat-|xox[a-z]-|xapp-|hf_|sk-|nvapi-|npm_|dckr_pat_|AIza)[\w-]{8,}",
    )
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without secrets: those that are known, and whatever looks like one."""
    for secret in sorted({one for one in secrets if len(one) >= SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, REMOVED)
    for pattern in PATTERNS:
        text = pattern.sub(_cut, text)
    return text


def _cut(match: re.Match[str]) -> str:
    found = match.groupdict()
    value = found.get("value") or ""
    bare = value.lstrip("\\")
    quote = value[: len(value) - len(bare) + 1] if bare[:1] in {'"', "'"} else ""
    return f"{found.get('kept') or ''}{quote}{REMOVED}{quote}"
