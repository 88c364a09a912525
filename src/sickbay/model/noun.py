"""What every noun is: a frozen, typed value with a wire form."""

import msgspec


class Noun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A frozen value. Its JSON leaves defaults out, so that new fields do not make old rows unreadable."""
