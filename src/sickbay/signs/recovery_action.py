"""GPU recovery actions: what the driver asks for, by NVML's number and in all wordings, and the remedy for each.

The table is recovery_actions.csv. The words are those of `nvidia-smi` (the first), of Xid 154, and of NVML's own names.
One that is not there is told to people and acted upon by nobody: docs/decisions/0028-counters-and-hostile-files.md.
"""

from typing import NamedTuple

from sickbay.knowledge.csv_table import TableRow, read_table
from sickbay.model.fault import Remedy

UNSAID = frozenset({"", "n/a", "not supported"})
UNKNOWN = "gpu.recovery_unknown"


class Action(NamedTuple):
    number: int
    words: tuple[str, ...]
    remedy: Remedy
    sign: str  # where a reading of the GPU shows it; empty: nothing is wrong


def _action(row: TableRow) -> Action:
    words = tuple(row.given("words").split("|"))
    return Action(row.whole("number"), words, row.word("remedy", Remedy), row["sign"])


# In the order of their numbers.
ACTIONS = tuple(read_table("recovery_actions.csv", ("number", "words", "remedy", "sign", "source"), _action))
_BY_WORDS = {words.lower(): action for action in ACTIONS for words in action.words}


def action_in(words: str) -> Action | None:
    """The action that these words name, however they are spaced, joined or framed; None: no known one."""
    plain = " ".join(words.lower().replace("_", " ").strip(" []").split())
    return _BY_WORDS.get(plain.removeprefix("nvml ").removeprefix("gpu recovery action "))


def action_of(number: int) -> Action | None:
    return ACTIONS[number] if 0 <= number < len(ACTIONS) else None


def sign_of_wish(words: str) -> str:
    """The kind of sign that a reading shows by these words; empty: the driver wants nothing, or does not say."""
    if words.strip(" []").lower() in UNSAID:
        return ""
    action = action_in(words)
    return UNKNOWN if action is None else action.sign
