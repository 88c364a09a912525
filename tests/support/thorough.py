"""How much of what can be sampled is tried: a sample by `make test`, all of it by `make test-thorough`."""

import os

THOROUGH = bool(os.environ.get("SICKBAY_THOROUGH"))


def examples(most: int) -> int:
    """Of a property: each run draws others."""
    return most if THOROUGH else most // 4
