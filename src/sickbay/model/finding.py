"""Diagnostics of a set-up (`sickbay doctor`): what is there, what is doubtful, what is missing, and the way out."""

from enum import StrEnum

from sickbay.model.noun import Noun


class FindingLevel(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, and something follows that one should know
    MISSING = "missing"  # something would fail


class Finding(Noun):
    """One line for people. `subject`: the part that it is about, such as `store` or `cluster train`."""

    level: FindingLevel
    subject: str
    text: str
    way_out: str = ""  # what to write or do


def ok(subject: str, text: str) -> Finding:
    return Finding(level=FindingLevel.OK, subject=subject, text=text)


def warning(subject: str, text: str, way_out: str = "") -> Finding:
    return Finding(level=FindingLevel.WARNING, subject=subject, text=text, way_out=way_out)


def missing(subject: str, text: str, way_out: str = "") -> Finding:
    return Finding(level=FindingLevel.MISSING, subject=subject, text=text, way_out=way_out)
