"""What a person does to a local cluster by hand: with files, locks and processes, and without a word of Sickbay's code.

python person.py ROOT cordon|uncordon|drain|reboot|replace NODE
python person.py ROOT hold          takes every lock, says so, and keeps them until its input ends
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

OWNER = "other:person"


def main() -> None:
    root, what = Path(sys.argv[1]), sys.argv[2]
    if what == "hold":
        hold(root)
        return
    seat = root / "seats" / sys.argv[3]
    with (seat / "seat.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = json.loads((seat / "seat.json").read_text())
        others = [cordon for cordon in said.get("cordons", []) if cordon["owner"] != OWNER]
        match what:
            case "cordon" | "drain":
                said["cordons"] = [*others, {"owner": OWNER, "reason": "by hand"}]
            case "uncordon":
                said["cordons"] = others
            case "reboot" | "replace":
                switch_off(seat)
                renew(said, anew=what == "replace")
        aside = seat / ".seat.json.person"
        aside.write_text(json.dumps(said))
        aside.rename(seat / "seat.json")
        if what == "drain":
            empty(said["boot_id"])
        if what in {"reboot", "replace"}:
            switch_on(root, sys.argv[3], said["boot_id"])


def empty(boot: str) -> None:
    """Asks whatever runs for a job on this machine to end."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            words = (process / "environ").read_bytes().split(b"\0")
            if f"SICKBAY_BOOT={boot}".encode() in words and any(word.startswith(b"SICKBAY_RANK=") for word in words):
                os.kill(int(process.name), signal.SIGTERM)


def switch_off(seat: Path) -> None:
    """Pulls the plug: the supervisor and its agent, and with them the ranks."""
    os.killpg(json.loads((seat / "status.json").read_text())["pid"], signal.SIGKILL)


def renew(said: dict[str, object], *, anew: bool) -> None:
    before = said["instance_id"]
    said["previous"] = {"uid": before, "instance_id": before, "boot_id": said["boot_id"]}
    said["boot_id"] = str(uuid.uuid4())
    if anew:
        said["instance_id"] = f"i-{uuid.uuid4().hex[:16]}"


def switch_on(root: Path, name: str, boot: str) -> None:
    command = [sys.executable, "-m", "sickbay.clusters.local.supervisor"]
    command += ["--root", str(root), "--seat", name, "--boot", boot]
    with (root / "seats" / name / "supervisor.log").open("ab") as log:
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "SICKBAY_BOOT": boot},
            start_new_session=True,
        )


def hold(root: Path) -> None:
    with ExitStack() as kept:
        for path in (root / "room.lock", root / "attempts" / ".lock", *root.glob("seats/*/seat.lock")):
            path.parent.mkdir(parents=True, exist_ok=True)
            fcntl.flock(kept.enter_context(path.open("a")), fcntl.LOCK_EX)
        print("held", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
