"""Measured values for Amazon CloudWatch, in its embedded metric format.

A line of JSON that the CloudWatch agent takes from a socket or a file and turns into metrics: no SDK, no credentials
are needed here. Format: "Specification: embedded metric format", Amazon CloudWatch user guide.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from sickbay.model.errors import BadInput

NAMESPACE = "Sickbay"
MOST = 100  # metrics that one document may declare
LARGEST = 8 << 20  # bytes of a file; then it is begun anew, and the one before is kept


def lines(node: str, values: Mapping[str, float], at: float, namespace: str = NAMESPACE) -> list[bytes]:
    """Documents of at most a hundred metrics each. The dimension is the node: a metric per GPU has its name in full."""
    names = sorted(values)
    found = []
    for start in range(0, len(names), MOST):
        some = names[start : start + MOST]
        declared = [{"Dimensions": [["node"]], "Metrics": [{"Name": name} for name in some], "Namespace": namespace}]
        document = {
            "_aws": {"Timestamp": int(at * 1000), "CloudWatchMetrics": declared},
            "node": node,
            **{name: values[name] for name in some},
        }
        found.append(json.dumps(document, separators=(",", ":")).encode() + b"\n")
    return found


class EmfExport:
    """`target`: `tcp://host:port` or `udp://host:port` of the CloudWatch agent, or the path of a file that it follows.

    What cannot be sent is dropped: charts have gaps, and nobody waits for them.
    """

    def __init__(self, target: str, node: str) -> None:
        self._node = node
        parts = urlsplit(target)
        self._file = "" if parts.scheme in {"tcp", "udp"} else target
        try:
            self._address = (parts.hostname or "", parts.port or 25888)
        except ValueError:
            raise BadInput(f"metrics cannot go to {target!r}: write tcp://127.0.0.1:25888 or a file's path") from None
        if not self._file and not self._address[0]:
            raise BadInput(f"metrics cannot go to {target!r}: write tcp://127.0.0.1:25888 or a file's path")
        self._kind = socket.SOCK_DGRAM if parts.scheme == "udp" else socket.SOCK_STREAM
        self._socket: socket.socket | None = None
        self.trouble = ""

    def __call__(self, values: Mapping[str, float]) -> None:
        if not values:
            return
        try:
            for line in lines(self._node, values, time.time()):
                (self._append if self._file else self._send)(line)
            self.trouble = ""
        except OSError as error:
            self.trouble = str(error)
            self.close()

    def _append(self, line: bytes) -> None:
        handle = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        try:
            os.write(handle, line)
            if os.fstat(handle).st_size > LARGEST:
                os.replace(self._file, f"{self._file}.1")  # noqa: PTH105 - the path is a setting, kept as text
        finally:
            os.close(handle)

    def _send(self, line: bytes) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_INET, self._kind)
            self._socket.settimeout(1.0)
            self._socket.connect(self._address)
        self._socket.sendall(line)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
