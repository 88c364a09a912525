"""`python -m sickbay.agent --root ROOT --seat NAME`: the agent of one node of the local cluster."""

import argparse
import sys
from pathlib import Path

from sickbay.agent.local import run
from sickbay.model.errors import BadInput


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="sickbay.agent", description="Watches one node and reports to the controller."
    )
    parser.add_argument("--root", type=Path, required=True, help="the local cluster's directory")
    parser.add_argument("--seat", required=True, help="the node's name there")
    wanted = parser.parse_args()
    try:
        run(wanted.root, wanted.seat)
    except BadInput as error:
        print(f"agent: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
