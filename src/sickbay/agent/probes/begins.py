"""Checkpoints of a source: where the next run begins to read, and up to where it only remembers what was told.

What waits for a witness may wait while everything behind it is told. So each source has two places: `told`, behind all
that counts by itself and was told, and `heard`, with nothing before it that waits. The next run reads from `heard`:
what counts by itself is not told again before `told`, and what no witness has told gets the same name as before.
"""

from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from sickbay.agent.places import Places
from sickbay.agent.probes.journal import JournalPlace
from sickbay.agent.probes.kernel_log import LogPlace, heard_name
from sickbay.agent.probes.kmsg import KmsgPlace

AnyPlace = TypeVar("AnyPlace", LogPlace, JournalPlace, KmsgPlace)


class Begin(NamedTuple, Generic[AnyPlace]):
    told: AnyPlace
    heard: AnyPlace


def begin_in_boot(places: Places, name: str, fresh: AnyPlace) -> Begin[AnyPlace]:
    """Of a source that begins anew with each boot."""
    told, heard = places.of(name, type(fresh)), places.of(heard_name(name), type(fresh))
    if told is None or told.boot_id != fresh.boot_id:
        return Begin(fresh, fresh)
    return Begin(told, told if heard is None or heard.boot_id != fresh.boot_id else heard)


def begin_in_file(places: Places, name: str, fresh: LogPlace) -> Begin[LogPlace]:
    """Of a text log, which is one and the same across boots: what is dated before this one means nothing."""
    told = places.of(name, LogPlace) or fresh
    heard = places.of(heard_name(name), LogPlace) or told
    if not heard.inode and told.inode:
        # Before the file was met. It is the one that was met then, if that was not rotated since.
        whole = not heard.offset and not told.older
        heard = replace(told, offset=0, tail=b"", head=b"") if whole else told
    return Begin(told, heard)
