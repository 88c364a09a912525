"""`nvidia-smi -q`: the long text, whole, in parts (`-d ECC,ROW_REMAPPER`) or with its indentation lost."""

import re
from collections.abc import Iterable
from typing import ClassVar

from sickbay.model.gpu import GpuReading
from sickbay.model.sign import Sign
from sickbay.signs.smi import Gathered, Sheet, readings_in

LOG = "NVSMI LOG=="
BEFORE = 80
LINE = 20_000  # a browser's command line is a process name, too

_GPU = re.compile(r"\s*GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*", re.ASCII)
_KEY = re.compile(r"(\s*)([A-Za-z][^:]{0,60}?) +:(?: (.*))?", re.ASCII)
_HEADING = re.compile(r"(\s*)([A-Za-z][\w .()/-]{2,60}?)\s*", re.ASCII)
# Parts that people paste alone. The line after must be a value of it.
_PARTS = frozenset(
    {"ecc errors", "remapped rows", "row remapper", "retired pages", "clocks throttle reasons", "clocks event reasons"}
)
# Where indentation was lost: how deep a heading stands. All others are at the top.
_LEVELS = {
    "volatile": 2, "aggregate": 2, "single bit": 3, "double bit": 3, "gpu link info": 2, "pcie generation": 3,
    "link width": 3, "bank remap availability histogram": 2, "health": 2, "bridge chip": 2,
    "aggregate uncorrectable sram sources": 2,
}  # fmt: skip


class SmiQuery(Gathered):
    """Headings by their indentation, where there is any; values under them."""

    # Beginnings, and within the text what brings a reader back who skips lines without any of these.
    ANCHORS: ClassVar[tuple[str, ...]] = (
        LOG, "Attached GPUs ", "GPU 0000", "Product Name  ", "Persistence Mode  ", "GPU UUID  ",
        "GPU Recovery Action  ", "GPU Link Info", "Clocks Throttle Reasons", "Clocks Event Reasons",
        "FB Memory Usage", "Ecc Mode", "ECC Errors", "Retired Pages", "Remapped Rows", "Row Remapper",
        "GPU Current Temp", "Power Readings", "Default Power Limit", "CliqueId", "Replays Since Reset",
        "GPU Reset Status",
    )  # fmt: skip

    def _clear(self) -> None:
        super()._clear()
        self._before = ""
        self._doubtful = False  # begun by the name of a part: no value seen yet
        self._base = 0  # indentation of the line that names the GPU
        self._flat = False
        self._stack: list[tuple[int, str]] = []
        self._parts_above: list[tuple[int, str]] = []  # while in doubt: without indentation none may end another

    def read(self, number: int, line: str) -> Iterable[Sign]:
        text = line.rstrip()
        if self._before and text.startswith(self._before.rstrip()):
            text = text[len(self._before) :]
        self.owns = False
        if not self._open:
            self.owns = self._open = self._begins(number, text)
            return ()
        if self._takes(number, text):
            self.owns = True
            return ()
        said = self.end()
        self.owns = self._open = self._begins(number, text)
        return said

    def _begins(self, number: int, text: str) -> bool:
        if len(text) > LINE:
            return False
        if LOG in text:
            # The name of a host, where the output of many was put together; or the mark of a comment.
            before = text[: text.index("=")]
            if before.lstrip()[:1] in {"#", "/", "*"}:
                return False
            self._before = before if len(before) < BEFORE else ""
            return True
        if (found := _KEY.fullmatch(text)) and found[2] == "Attached GPUs":
            self._top("attached gpus", found[3] or "")
            return True
        if found := _GPU.fullmatch(text):
            self._gpu(number, text, found[1])
            return True
        part = text.strip().lower()
        if part in _PARTS:
            self._doubtful = True
            self._base = len(text) - len(text.lstrip()) - 1
            self._heading(len(text) - len(text.lstrip()), part)
        return part in _PARTS

    def _gpu(self, number: int, text: str, pci: str) -> None:
        self._begin_gpu(number, pci)
        self._base = len(text) - len(text.lstrip())
        self._stack, self._flat, self._doubtful = [], False, False

    def _takes(self, number: int, text: str) -> bool:
        """Part of the text; what it says is kept."""
        if not text:
            return not self._doubtful
        if len(text) > LINE:
            return False
        if found := _GPU.fullmatch(text):
            self._gpu(number, text, found[1])
            return True
        if found := _KEY.fullmatch(text):
            return self._key(number, len(found[1]), found[2].lower(), found[3] or "")
        if not self.sheets and not self._doubtful:
            return False  # above the first GPU there are no headings
        indent = len(text) - len(text.lstrip())
        if self._doubtful and indent <= self._stack[0][0] and text.strip().lower() not in _LEVELS:
            return False
        if (found := _HEADING.fullmatch(text)) and (indent > self._base or self._flat):
            self._heading(indent, found[2].lower())
            return True
        return False

    def _key(self, number_: int, indent: int, key: str, value: str) -> bool:
        if not self.sheets and not self._doubtful:
            self._top(key, value)
            return True
        if not self.sheets:
            self.sheets.append(Sheet(number_))
        if self._doubtful and indent <= self._stack[0][0]:
            self._flat = True
            self._stack = [(_LEVELS.get(name, 1), name) for _, name in self._parts_above]
        self._doubtful = False
        if indent <= self._base and self._stack[:1] and not self._flat:
            return False
        if indent <= self._base:
            self._flat = True
        while not self._flat and self._stack and self._stack[-1][0] >= indent:
            self._stack.pop()
        above = [name for _, name in self._stack]
        path = "/".join([*above, key])
        sheet = self.sheets[-1]
        if path == "processes" or (self._flat and key == "processes"):
            sheet.no_process()
        elif not sheet.put(path, value, number_) and self._flat:
            # Behind a part that is over, where no indentation says so.
            shorter = ("/".join([*above[:depth], key]) for depth in reversed(range(len(above))))
            any(sheet.put(other, value, number_) for other in shorter)
        return True

    def _heading(self, indent: int, name: str) -> None:
        name = "remapped rows" if name == "row remapper" else name
        level = _LEVELS.get(name, 1) if self._flat else indent
        if self._doubtful and len(self._parts_above) < 8:
            self._parts_above.append((level, name))
        while self._stack and self._stack[-1][0] >= level:
            self._stack.pop()
        if len(self._stack) < 8:
            self._stack.append((level, name))


def readings_from_query(text: str) -> list[GpuReading]:
    return readings_in(text, SmiQuery())
