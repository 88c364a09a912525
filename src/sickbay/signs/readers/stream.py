"""Whatever people paste → signs of sickness, in one pass and in bounded memory.

A paste is a mixture, so nothing asks what kind of file it is. Every line goes to all documents, each of which knows
where its
own text begins and ends; a line that none of them owns goes to the kernel's reader, and what that does not know to
the rules
for training logs. A long stream is searched for anchors first: lines without any cost next to nothing.
"""

import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from sickbay.knowledge.load import load_tables
from sickbay.model.sign import Sign
from sickbay.model.tables import DiagnosisRule
from sickbay.signs.kernel import ANCHORS as KERNEL_ANCHORS
from sickbay.signs.kernel import KernelReader
from sickbay.signs.readers import Document
from sickbay.signs.readers.input import LONGEST, SOFT
from sickbay.signs.readers.json_text import JsonText, Line
from sickbay.signs.readers.kube_events import SLURM_ANCHORS
from sickbay.signs.readers.sieve import Sieve, Worth
from sickbay.signs.readers.training import TrainingReader
from sickbay.signs.readers.unwrap import Unwrapper

# Where each document's reader is, and what people call such a text.
READERS = (
    ("smi_table", "SmiTable", "nvidia-smi"),
    ("smi_query", "SmiQuery", "nvidia-smi -q"),
    ("smi_xml", "SmiXml", "nvidia-smi -q -x"),
    ("rocm_smi", "RocmSmi", "rocm-smi"),
    ("neuron_tools", "NeuronTools", "Neuron tools"),
    ("dcgm_diag", "DcgmDiag", "dcgmi diag"),
    ("dcgm_health", "DcgmHealth", "dcgmi health"),
    ("exporter", "Exporter", "metrics page"),
    ("fabric_manager", "FabricManager", "fabric manager log"),
    ("link_tools", "LinkTools", "link status"),
    ("cluster_lists", "ClusterLists", "Kubernetes or Slurm"),
    ("kube_events", "KubeEvents", "Kubernetes or Slurm"),
)
KERNEL, JOB = "kernel log", "training log"

SMALL = 64 * 1024  # so much is read line by line in any case
AFTER = 8  # lines behind an anchor that are read whatever they say: messages are wrapped, and causes stand together
# A new boot in the middle of a log: what came before it explains nothing behind it.
BOOTS = ("linux version ", "-- boot ", "-- reboot --")
BOOT = "boot"
PLACES = ('file "',)  # of a traceback: what was raised there stands behind them
ALONE = frozenset({"fabric manager log"})  # each of its lines means what it means without those around it
# Records whose text is hidden until they are opened: a table's head, a message as an array of bytes.
RECORDS = ("@message", '"message":[', '"message": [', '"message" : [')


def documents() -> list[tuple[str, Document]]:
    return [
        (called, getattr(importlib.import_module(f"sickbay.signs.readers.{module}"), name)())
        for module, name, called in READERS
    ]


class TextStream:
    """One text, read from its beginning to its end. After `read` its `lines` and `formats` say what it was."""

    def __init__(self, rules: Sequence[DiagnosisRule] | None = None) -> None:
        self.lines = 0
        self.formats: dict[str, int] = {}
        self._documents = documents()
        self._training = TrainingReader(load_tables().diagnosis if rules is None else rules)
        self._kernel = KernelReader()
        self._unwrapper = Unwrapper()
        self._json = JsonText()
        self._awake = 0  # lines still to be read whatever they say
        self._made: Sieve | None = None

    # --- in

    def read(self, chunks: Iterable[bytes], *, small: int = SMALL) -> Iterator[Sign]:
        """Chunks of whole lines, as `whole_lines` gives them."""
        seen = 0
        for chunk in chunks:
            seen += len(chunk)
            yield from self._all(chunk) if seen <= small else self._some(chunk)
        yield from self._end()

    def read_lines(self, lines: Iterable[str]) -> Iterator[Sign]:
        for line in lines:
            self.lines += 1
            yield from self._line(self.lines, line[:LONGEST])
        yield from self._end()

    def _all(self, chunk: bytes) -> Iterator[Sign]:
        for raw in chunk.split(b"\n")[:-1]:
            yield from self._raw(raw)

    def _some(self, chunk: bytes) -> Iterator[Sign]:
        found = self._sieve.sift(chunk)
        at, place, size = 0, 0, len(chunk)
        while at < size:
            while place < len(found) and found[place][0] < at:
                place += 1
            following, worth = found[place] if place < len(found) else (size, Worth.READ)
            if following > at and not self._going_on:
                self._skip(chunk, at, following)
                at = following
                continue
            end = chunk.find(b"\n", at)
            raw = chunk[at:end]
            if following == at and worth is Worth.WITH_NEXT:
                self._awake = AFTER
            elif following == at and worth is Worth.PERHAPS and not self._going_on and not self._doubtful(raw):
                self._skip(chunk, at, end + 1)
                at = end + 1
                continue
            self._awake -= 1
            yield from self._raw(raw)
            at = end + 1

    @property
    def _sieve(self) -> Sieve:
        if self._made is None:
            words = {word for called, document in self._documents if called not in ALONE for word in document.ANCHORS}
            alone = {word for called, document in self._documents if called in ALONE for word in document.ANCHORS}
            self._made = Sieve(
                {*words, *RECORDS, *PLACES}, self._training.anchors, {*alone, *SLURM_ANCHORS, *KERNEL_ANCHORS, *BOOTS}
            )
        return self._made

    @property
    def _going_on(self) -> bool:
        return self._awake > 0 or self._json.open or self._unwrapper.inside or not self._kernel.idle

    def _doubtful(self, raw: bytes) -> bool:
        """Words of a rule are there; whether the rule fits is soon seen."""
        line = raw[:LONGEST].decode("utf-8", "replace")
        if any(self._training.fits(bare.text) for bare in self._unwrapper.lines(line)):
            return True
        if not self._training.tells_digits(line):
            self._sieve.forget(raw)
        return False

    def _skip(self, chunk: bytes, at: int, following: int) -> None:
        self.lines += chunk.count(b"\n", at, following) - chunk.count(SOFT, at, following)

    def _raw(self, raw: bytes) -> Iterator[Sign]:
        """A line that a bare carriage return ended has the number of the line that it is part of."""
        soft = raw.endswith(SOFT[:1])
        line = raw[:LONGEST].decode("utf-8", "replace")
        yield from self._line(self.lines + 1, line.rstrip("\x0b"))
        if not soft:
            self.lines += 1

    # --- line by line

    def _line(self, number: int, line: str) -> Iterator[Sign]:
        for bare in self._unwrapper.lines(line):
            for sign in self._bare((number, bare.whole, bare.text)):
                # The evidence is the line as it stands in the text, where the readers' part of it is recognisable
                # there.
                if bare.text is not line and sign.line == number and sign.text and sign.text in line:
                    yield replace(sign, text=line.strip())
                else:
                    yield sign

    def _bare(self, line: Line) -> Iterator[Sign]:
        if self._owned:  # a text that is open may have JSON of its own in it
            yield from self._plain(line)
            return
        whole, lines = self._json.take(line)
        if whole is not None:
            known, signs = self._value(whole.number, whole.value)
            yield from signs
            if known:
                return
        for each in lines:
            yield from self._plain(each)

    @property
    def _owned(self) -> bool:
        return any(document.owns for _, document in self._documents)

    def _value(self, number: int, value: Any) -> tuple[bool, list[Sign]]:
        known, signs = False, []
        for called, document in self._documents:
            said = list(document.value(number, value))
            if said or document.owns:
                known = True
                self._note(called)
            signs += said
        return known, signs

    def _plain(self, line: Line) -> Iterator[Sign]:
        number, whole, text = line
        owned = False
        for called, document in self._documents:
            signs = list(document.read(number, text))
            if signs or document.owns:
                owned = True
                self._note(called)
                self._awake = max(self._awake, AFTER if document.owns and called not in ALONE else 1)
            yield from signs
        if owned:
            return
        if "ernel" in whole or "oot" in whole or "inux" in whole:
            low = whole.lower()
            if any(word in low for word in BOOTS):
                yield Sign(kind=BOOT, line=number)
        known = False
        for sign in self._kernel.read(number, whole):
            known = known or sign.line == number  # a wrapped line before this one may have waited for it
            self._note(KERNEL)
            yield sign
        if not known:
            for sign in self._training.read(number, text):
                self._note(JOB)
                yield sign

    def _end(self) -> Iterator[Sign]:
        for line in self._json.give_back():
            yield from self._plain(line)
        for called, document in self._documents:
            for sign in document.end():
                self._note(called)
                yield sign
        for sign in self._kernel.end():
            self._note(KERNEL)
            yield sign

    def _note(self, called: str) -> None:
        self.formats[called] = self.formats.get(called, 0) + 1


def read_stream(lines: Iterable[str]) -> Iterator[Sign]:
    """All signs in these lines, none of them skipped."""
    return TextStream().read_lines(lines)
