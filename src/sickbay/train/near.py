"""Near tier: checkpoints on the nodes' own disks, staged there before they are uploaded, and read from there first.

Below a near root lies what lies below the checkpoint directory, but no manifest: a checkpoint is whole there when the
sealed parts of all its ranks are on nodes that take part. Each rank tells what its node holds when an attempt begins;
rank 0 says what of it is whole, and who serves which file. Only what is in the directory, or in its object store, is
durable: whatever is near may be gone with its node.
"""

import logging
import os
from collections.abc import Collection, Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, NamedTuple

from sickbay.train import disk
from sickbay.train.errors import CheckpointError, Unreadable
from sickbay.train.latest_only import LatestOnly
from sickbay.train.layout import (
    CheckpointName,
    Lineage,
    Manifest,
    RankPart,
    attempt_path,
    attempts,
    create_part,
    holds_path,
    manifest_as_json,
    manifest_from,
    near_path,
    part_as_json,
    part_from,
    part_path,
    read_lineage,
    read_part,
    secret_path,
    step_path,
    steps,
)
from sickbay.train.near_disk import drop, held_in, root_of
from sickbay.train.peers import Peer, Server
from sickbay.train.run import Run

log = logging.getLogger("sickbay.train")
KEPT = 2  # steps that stay on a node: its ranks may be one save apart when they are killed


class NearAddress(NamedTuple):
    """Where a rank runs: which machine that is, and where it serves what is there. Empty: it serves nothing."""

    node: str
    address: str


class Near:
    """What one rank knows of the nodes' own disks."""

    def __init__(self, where: Path, run: Run, attempt: int, secret: str) -> None:
        self.directory, self.attempt, self.rank, self.world_size = run.directory, attempt, run.rank, run.world_size
        self.root = root_of(where, run.directory)
        self.whole: dict[CheckpointName, Manifest] = {}
        self.lacking: dict[CheckpointName, str] = {}  # why the others are not; rank 0 knows
        self._holders: dict[CheckpointName, dict[str, list[str]]] = {}
        self._seats: list[NearAddress] = []
        disk.make(attempt_path(self.root, attempt))
        for step in steps(self.root, attempt):  # of another run that had this number: no rank of ours has saved yet
            rmtree(step_path(self.root, CheckpointName(attempt, step)), ignore_errors=True)
        self._secret = secret
        self.copying: LatestOnly[tuple[CheckpointName, RankPart]] = LatestOnly("sickbay-copies", self._copy_out)
        self._copies = run.tiers.copies
        self._server = self._serve(secret) if secret else None

    def _serve(self, secret: str) -> Server | None:
        """Ranks may be on other nodes than those that saved what they go on from, also where no copies are sent."""
        try:
            return Server(self.root, secret)
        except OSError as why:
            if self._copies:
                raise
            log.warning("no other node can read what is near here: %s", why)
            return None

    # --- when an attempt begins

    def tell(self) -> None:
        """Every rank: what this node holds."""
        path = holds_path(self.directory, self.attempt, self.rank)
        disk.make(path.parent)
        address = self._server.address if self._server else ""
        holds = [
            {"attempt": one.place.attempt, "step": one.place.step, "rank": one.rank, "part": part_as_json(one.part)}
            for one in held_in(self.root, self.attempt)
        ]
        disk.create(path, {"node": _node(), "address": address, "holds": holds})

    def told_by(self, rank: int) -> dict[str, Any] | None:
        return disk.read(holds_path(self.directory, self.attempt, rank))

    def decide(self, told: list[dict[str, Any]]) -> None:
        """Rank 0: what is whole on the nodes that take part."""
        self._seats = [NearAddress(one["node"], one["address"]) for one in told]
        lineages: dict[int, Lineage | None] = {}
        found: dict[CheckpointName, dict[int, tuple[RankPart, list[str]]]] = {}
        for seat, one in zip(self._seats, told, strict=True):
            for hold in one["holds"]:
                place, part = CheckpointName(hold["attempt"], hold["step"]), part_from(hold["part"])
                if place.attempt not in lineages:
                    lineages[place.attempt] = self._lineage_of(place.attempt)
                lineage = lineages[place.attempt]
                if lineage is None or part.run != lineage.run or part.form is None:
                    continue  # of another training that happens to have the same numbers
                known, holders = found.setdefault(place, {}).setdefault(hold["rank"], (part, []))
                if part == known:
                    holders.append(f"{seat.node} {seat.address}")
        for place, parts in found.items():
            lineage = lineages[place.attempt]
            if lineage is not None and not self._lacks(place, lineage, parts):
                self.whole[place] = _manifest(place, lineage, {rank: part for rank, (part, _) in parts.items()})
                self._holders[place] = {
                    name: sorted(set(holders)) for part, holders in parts.values() for name in part.files
                }
        places = [
            {"manifest": manifest_as_json(one), "holders": self._holders[place]} for place, one in self.whole.items()
        ]
        path = near_path(self.directory, self.attempt)
        disk.create(path, {"places": places, "seats": [list(seat) for seat in self._seats]})

    def _lineage_of(self, attempt: int) -> Lineage | None:
        try:
            return read_lineage(self.directory, attempt)
        except disk.Damaged:
            return None  # where it matters, on the way of the lineage, the survey refuses

    def _lacks(self, place: CheckpointName, lineage: Lineage, parts: Container[int]) -> bool:
        """Whether a rank's part of it is on no node that takes part."""
        missing = [rank for rank in range(lineage.world_size) if rank not in parts]
        if missing:
            more = f" (and {len(missing) - 1} more ranks)" if missing[1:] else ""
            self.lacking[place] = f"what rank {missing[0]}{more} saved of it is on none of the nodes that take part"
        return bool(missing)

    def learn(self) -> bool:
        """Every other rank: what rank 0 has decided. False: it has not yet."""
        if self._seats:
            return True
        content = disk.read(near_path(self.directory, self.attempt))
        if content is None:
            return False
        self._seats = [NearAddress(*one) for one in content["seats"]]
        for one in content["places"]:
            manifest = manifest_from(one["manifest"])
            self.whole[manifest.place] = manifest
            self._holders[manifest.place] = one["holders"]
        return True

    def copies(self, manifest: Manifest, name: str) -> list[disk.File]:
        """Of a file that the manifest names: the one on this node first, then those on others."""
        known = self.whole.get(manifest.place)
        if known is None or known.files.get(name) != manifest.files[name]:
            return []
        here = step_path(self.root, manifest.place) / name
        found: list[disk.File] = []
        with suppress(OSError):  # a disk that fails holds nothing: there are other copies
            found += [here] if disk.exists(here) else []
        own = self._server.address if self._server else ""
        for holder in self._holders[manifest.place].get(name, ()):
            address = holder.rpartition(" ")[2]
            if address and address != own and self._secret:
                found.append(_at(Peer(address, self._secret), manifest.place, name))
        return found

    @property
    def found(self) -> dict[CheckpointName, Manifest | str]:
        """All of which there is something; with what is not whole goes why."""
        return {**self.lacking, **self.whole}

    # --- while it saves

    def directory_of(self, place: CheckpointName) -> Path:
        """Made, and what leads to it. The root was there when this attempt began: a disk that is gone is not made."""
        disk.make_in(step_path(self.root, place))
        return step_path(self.root, place)

    def put(self, place: CheckpointName, part: RankPart) -> None:
        """This rank's part is on this node, whole."""
        if not create_part(self.root, place, self.rank, part):
            raise CheckpointError(f"another process saves as rank {self.rank} of {place} below {self.root}")

    def part_of(self, place: CheckpointName) -> RankPart | None:
        return read_part(self.root, place, self.rank)

    def _copy_out(self, saved: tuple[CheckpointName, RankPart]) -> str | None:
        """A second copy on another node; why not, in words. No save waits for it, or fails for the lack of it."""
        place, part = saved
        buddy = self._buddy_of(self.rank)
        if buddy is None or not self._secret or not self._seats[buddy].address or not self._copies or part.form is None:
            return None  # or it is not of our form: what it is read with needs it in one directory
        peer, path = Peer(self._seats[buddy].address, self._secret), part_path(self.root, place, self.rank)
        try:
            for name, expected in part.files.items():
                peer.put(place, name, step_path(self.root, place) / name, expected)
            peer.put(place, path.name, path, disk.measure(path))
        except OSError as error:
            return f"{place} has no copy at rank {buddy}: {error}"
        return None

    def _buddy_of(self, rank: int) -> int | None:
        """On the next node, and of the same place on it, so that its ranks share the work; None: there is one node."""
        nodes = list(dict.fromkeys(seat.node for seat in self._seats))
        if len(nodes) < 2:
            return None
        own = self._seats[rank].node
        there = nodes[(nodes.index(own) + 1) % len(nodes)]
        mine = [number for number, seat in enumerate(self._seats) if seat.node == own]
        theirs = [number for number, seat in enumerate(self._seats) if seat.node == there]
        return theirs[mine.index(rank) % len(theirs)]

    def surplus(self, uploading: Collection[CheckpointName]) -> list[CheckpointName]:
        """Of this attempt the newest steps stay that no rank lacks, and those that are being uploaded.

        What is older goes whatever it is: copies that came late, and steps of which we have saved nothing ourselves.
        """
        known = [CheckpointName(self.attempt, step) for step in steps(self.root, self.attempt)]
        own = [place for place in known if disk.exists(part_path(self.root, place, self.rank))]
        newest = [place for place in own if not any(step_path(self.directory, place).glob("rank-*.absent"))][-KEPT:]
        spared = {*newest, *own[-1:], *known[-KEPT:], *uploading}
        return [place for place in known if place not in spared]

    def drop(self, places: Iterable[CheckpointName]) -> None:
        """This rank's part of them, and those that are copied to it."""
        mine = {self.rank, *(rank for rank in range(len(self._seats)) if self._buddy_of(rank) == self.rank)}
        for place in places:
            for rank in mine:
                drop(self.root, place, rank)

    def has_older(self) -> bool:
        return any(number < self.attempt for number in attempts(self.root))

    def drop_older(self) -> None:
        """What older attempts left here, once this one has something durable."""
        with suppress(OSError, Unreadable):
            for number in attempts(self.root):
                if number < self.attempt:
                    rmtree(attempt_path(self.root, number), ignore_errors=True)

    def close(self, *, leave: bool) -> None:
        """`leave`: the training may go on from what is here."""
        self.copying.stop()
        if self._server is not None:
            self._server.close()
        if leave:
            return
        with suppress(OSError, Unreadable):
            for step in steps(self.root, self.attempt):
                for rank in range(self.world_size):  # copies for others, too: theirs are durable by now
                    drop(self.root, CheckpointName(self.attempt, step), rank)
            attempt_path(self.root, self.attempt).rmdir()
            self.root.rmdir()


def _manifest(place: CheckpointName, lineage: Lineage, parts: Mapping[int, RankPart]) -> Manifest:
    """Of what all ranks of its attempt have saved."""
    ranks = range(lineage.world_size)
    files = {name: one for rank in ranks for name, one in parts[rank].files.items()}
    forms = {rank: form for rank in ranks if (form := parts[rank].form) is not None}
    return Manifest(place, lineage.world_size, files, forms, lineage.run, far=None)


def _at(peer: Peer, place: CheckpointName, name: str) -> disk.Copy:
    def size() -> int:
        with peer.open(place, name) as stream:
            return int(stream.size)

    return disk.Copy(name, f"{name} at {peer.address}", size, lambda: peer.open(place, name))


def _node() -> str:
    """Which machine this is: as the launcher counts them, else as its kernel knows."""
    for name in ("GROUP_RANK", "NODE_RANK"):
        if os.environ.get(name, "").isdecimal():
            return os.environ[name]
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return os.uname().nodename


def create_secret(directory: Path, attempt: int) -> None:
    """Right after the fence, by the rank that has raised it."""
    path = secret_path(directory, attempt)
    aside = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(os.urandom(32).hex())
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)


def secret_of(directory: Path, attempt: int) -> str | None:
    """None: it is not there yet. Empty: it is not for us, so nobody knows this rank and no copies are kept."""
    try:
        return secret_path(directory, attempt).read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as why:
        log.warning("no copies are kept on other nodes: %s", why)
        return ""
