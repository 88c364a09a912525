"""What is wrong in a text, by name."""

from sickbay.model.fault import Remedy, Scope, Severity
from sickbay.model.noun import Noun


class Symptom(Noun):
    """One sickness, with the first line that proves it and how often it was said."""

    line: int
    text: str
    code: str
    monitor: str  # the class in the EKS monitor's words
    component: str
    severity: Severity
    scope: Scope
    remedy: Remedy
    because: str
    device: str = ""  # which GPU, port, disk …, as the text has it
    where: str = ""  # the same in words, with the link or the part of it
    count: int = 1
    last_line: int = 0
    follows: str = ""  # the code that it is a consequence of
    root: int = -1  # the place of that symptom among its like; -1: it stands for itself
    needs: str = ""  # what a node must be able to do for the remedy
    restart: bool | None = None  # of a job: whether running it again unchanged may come right
