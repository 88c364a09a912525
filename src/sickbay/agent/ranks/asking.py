"""Requests to the ranks of a node: write your stacks, save."""

from pathlib import Path

import msgspec

from sickbay.agent.commands import Refuse
from sickbay.agent.rank_stacks import collect_stacks
from sickbay.agent.ranks.directory import SAVE_ASKED, running
from sickbay.agent.ranks.pids import in_our_numbers
from sickbay.agent.user_files import place
from sickbay.model.fleet import JobId
from sickbay.model.protocol import RunSave


def stacks_of(base: Path, boot_id: str, job: JobId | None, until: float) -> str:
    """What the ranks of a job that live here are doing, in short; empty: there are none."""
    if job is None:
        return ""
    return collect_stacks((in_our_numbers(rank) for rank in running(base, boot_id) if rank.file.job == job), until)


def ask_to_save(base: Path, boot_id: str, order: RunSave) -> None:
    """A file beside each rank's heartbeat: whoever listens looks there. Rank 0's heartbeat tells the answer."""
    asked = [rank for rank in running(base, boot_id) if rank.file.key[:2] == (order.job, order.attempt)]
    if not asked:
        raise Refuse(f"no rank of attempt {order.attempt} of {order.job} runs here")
    for rank in asked:
        place(rank.run / SAVE_ASKED, msgspec.json.encode({"id": order.save}))
