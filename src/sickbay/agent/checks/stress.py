"""CPU and memory burn-in of the host. Every result is known beforehand, so a core that computes wrong is named.

Runs in a child process (`apart`), which forks one worker for each core.
"""

import hashlib
import json
import os
import random
import struct
import sys
import time
import zlib
from typing import Any, Final

from sickbay.agent.checks import CouldNotRun, Result
from sickbay.wire.commands import die_with

BLOCK: Final = bytes(range(256)) * 1024
NUMBER: Final = (1 << 2203) - 1  # a Mersenne prime: long multiplication, with every bit set
# What every sound core computes. Written down, not computed first: the first core may be the sick one.
SHA256: Final = "2312394bd99545d9de131c24efb781e765ac1aec243f2ed9347597a793a415e9"
CRC: Final = 0xC790BFF6
CHAOS: Final = "0x1.f321cad9aa928p-1"  # ten thousand steps of the logistic map: one wrong bit, and all are wrong
POWER: Final = "7858fb465eb3fc04b69aafc3931d0c8fa17ad8d4e92b87ab2c25070e8f0baf7d"

CHUNK: Final = 16 << 20


def _sha() -> bool:
    return hashlib.sha256(BLOCK).hexdigest() == SHA256


def _crc() -> bool:
    return zlib.crc32(zlib.decompress(zlib.compress(BLOCK, 6))) == CRC


def chaos() -> str:
    x = 0.3141592653589793
    for _ in range(10_000):
        x = 3.9 * x * (1.0 - x)
    return x.hex()


def power() -> str:
    return hashlib.sha256(pow(3, NUMBER >> 1, NUMBER).to_bytes(276, "big")).hexdigest()


WORK: Final = (
    ("a checksum", _sha),
    ("compression", _crc),
    ("floating point", lambda: chaos() == CHAOS),
    ("long multiplication", lambda: power() == POWER),
)


def cpu(wants: dict[str, Any]) -> Result:
    """All cores this process may use, at once, for `seconds`."""
    seconds, cores = float(wants.get("seconds", 10.0)), sorted(os.sched_getaffinity(0))
    reading, writing = os.pipe()
    workers = {_worker(core, seconds, reading, writing, wants): core for core in cores}
    os.close(writing)
    with os.fdopen(reading) as lines:
        said = [json.loads(line) for line in lines]
    bad = [f"core {one['core']}: {one['wrong']} came out wrong" for one in said if one["wrong"]]
    killed: list[str] = []
    for pid, core in workers.items():
        status = os.waitpid(pid, 0)[1]
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            (killed if number == 9 else bad).append(f"core {core}: signal {number} ended its work")
    rounds = [one["rounds"] for one in said]
    figures = {"cores": float(len(cores)), "rounds_per_s": sum(rounds) / seconds if rounds else 0.0}
    if rounds and max(rounds):
        figures["slowest_share"] = min(rounds) / sorted(rounds)[len(rounds) // 2]
    if killed and not bad:
        raise CouldNotRun("; ".join(killed[:5]), figures)
    return Result("; ".join(bad[:10]), figures)


def _worker(core: int, seconds: float, reading: int, writing: int, wants: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with(os.getppid())()
        os.close(reading)
        os.sched_setaffinity(0, {core})
        until, rounds, wrong = time.monotonic() + seconds, 0, ""
        while not wrong and (not rounds or time.monotonic() < until):
            wrong = next((name for name, right in WORK if not right()), "")
            if core in wants.get("spoil", ()):
                wrong = wrong or "a planted fault"
            rounds += 1
        os.write(writing, (json.dumps({"core": core, "rounds": rounds, "wrong": wrong}) + "\n").encode())
        code = 0
    except BaseException as error:  # noqa: BLE001 - a fork must not return into its parent's program
        print(f"core {core}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def dram(wants: dict[str, Any]) -> Result:
    """A share of the host's free memory, all of it written before it is read and compared; then its inverse."""
    room = int(_available() * wants.get("share", 0.1))
    most = min(room, int(wants.get("most_gib", 4.0) * (1 << 30))) // CHUNK
    if most < 1:
        raise CouldNotRun("no memory of this host is free")
    plain = random.Random(7).randbytes(CHUNK)  # noqa: S311 - a pattern, no secret
    held: list[bytearray] = []
    began = time.monotonic()
    # The first writing is a quarter of the work: what it reaches in a quarter of the time is what will be tested.
    while len(held) < most and (not held or time.monotonic() - began < wants.get("seconds", 30.0) / 4):
        held.append(bytearray(plain))
    for pattern in (plain, plain.translate(bytes(range(255, -1, -1)))):
        for index, piece in enumerate(held):
            piece[8:] = pattern[8:]
            piece[:8] = struct.pack("<Q", index)  # a piece in the place of another is found too
        if "spoil" in wants:
            held[0][wants["spoil"]] ^= 1
        for index, piece in enumerate(held):
            if piece[:8] != struct.pack("<Q", index) or piece[8:] != pattern[8:]:
                return Result(f"memory of the host read back wrong in piece {index} of {CHUNK >> 20} MiB")
    moved, took = 5 * len(held) * CHUNK, time.monotonic() - began
    return Result("", {"tested_gib": len(held) * CHUNK / (1 << 30), "dram_gbps": moved / took / 1e9})


def _available() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - one line of a kernel file
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    raise CouldNotRun("/proc/meminfo does not say how much memory is free")
