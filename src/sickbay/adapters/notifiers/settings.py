"""What all notifiers can be told: a rate limit and a time-out; and what an HTTP answer means."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import fields, replace

from sickbay.model.errors import Rejected, Transient
from sickbay.model.mistakes import SettingsMistake
from sickbay.model.noun import Noun
from sickbay.wire.posting import Posted, busy, wrong_url
from sickbay.wire.secret_files import read_secret, redacted, wrong_secret

SAID = 200  # characters of an answer that are kept
LONGEST = timedelta(minutes=5)


class NotifierSettings(Noun, forbid_unknown_fields=True):
    """Part of every notifier's settings. Fields that end in `_file` are paths; secrets stand only in such files."""

    kind: str
    most: int = 20  # notices within `per`: what is more comes in one digest. 0: no limit
    per: timedelta = timedelta(minutes=10)
    timeout: timedelta = timedelta(seconds=8)  # of one sending; less than pace.call_timeout

    @property
    def closings(self) -> bool:
        """Whether it wants to hear that an incident it was told of is over."""
        return False

    def mistakes(self) -> Iterator[SettingsMistake]:
        if self.most < 0:
            yield SettingsMistake("most", "must be 0 (no limit) or more")
        if self.per <= timedelta(0):
            yield SettingsMistake("per", "must be longer than nothing, such as 10m")
        if not timedelta(0) < self.timeout <= LONGEST:
            yield SettingsMistake("timeout", "must be more than nothing and at most 5m")
        url = getattr(self, "url", "")
        if url and (wrong := wrong_url(url)):
            yield SettingsMistake("url", wrong)
        ca_file = getattr(self, "ca_file", "")
        if ca_file and not Path(ca_file).is_file():
            yield SettingsMistake("ca_file", f"{ca_file}: no such file: give the certificates to trust (PEM)")

    def missing(self) -> Iterator[SettingsMistake]:
        """Secrets that cannot be used now."""
        names = [field.name for field in fields(self) if field.name.endswith("_file") and field.name != "ca_file"]
        for name in names:
            path = getattr(self, name)
            if path and (wrong := wrong_secret(path)):
                yield SettingsMistake(name, f"{path} {wrong}")

    def located(self, beside: Path) -> Any:
        """With every path made absolute: they are written as seen from the file that names them."""
        paths = {field.name: getattr(self, field.name) for field in fields(self) if field.name.endswith("_file")}
        return replace(self, **{name: str((beside / path).absolute()) for name, path in paths.items() if path})


def secret_of(path: str) -> str:
    """The secret as it is now. A file that cannot be read now may be about to be replaced: it is tried again."""
    try:
        return read_secret(path)
    except OSError as error:
        raise Transient(str(error)) from None


def heard(host: str, posted: Posted, *secrets: str) -> str:
    """What the far side answered, if it has taken it. Raises Transient or Rejected."""
    said = redacted(posted.said, *secrets)[:SAID]
    line = redacted(f"{posted.status} {posted.reason}".strip(), *secrets)[:SAID]
    if 200 <= posted.status < 300:
        return line
    text = f"{host} answers {line}{f': {said}' if said else ''}"
    if 300 <= posted.status < 400:
        raise Rejected(f"{host} answers {line}: redirects are not followed: write the address that it leads to")
    if busy(posted.status):
        raise Transient(text, after=posted.retry_after)
    raise Rejected(text)
