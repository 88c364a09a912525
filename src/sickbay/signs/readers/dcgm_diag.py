"""`dcgmi diag`: its table and its JSON, of DCGM 2, 3 and 4, and what it says when it cannot run.

A test that fails names its cause in a message, or does not; then the test itself is the cause. A skipped test is
neither passed nor failed, and one that could not run (MIG, a GPU in use, a setting) says nothing about the hardware.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from sickbay.knowledge.dcgm import COULD_NOT_RUN, NO_VERDICT, UNREACHABLE, known_test, messages
from sickbay.model.sign import Sign
from sickbay.signs.readers import Document, proven
from sickbay.signs.readers.boxes import Entry, TwoColumns, cells, ruler
from sickbay.signs.readers.dcgm_trial import FAIL, PASS, TEXT, WARN, DcgmTest, dicts, trial_in_json, verdict

WIDTH = 45  # characters after which DCGM breaks a message, in the middle of a word if need be
TESTS = 500  # of one text; DCGM has some thirty


_STATUS = re.compile(r"(pass|fail|warn|skip|not run)\w*\b\s*(?:-\s*(.*)|(\(.*))?", re.IGNORECASE | re.ASCII)
_ENTITY = re.compile(r"([A-Za-z][\w ]{0,20}?) ?(\d{1,4}):\s*(pass|fail|warn|skip|not run)", re.IGNORECASE | re.ASCII)
_SECTION = re.compile(r"[|+]-{3,}  (\w[\w /]{0,40}?)  -+", re.ASCII)
_LABEL = re.compile(r"(warning|error|info)s?\b[:\s-]*(?:gpu ?(\d{1,3}))?", re.IGNORECASE | re.ASCII)
# Characters of the left column: a row of such a width with a test's name is DCGM's, though no head came before.
LEFT = 27
SOFTWARE = "Deployment"  # the category of tests that prove nothing about a GPU
_NOT_TESTS = frozenset({"metadata", ""})

# The whole line is DCGM's, or it is not read: people write about connection errors, too.
_AWAY = re.compile(
    r"(?:Error: )?(?:unable to establish a connection to the specified host: \S{1,200}"
    r"|Unable to connect to host engine\. .{0,200}"
    r"|error connecting to nv-hostengine: .{0,200}"
    r"|Error: Cannot (?:get|connect).{0,200}Host engine connection invalid/disconnected\.?"
    r"|Err: Failed to start DCGM Server: -?\d{1,4}"
    r"|Failed to start DCGM Server: -?\d{1,4})",
    re.ASCII,
)
_REFUSED = re.compile(
    r"(?:Error: (?:Unable to complete diagnostic|Diagnostic could not be run|Diagnostic can only be|"
    r"Unable to (?:run|start|launch) (?:the )?diagnostic|DCGM Diagnostic|Health watches not enabled)"
    r"|GPU \d{1,3}'s MIG configuration is incompatible with the diagnostic"
    r"|(?:Error: )?A diag instance is already running|Requested tests were not found)",
    re.ASCII,
)


class DcgmDiag(Document):
    """`results` counts tests by their verdict, `failures` are the signs of those that failed: of all texts so far."""

    ANCHORS: ClassVar[tuple[str, ...]] = (
        "| Diagnostic ", "|-----  ", "+-----  ", "| Warning", "| Error ", "| Fail",
        "establish a connection to the specified host", "connect to host engine", "Host engine connection",
        "Failed to start DCGM", "connecting to nv-hostengine", "Unable to complete diagnostic",
        "Diagnostic could not be run", "Diagnostic can only be", "MIG configuration is incompatible",
        "A diag instance is already running", "Requested tests were not found",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._open = False  # inside a table
        self._doubtful = False  # its head was seen, and the next line decides
        self._skipped = False  # inside a section that has no tests
        self._entries = TwoColumns()
        self._test: DcgmTest | None = None
        self._away = False  # that DCGM does not answer has been told, and nothing else came since
        self.results: dict[str, int] = {}
        self.software_passed = 0  # of these, as far as the text tells them apart
        self.failures: list[Sign] = []

    def read(self, number: int, line: str) -> Iterable[Sign]:
        first = line.lstrip()[:1]
        if first in {"|", "+"}:
            return self._row(number, line)
        found = self.end()
        if first and first in "EFeAuRUG":
            return [*found, *self._sentence(number, line.strip())]
        if first:
            self._away = False
        return found

    def value(self, number: int, value: Any) -> Iterable[Sign]:
        for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic"):
            if isinstance(value, dict) and isinstance(body := value.get(key), dict):
                return list(self._json(number, body))
        return []

    def end(self) -> list[Sign]:
        self._open = self._doubtful = self._skipped = self.owns = False
        return self._over()

    # The table

    def _row(self, number: int, line: str) -> list[Sign]:
        text = line.strip()
        if section := _SECTION.match(text):
            self._open, self._doubtful, self.owns = True, False, True
            self._skipped = section[1].strip().lower() in _NOT_TESTS
            return self._over()
        if ruler(line):
            self._open = self.owns = self._open or self._doubtful
            self._doubtful = False
            return self._over() if self._open and "=" not in text else []
        row = cells(line)
        if row is None or len(row) < 2:
            return self.end()
        left, right = row[0].strip(), "|".join(row[1:])
        if left == "Diagnostic" and right.strip() == "Result":
            found = self.end()
            self._doubtful = self.owns = True
            return found
        self._doubtful = False
        if len(row[0]) == LEFT and known_test(left) and _STATUS.fullmatch(right.strip()):
            self._open = True
        self.owns = self._open
        if not self._open or self._skipped:
            return []
        return self._meaning(self._entries.row(number, left, right))

    def _meaning(self, entry: Entry | None) -> list[Sign]:
        """An entry is a test with its result, or a message about the test above."""
        if entry is None:
            return []
        number, first = entry.right[0]
        chunks = [text for _, text in entry.right]
        if label := _LABEL.fullmatch(entry.left):
            # An error that stands under no failed test: DCGM says it of the whole section.
            alone = label[1].lower() == "error" and (self._test is None or self._test.status != FAIL)
            found = self._begin(DcgmTest(number, "software", FAIL, "")) if alone else []
            if label[1].lower() != "info":
                self._message(chunks, int(label[2]) if label[2] else None)
            return found
        status = _STATUS.fullmatch(first.strip())
        if status is None:
            return []
        test = DcgmTest(number, entry.left, verdict(status[1]), (status[2] or status[3] or "").strip())
        found = self._begin(test)
        for place, chunk in enumerate(chunks[1:], 1):
            text = chunk.strip()
            if entity := _ENTITY.match(text):
                if entity[1].strip().lower() == "gpu":
                    test.result(int(entity[2]), entity[3].lower())
            elif status := _STATUS.fullmatch(text):
                test.more(verdict(status[1]), (status[2] or status[3] or "").strip())
            elif text and test.status in {FAIL, WARN}:
                self._message(chunks[place:], None)
                break
        return found

    def _message(self, chunks: list[str], gpu: int | None) -> None:
        if self._test is not None and self._test.status in {FAIL, WARN}:
            self._test.message(_joined(chunks), gpu)

    def _begin(self, test: DcgmTest) -> list[Sign]:
        before, self._test = self._test, test
        return [] if before is None else self._judged(before)

    def _over(self) -> list[Sign]:
        """The test that was being read is over."""
        found = self._meaning(self._entries.over())
        test, self._test = self._test, None
        return found if test is None else [*found, *self._judged(test)]

    def _judged(self, test: DcgmTest) -> list[Sign]:
        self.results[test.status] = self.results.get(test.status, 0) + 1
        found = list(test.signs())
        if test.status == FAIL and len(self.failures) < TESTS:
            self.failures.extend(sign for sign in found if sign.kind not in NO_VERDICT)
        return found

    # What it says when it cannot

    def _sentence(self, number: int, line: str) -> Iterator[Sign]:
        if len(line) > 1000:
            return
        if _AWAY.fullmatch(line) or (_REFUSED.match(line) and "Host engine connection invalid" in line):
            if not self._away:  # one trouble, told in two lines
                yield Sign(kind=UNREACHABLE, text=line[:TEXT], line=number)
            self._away = self.owns = True
        elif _REFUSED.match(line):
            self.owns = True
            yield from _refusal(number, line)
        else:
            self._away = False

    # JSON

    def _json(self, number: int, body: dict[str, Any]) -> Iterator[Sign]:
        for key in ("runtime_error", "Runtime Error", "error"):
            text = body.get(key)
            if isinstance(text, str) and text.strip():
                yield from _refusal(number, text)
        groups = dicts(body.get("test_categories"))
        tests = [(group.get("category"), test) for group in groups for test in dicts(group.get("tests"))]
        for category, entry in tests[:TESTS]:
            test = trial_in_json(number, entry)
            self.software_passed += category == SOFTWARE and test.status == PASS
            yield from self._judged(test)


def _refusal(number: int, text: str) -> Iterable[Sign]:
    return proven(messages(text) or [Sign(kind=COULD_NOT_RUN)], number, text, TEXT)


def _joined(chunks: Iterable[str]) -> str:
    """A message put together again: a row that is full was broken in the middle of its words."""
    text = ""
    for chunk in chunks:
        piece = chunk.removeprefix(" ")
        full = len(piece[:WIDTH].rstrip()) >= WIDTH - 1
        text += piece[:WIDTH] if full else f"{piece.rstrip()} "
    return " ".join(text.split())
