"""Everything that can be raised across a layer.

SickbayError
├── EffectError            what an adapter may raise from a call that changes the world
│   ├── Transient          did not take effect; try again in a later round
│   ├── Rejected           refused; trying again unchanged is pointless
│   │   ├── Gone           the target is not there any more
│   │   └── Impossible     it cannot come right by another try, whenever and wherever: what is asked for is wrong
│   └── Unknown            may or may not have taken effect
├── StoreError
│   ├── Conflict           a row changed since it was read: plan again from a fresh view
│   ├── Fenced             another leads now: this engine must stop planning
│   ├── StoreUnavailable   nothing was written; try again
│   ├── StoreUnknown       the commit may or may not have happened: read before anything else
│   ├── UnitRefused        about one unit or row, not about the store: its subject is set aside, all else goes on
│   │   ├── UnitTooLarge   a unit breaks the limits that every store keeps
│   │   ├── Unstorable     a value could not be read back (NaN): refused before anything is written
│   │   └── UnreadableRow  a row that is there cannot be decoded
│   └── UnusableStore      corrupt, of a newer version, locked by another process, disk full: one line for a human
│       └── OlderStore     empty or of an older version, for whoever only reads
├── IllegalMove            a life took a step that TRANSITIONS does not have
└── BadInput               what a person wrote cannot be used: one line that says what to write instead
    ├── NoSuchFile         a file or a shipped name is not there: wrong is the place that names it
    └── NoSuchSubject      nothing has the name that was asked for
"""


class SickbayError(Exception):
    """Root of all errors of this project."""


class EffectError(SickbayError):
    """Raised by an adapter's call that changes the world."""


class Transient(EffectError):  # noqa: N818 - the design's word
    """Did not take effect. `after`: seconds that the far side asks to be left alone for."""

    def __init__(self, text: str = "", *, after: float = 0.0) -> None:
        super().__init__(text)
        self.after = after


class Rejected(EffectError):  # noqa: N818 - the design's word
    """Refused by the far side."""


class Gone(Rejected):
    """The target is not there any more."""


class Impossible(Rejected):
    """What is asked for is wrong: another try would be refused for the same reason."""


class Unknown(EffectError):  # noqa: N818 - the design's word
    """May or may not have taken effect."""


class StoreError(SickbayError):
    """Raised by a store."""


class Conflict(StoreError):  # noqa: N818 - the design's word
    """A row that the unit expected has another version."""


class Fenced(StoreError):  # noqa: N818 - the design's word
    """The epoch of the commit is not the present one."""


class StoreUnavailable(StoreError):  # noqa: N818 - a state, not a mistake
    """Nothing was written."""


class StoreUnknown(StoreError):  # noqa: N818 - a state, not a mistake
    """The commit may or may not have happened."""


class UnitRefused(StoreError):  # noqa: N818 - a state, not a mistake
    """Concerns one unit or row. The store itself is well, and whatever does not need that row goes on."""


class UnitTooLarge(UnitRefused):
    """The unit breaks the limits that every store keeps."""


class Unstorable(UnitRefused):
    """A value of a row or fact would not come back from its wire form. Nothing was written."""


class UnreadableRow(UnitRefused):
    """A row is in the store and cannot be decoded; the message names it."""


class UnusableStore(StoreError):  # noqa: N818 - a state, not a mistake
    """The store cannot be used until a person does something; the message says what."""


class OlderStore(UnusableStore):
    """Who only reads cannot: it is empty, or of an older version that this one's controller brings up to date."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is empty or of an older Sickbay: start this one's controller on it once")
        self.name = name


class IllegalMove(SickbayError):  # noqa: N818 - the design's word
    """TRANSITIONS has no such step."""


class BadInput(SickbayError):  # noqa: N818 - the design's word
    """One line that says what to write instead."""


class NoSuchFile(BadInput):
    """A file or a shipped name that is not there or cannot be read: whoever names it is to correct that."""


class NoSuchSubject(BadInput):
    """Nothing has the name that was asked for."""
