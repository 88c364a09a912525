"""What tools say about links: `ibstat`, `ibstatus`, `ibv_devinfo`, and `dcgmi nvlink --link-status`.

A port's lines are read to their end before anything is told, as whether it is InfiniBand at all stands at the bottom.
"""

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar

from sickbay.model.sign import Fields, Sign
from sickbay.signs.readers import Document

LONGEST = 512
FAR = 40  # lines that one port's entry may have

_ADAPTER = re.compile(r"\s*(?:CA '(?P<ca>[\w.-]{1,64})'|hca_id:\s{1,8}(?P<hca>[\w.-]{1,64}))\s*$", re.ASCII)
_STATUS = re.compile(r"\s*Infiniband device '(?P<name>[\w.-]{1,64})' port (?P<port>\d{1,3}) status:\s*$", re.ASCII)
_PORT = re.compile(r"\s*[Pp]ort:?\s{0,8}(?P<port>\d{1,3}):?\s*$", re.ASCII)
_STATE = re.compile(r"\s*[Ss]tate:\s{1,40}(?:\d: )?(?:PORT_)?(?P<state>[A-Za-z]{2,16})(?: \(\d\))?\s*$", re.ASCII)
_LAYER = re.compile(r"\s*[Ll]ink[ _]layer:\s{1,40}(?P<layer>\w{2,20})\s*$", re.ASCII)
_ENTRY = re.compile(r"\s*[\w ./]{2,40}:(?:\s|$)", re.ASCII)

_NVLINKS = re.compile(r"\|\s{1,8}Nv[Ll]ink Link Status\s{1,8}\|")
_GPU = re.compile(r"\s*gpuId (?P<gpu>\d{1,4}):\s*$", re.ASCII)
_LINKS = re.compile(r"\s*(?P<links>[UDX_](?: [UDX_]){0,63})\s*$", re.ASCII)


class LinkTools(Document):
    """One sign for every port that is down, and one for every GPU with NVLinks that are."""

    ANCHORS: ClassVar[tuple[str, ...]] = ("CA '", "hca_id:", "Infiniband device '", "Link Status  |")

    def __init__(self) -> None:
        super().__init__()
        self._name = ""
        self._port = 0
        self._down: tuple[int, str] | None = None
        self._layer = ""
        self._left = 0
        self._nvlinks = 0  # lines that a table of NVLinks may still have
        self._gpu = ""

    def read(self, number: int, line: str) -> Iterable[Sign]:
        self.owns = False
        if len(line) > LONGEST:
            return ()
        if self._nvlinks or "ink Status" in line:
            return self._nvlink(number, line)
        if self._name or "CA '" in line or "hca_id:" in line or "Infiniband device '" in line:
            return list(self._adapter(number, line))
        return ()

    def end(self) -> Iterable[Sign]:
        found = list(self._told())
        self._name, self._nvlinks, self.owns = "", 0, False
        return found

    # --- adapters

    def _adapter(self, number: int, line: str) -> Iterator[Sign]:
        status = _STATUS.match(line)
        if (found := _ADAPTER.match(line)) or status:
            yield from self._told()
            self.owns, self._left = True, FAR
            self._name = status["name"] if status else (found["ca"] or found["hca"] if found else "")
            self._port = int(status["port"]) if status else 0
            return
        if not self._name:
            return
        self._left -= 1
        if not self._left or (line.strip() and not _ENTRY.match(line)):
            yield from self._told()
            self._name = ""
            return
        self.owns = True
        if found := _PORT.match(line):
            yield from self._told()
            self._port, self._left = int(found["port"]), FAR
        elif found := _STATE.match(line):
            self._down = (number, line.strip()) if found["state"].lower() == "down" else None
        elif found := _LAYER.match(line):
            self._layer = found["layer"]

    def _told(self) -> Iterator[Sign]:
        down, layer, self._down, self._layer = self._down, self._layer, None, ""
        if down is None:
            return
        fields: Fields = {"interface": self._name}
        if self._port:
            fields["port"] = self._port
        kind = "net.link_down" if layer == "Ethernet" else "ib.link_down"
        yield Sign(kind=kind, fields=fields, text=f"{self._name} port {self._port or '?'}: {down[1]}", line=down[0])

    # --- NVLinks

    def _nvlink(self, number: int, line: str) -> Iterable[Sign]:
        if _NVLINKS.search(line):
            self.owns, self._nvlinks, self._gpu = True, FAR, ""
            return ()
        if not self._nvlinks:
            return ()
        self._nvlinks -= 1
        if line.lstrip().startswith(("Key:", "NvSwitches:")):
            self.owns, self._nvlinks = True, 0
            return ()
        if found := _GPU.match(line):
            self.owns, self._gpu, self._nvlinks = True, found["gpu"], FAR
            return ()
        found = _LINKS.match(line) if self._gpu else None
        if not found:
            self.owns = not line.strip() or line.strip(" +-") in {"", "GPUs:"}
            return ()
        self.owns = True
        down = found["links"].count("D")
        gpu, self._gpu = self._gpu, ""
        if not down:
            return ()
        said = f"gpuId {gpu}: {line.strip()} ({down} NVLinks down)"
        return (Sign(kind="nvlink.down", fields={"device": int(gpu)}, text=said, line=number),)
