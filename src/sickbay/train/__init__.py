"""What a training script may import: checkpoints and a heartbeat. It needs nothing but the standard library.

from sickbay import train

with train.Checkpoints() as checkpoints:
    state = checkpoints.load() or {"step": 0, "weights": …}
    for step in range(state["step"] + 1, 1001):
        …
        train.heartbeat(step, loss)
        if step % 100 == 0:
            checkpoints.save(step, {**state, "step": step})
"""

import os as _os

from sickbay.train import stacks as _stacks
from sickbay.train.asked import should_end, should_save
from sickbay.train.beats import heartbeat
from sickbay.train.checkpoints import Checkpoints
from sickbay.train.errors import AlreadyBegun, CheckpointError, NoSuchStep, NotOurs, Superseded, Unreadable
from sickbay.train.layout import Skipped
from sickbay.train.validity import Checkpoint, latest_valid

__all__ = [
    "AlreadyBegun",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "NoSuchStep",
    "NotOurs",
    "Skipped",
    "Superseded",
    "Unreadable",
    "heartbeat",
    "latest_valid",
    "should_end",
    "should_save",
]

# At import, not at the first step: a rank may hang before it.
_stacks.answer(_os.environ.get("SICKBAY_HEARTBEAT", ""))
