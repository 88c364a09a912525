"""`python -m sickbay.agent --settings FD`: the agent's own process on a real machine.

`sickbay agent` has read the settings and left them behind a descriptor: no reader of YAML stays in memory. A cluster
whose nodes need more than this starts the same frame with its own kit (`python -m sickbay.clusters.local.node`).
"""

import argparse
import os
import sys

import msgspec

from sickbay.agent.node import run
from sickbay.agent.settings import AgentSettings
from sickbay.model.errors import BadInput


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="sickbay.agent", description="Watches one node and reports to the controller. People use `sickbay agent`."
    )
    parser.add_argument("--settings", type=int, metavar="FD", required=True, help="a descriptor to read settings from")
    try:
        run(_settings(parser.parse_args().settings))
    except BadInput as error:
        print(f"agent: {error}", file=sys.stderr)
        return 2
    return 0


def _settings(descriptor: int) -> AgentSettings:
    try:
        with os.fdopen(descriptor, "rb") as file:
            return msgspec.json.decode(file.read(), type=AgentSettings)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInput(f"no settings can be read from descriptor {descriptor}: use `sickbay agent` ({error})") from None


if __name__ == "__main__":
    sys.exit(main())
