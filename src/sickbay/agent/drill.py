"""A fire drill: one line in a watched text log, as the daemon that writes it would have written it."""

import os
import time
from pathlib import Path

from sickbay.agent.commands import Refuse
from sickbay.knowledge.kernel import parse_line

LONGEST_LINE = 2000
# Months are written in English whatever the locale says: that is what daemons do by default.
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def inject(path: Path, line: str, host: str = "") -> str:
    """One line, dated now, as a log daemon would write it. Raises Refuse for what the kernel does not say."""
    body = " ".join(line.split())
    if not body or len(body) > LONGEST_LINE:
        raise Refuse(f"a line of 1 to {LONGEST_LINE} characters can be written")
    if parse_line(body) is None:
        raise Refuse(f"the kernel says no such thing: {body[:100]!r}; write for example "
                     "'NVRM: Xid (PCI:0000:b9:00): 79, GPU has fallen off the bus.'")  # fmt: skip
    now = time.localtime()
    name = host or os.uname().nodename.partition(".")[0]
    text = f"{MONTHS[now.tm_mon - 1]} {now.tm_mday:2d} {time.strftime('%H:%M:%S', now)} {name} kernel: {body}"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode() + b"\n")
    finally:
        os.close(handle)
    return text
