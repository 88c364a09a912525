"""Writes Sickbay's container image as an OCI archive, without a container engine and without root: `make image`.

Its layers: Debian's Python with a few libraries; what Sickbay imports; Sickbay. What was fetched and made is kept in a
cache (build/image), so that a second build takes seconds. It looks for no newer packages: remove the cache for that.
"""

import argparse
import gzip
import hashlib
import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from debian import CannotBuild, architecture, fetch, root, wanted  # noqa: E402  # its neighbours, not a package
from oci import EPOCH, Layer, archive  # noqa: E402

REPOSITORY = HERE.parents[1]
PYTHON = (3, 11)  # Debian 12's
LIBRARIES = "usr/lib/python3/dist-packages"
EXTRAS = "postgres,nvidia"  # stores of several replicas, and GPUs
USER = 10001  # the controller's: it needs no right of root's. The agent's pod says runAsUser: 0
ACCOUNTS = {
    "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nsickbay:x:{USER}:{USER}:Sickbay:/var/lib/sickbay:/bin/sh\n",
    "etc/group": f"root:x:0:\nsickbay:x:{USER}:\n",
}
COMMAND = """#!/usr/bin/python3
import sys

from sickbay.faces.cli.main import main

sys.exit(main())
"""


def build(out: Path, cache: Path, name: str) -> str:
    """The image's name. Raises CannotBuild."""
    if sys.version_info[:2] != PYTHON:
        raise CannotBuild("the image's Python is 3.11, and its libraries must be of that: run this with python3.11")
    only = wanted((HERE / "packages.txt").read_text(encoding="utf-8"))
    base = root(fetch(list(only), cache / "debs"), only)
    for path, text in ACCOUNTS.items():
        base.add(path, text.encode())
    wheels = _wheels(cache / "wheels")
    needed, ours = Layer(), Layer()
    for wheel in wheels:
        _unpack(wheel, ours if wheel.name.startswith("sickbay-") else needed)
    version = next(wheel.name.split("-")[1] for wheel in wheels if wheel.name.startswith("sickbay-"))
    ours.add("usr/bin/sickbay", COMMAND.encode(), 0o755)
    ours.directory("var/lib/sickbay", 0o700, USER)
    ours.directory("run/sickbay", 0o755, USER)
    layers = [base, needed, ours]  # what changes the least comes first, so that an upgrade is a small pull
    for layer in layers:
        _compile(layer, cache / "bytecode")
    name = name or f"sickbay:{version}"
    run = {
        "User": f"{USER}:{USER}",
        "Entrypoint": ["/usr/bin/sickbay"],
        "Cmd": ["--help"],
        "WorkingDir": "/",
        "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/var/lib/sickbay", "PYTHONUNBUFFERED=1"],
        "Labels": {
            "org.opencontainers.image.title": "sickbay",
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    }
    whole = archive(layers, run, architecture(), name, zipped=lambda tar: _zipped(tar, cache / "layers"))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(whole)
    return name


def _wheels(kept: Path) -> list[Path]:
    """Ours, made anew, and those that it needs, which are asked for again when what it needs has changed."""
    kept.mkdir(parents=True, exist_ok=True)
    asked = kept / "asked.toml"
    needs = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as made:
        _pip("wheel", "--no-deps", "--wheel-dir", made, str(REPOSITORY))
        ours = next(Path(made).glob("sickbay-*.whl"))
        if not asked.exists() or asked.read_text(encoding="utf-8") != needs:
            shutil.rmtree(kept)
            _pip("wheel", "--wheel-dir", str(kept), f"{ours}[{EXTRAS}]")
            asked.write_text(needs, encoding="utf-8")
        for old in kept.glob("sickbay-*.whl"):
            old.unlink()
        shutil.copy(ours, kept)
    return sorted(kept.glob("*.whl"))


def _pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", *words, "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()
        raise CannotBuild(f"the wheels cannot be made: {(why or ['pip failed'])[-1]}")


def _unpack(wheel: Path, layer: Layer) -> None:
    """Unpacked, not installed: an installer writes down where it took it from."""
    with zipfile.ZipFile(wheel) as packed:
        for each in packed.infolist():
            head, _, rest = each.filename.partition(".data/")
            kind, _, below = rest.partition("/")
            if each.is_dir() or (rest and kind not in {"purelib", "platlib"}):
                continue
            is_program = each.external_attr >> 16 & 0o100
            layer.add(f"{LIBRARIES}/{below or head}", packed.read(each), 0o755 if is_program else 0o644)


def _compile(layer: Layer, kept: Path) -> None:
    """Bytecode beside each module: who is not root could not keep it, and each start would compile anew."""
    modules = [name for name in layer.entries if name.endswith(".py") and name.startswith("usr/lib/python3")]
    for name in modules:
        source = layer.entries[name][1]
        key = hashlib.sha256(name.encode() + source).hexdigest()
        if content := _kept(kept / f"{key}.pyc", partial(_bytecode, source, f"/{name}")):
            where, _, module = name.rpartition("/")
            layer.add(f"{where}/__pycache__/{module[:-3]}.cpython-311.pyc", content)


def _bytecode(source: bytes, name: str) -> bytes:
    """Of which Python believes that it is this source's, without looking; nothing: a template, or of another Python."""
    try:
        code = compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return b""
    flags = 0b01  # by the source's hash, not looked at again
    head = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + importlib.util.source_hash(source)
    return head + marshal.dumps(code)


def _zipped(tar: bytes, kept: Path) -> bytes:
    """Layers that have not changed are not compressed again."""
    path = kept / f"{hashlib.sha256(tar).hexdigest()}.tar.gz"
    return _kept(path, lambda: gzip.compress(tar, 6, mtime=EPOCH))


def _kept(path: Path, make: Callable[[], bytes]) -> bytes:
    """From the cache; a build that is killed leaves no half of a file there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}")
        half.write_bytes(make())
        half.replace(path)
    return path.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make image", description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "build" / "image" / "sickbay.tar", metavar="FILE")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "build" / "image", metavar="DIR")
    parser.add_argument("--name", default="", help="of the image; default: sickbay:<version>")
    asked = parser.parse_args()
    try:
        name = build(asked.out.resolve(), asked.cache.resolve(), asked.name)
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    size = asked.out.stat().st_size / 1e6
    print(f"{asked.out}: {name}, {size:.0f} MB; load it with 'ctr images import' or 'podman load -i'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
