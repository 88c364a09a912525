"""OCI image archives, reproducibly: the same files give the same bytes, whoever builds them, and when."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

EPOCH = 0  # when everything was made: a time would differ from build to build


@dataclass
class Layer:
    """A file tree, as one tar."""

    entries: dict[str, tuple[tarfile.TarInfo, bytes]] = field(default_factory=dict)

    def add(self, path: str, content: bytes, mode: int = 0o644) -> None:
        self.put(_entry(path, tarfile.REGTYPE, mode), content)

    def directory(self, path: str, mode: int = 0o755, owner: int = 0) -> None:
        self.put(_entry(path, tarfile.DIRTYPE, mode, owner))

    def link(self, path: str, target: str) -> None:
        entry = _entry(path, tarfile.SYMTYPE, 0o777)
        entry.linkname = target
        self.put(entry)

    def put(self, entry: tarfile.TarInfo, content: bytes = b"") -> None:
        """In the place of what had this path."""
        entry.mtime, entry.uname, entry.gname, entry.pax_headers = EPOCH, "", "", {}
        entry.size = len(content)
        self.entries[entry.name] = entry, content

    def packed(self) -> bytes:
        """A directory comes before what is in it, and a hard link after its file."""
        for name in list(self.entries):
            for parent in Path(name).parents:
                if str(parent) not in {".", *self.entries}:
                    self.directory(str(parent))
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for entry, content in sorted(self.entries.values(), key=lambda each: (each[0].islnk(), each[0].name)):
                tar.addfile(entry, io.BytesIO(content))
        return out.getvalue()


def _entry(path: str, kind: bytes, mode: int, owner: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode, entry.uid, entry.gid = kind, mode, owner, owner
    return entry


def archive(
    layers: Iterable[Layer], run: Mapping[str, Any], architecture: str, name: str, *, zipped: Callable[[bytes], bytes]
) -> bytes:
    """An image that `ctr images import`, `podman load`, `skopeo` and `docker load` take. `run`: how it is started."""
    tars = [layer.packed() for layer in layers]
    packed = [zipped(tar) for tar in tars]
    history = [{"created": "1970-01-01T00:00:00Z", "created_by": "deploy/image/build.py"} for _ in tars]
    config = _json(
        {
            "created": "1970-01-01T00:00:00Z",
            "architecture": architecture,
            "os": "linux",
            "config": run,
            "rootfs": {"type": "layers", "diff_ids": [_digest(tar) for tar in tars]},
            "history": history,
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _described("config.v1+json", config),
            "layers": [_described("layer.v1.tar+gzip", blob) for blob in packed],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [
                _described("manifest.v1+json", manifest)
                | {"platform": {"architecture": architecture, "os": "linux"}, "annotations": names}
            ],
        }
    )
    whole = Layer()
    whole.add("oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
    whole.add("index.json", index)
    for blob in (config, manifest, *packed):
        whole.add(f"blobs/sha256/{_digest(blob)[7:]}", blob)
    return whole.packed()


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _described(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": _digest(blob), "size": len(blob)}


def _json(thing: object) -> bytes:
    return json.dumps(thing, sort_keys=True).encode()
