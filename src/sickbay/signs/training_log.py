"""Root cause of a failed attempt by the end of its log, with the reader and the table that `sickbay diagnose` has, too.

A log is judged where it enters, so that decisions read values: what follows from it is decided in `brain.blame`.
"""

from sickbay.model.tables import CONSEQUENCE, RAISED, Diagnosis, DiagnosisRule
from sickbay.signs.readers.prose import talks
from sickbay.signs.readers.training import EXCEPTION, LINE_LIMIT, TrainingReader, message_of
from sickbay.signs.readers.unwrap import Unwrapper

ENOUGH = 2  # the second counts where the first turns out to be an error that was caught
EVIDENCE = 400  # characters of a line


def judge(tail: str, rules: tuple[DiagnosisRule, ...]) -> tuple[Diagnosis, ...]:
    """What the log says, the nearest to the root cause first; (): nothing.

    Lowest rank first: one rank's ImportError (1) makes the others time out in NCCL (4) and torchrun kill them (5), and
    those lines often come first and always outnumber it. Within a rank the earliest line: what comes later mostly
    follows from it.
    """
    reader, unwrapper = TrainingReader(rules), Unwrapper()
    first: dict[str, str] = {}
    printed = ""  # an error without a traceback: in a paste it may be documentation, but this is a program's output
    for number, line in enumerate(tail.splitlines(), 1):
        for bare in unwrapper.lines(line):
            for sign in reader.read(number, bare.text):
                # With its rank before it, but without the record that a container made of it.
                evidence = sign.text if line.startswith("{") else line.strip()
                first.setdefault(str(sign.fields["name"]), evidence)
            printed = printed or _error_in(bare.text[:LINE_LIMIT])
    if printed and not first:
        first[RAISED] = printed
    named = {rule.name: rule for rule in rules}
    found = [_diagnosis(named.get(name), line[:EVIDENCE]) for name, line in first.items()]
    return tuple(sorted(found, key=lambda diagnosis: diagnosis.rank)[:ENOUGH])  # stable: of one rank the earliest


def _diagnosis(rule: DiagnosisRule | None, line: str) -> Diagnosis:
    if rule is None:  # nobody knows whether it would be raised again
        because = "the program raised an error"
        return Diagnosis(name=RAISED, rank=CONSEQUENCE - 1, line=line, because=because, restart=True)
    return Diagnosis(name=rule.name, rank=rule.rank, line=line, because=rule.because, restart=rule.restart)


def _error_in(line: str) -> str:
    said = message_of(line)
    return said if EXCEPTION.match(said) and not talks(said, 0, len(said)) else ""
