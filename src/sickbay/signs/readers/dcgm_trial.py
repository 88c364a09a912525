"""One test of `dcgmi diag` and what its result means, whether it came as rows of a table or as JSON."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from sickbay.knowledge.dcgm import NO_VERDICT, NOTHING, code_of_test, messages
from sickbay.model.sign import Fields, Sign

TEXT = 500
SETTINGS = frozenset({"dcgm.config", "gpu.persistence_off"})  # a warning of these is no news about a node's health
PASS, FAIL, WARN, SKIP = "pass", "fail", "warn", "skip"

_GPUS = re.compile(r"\d{1,3}", re.ASCII)
_LISTED = re.compile(r"gpus?:?\s{0,3}(\d[\d, ]{0,200})", re.IGNORECASE | re.ASCII)


class DcgmTest:
    """One test while its rows come in."""

    def __init__(self, number: int, name: str, status: str, rest: str) -> None:
        self.number = number
        self.name = name
        self.status = status
        self.failed = set[int]()
        self.warned = set[int]()
        self._results(status, rest)
        self.told: list[Sign] = []
        self.unknown: list[tuple[int | None, str]] = []  # messages that no table knows
        self.text = f"{name}: {status.capitalize()}{f' - {rest}' if rest else ''}"

    def more(self, status: str, rest: str) -> None:
        """The same test on other GPUs had another result."""
        if status in {FAIL, WARN} and self.status != FAIL:
            self.status = status
        self._results(status, rest)
        self.text = f"{self.text}; {status.capitalize()} - {rest}"

    def _results(self, status: str, rest: str) -> None:
        if status in {FAIL, WARN} and (listed := _LISTED.search(rest)):
            for gpu in _GPUS.findall(listed[1]):
                self.result(int(gpu), status)

    def result(self, gpu: int, status: str) -> None:
        if status == FAIL:
            self.failed.add(gpu)
        elif status == WARN:
            self.warned.add(gpu)
        if status in {FAIL, WARN} and self.status not in {FAIL, WARN}:
            self.status = status

    def message(self, text: str, gpu: int | None, number: int | None = None, category: int | None = None) -> None:
        found = messages(text, number, category)
        for told in found:
            where: Fields = {} if gpu is None else {"device": gpu}
            self.told.append(replace(told, fields={**where, **told.fields}))
        if not found:
            self.unknown.append((gpu, text))
        if len(self.text) < TEXT:
            self.text = f"{self.text}; {text}"

    def signs(self) -> Iterator[Sign]:
        if self.status not in {FAIL, WARN}:
            return
        seen = dict[tuple[str, object, object], Sign]()
        for told in self.told:
            if self.status == WARN and told.kind in SETTINGS:
                continue
            fields = dict(told.fields)
            if "device" not in fields and len(self.failed) == 1 and told.kind not in NO_VERDICT:
                fields["device"] = next(iter(self.failed))
            key = (told.kind, fields.get("device"), fields.get("number"))
            before = seen.get(key)
            count = 1 if before is None else before.count + 1
            fields = fields if before is None else before.fields
            seen[key] = Sign(kind=told.kind, fields=fields, text=self.text[:TEXT], line=self.number, count=count)
        yield from seen.values()
        yield from self._unexplained({device for _, device, _ in seen if device is not None}, explained=bool(seen))

    def _unexplained(self, named: set[object], *, explained: bool) -> Iterator[Sign]:
        code = code_of_test(self.name) if self.status == FAIL else "dcgm.diag_warning"
        if code == NOTHING or (self.status == WARN and not self.unknown):
            return
        gpus = sorted((self.failed if self.status == FAIL else self.warned) - named)
        if not gpus and not explained:
            yield Sign(kind=code, text=self.text[:TEXT], line=self.number)
        elif gpus and (named or not explained):
            for gpu in gpus:
                yield Sign(kind=code, fields={"device": gpu}, text=self.text[:TEXT], line=self.number)


def trial_in_json(number: int, entry: dict[str, Any]) -> DcgmTest:
    results = dicts(entry.get("results"))
    summary = entry.get("test_summary")
    whole = verdict(str(summary.get("status", ""))) if isinstance(summary, dict) else ""
    each = [verdict(str(result.get("status", ""))) for result in results]
    worst = next((status for status in (FAIL, WARN, PASS, SKIP) if status in {*each, whole}), SKIP)
    test = DcgmTest(number, str(entry.get("name", "test"))[:60], worst, "")
    for result, status in zip(results, each, strict=True):
        gpus = _json_gpus(result)
        if len(gpus) == 1:
            test.result(gpus[0], status)
        if status in {FAIL, WARN}:
            _json_messages(test, result, gpus[0] if len(gpus) == 1 else None)
    if worst in {FAIL, WARN} and isinstance(summary, dict) and not test.told:
        _json_messages(test, summary, None)
    return test


def _json_messages(test: DcgmTest, result: dict[str, Any], gpu: int | None) -> None:
    warnings = result.get("warnings")
    # DCGM 2 writes sentences, one or a list of them; later ones write objects.
    for warning in (warnings if isinstance(warnings, list) else [warnings])[:64]:
        if isinstance(warning, str) and warning.strip():
            test.message(warning, gpu)
        elif isinstance(warning, dict):
            text = str(warning.get("warning", "") or warning.get("message", ""))
            test.message(text, gpu, _whole(warning.get("error_id")), _whole(warning.get("error_category")))


def _json_gpus(result: dict[str, Any]) -> list[int]:
    if str(result.get("entity_group", "GPU")).upper() not in {"GPU", "1"}:
        return []
    for key in ("entity_id", "gpu_id", "gpu_ids"):
        if key in result:
            return [int(gpu) for gpu in _GPUS.findall(str(result[key])[:200])]
    return []


def dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _whole(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def verdict(word: str) -> str:
    text = word.strip().lower()
    return next((status for status in (PASS, FAIL, WARN, SKIP) if text.startswith(status)), SKIP)
