"""`python -m sickbay.agent`: the agent's own process.

With `--root ROOT --seat NAME` the agent of one node of the local cluster; with `--settings FD` that of a real machine,
whose settings `sickbay agent` has read and left behind a descriptor: no reader of YAML stays in memory.
"""

import argparse
import os
import sys
from pathlib import Path

from sickbay.model.errors import BadInput


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="sickbay.agent", description="Watches one node and reports to the controller. People use `sickbay agent`."
    )
    parser.add_argument("--root", type=Path, help="the local cluster's directory")
    parser.add_argument("--seat", help="the node's name there")
    parser.add_argument("--settings", type=int, metavar="FD", help="a descriptor to read a machine's settings from")
    wanted = parser.parse_args()
    try:
        if wanted.settings is not None:
            _machine(wanted.settings)
        elif wanted.root is not None and wanted.seat:
            _local(wanted.root, wanted.seat)
        else:
            parser.error("write --root and --seat for the local cluster; on a machine use `sickbay agent`")
    except BadInput as error:
        print(f"agent: {error}", file=sys.stderr)
        return 2
    return 0


def _local(root: Path, seat: str) -> None:
    from sickbay.clusters.local.node import run

    run(root, seat)


def _machine(descriptor: int) -> None:
    import msgspec

    from sickbay.agent.node import run
    from sickbay.agent.settings import AgentSettings

    try:
        with os.fdopen(descriptor, "rb") as file:
            settings = msgspec.json.decode(file.read(), type=AgentSettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInput(f"no settings can be read from descriptor {descriptor}: use `sickbay agent` ({error})") from None
    run(settings)


if __name__ == "__main__":
    sys.exit(main())
