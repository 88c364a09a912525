"""The container image, built without a container engine: it is unpacked, and runs as the controller and as an agent."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
BUILD = REPOSITORY / "deploy" / "image" / "build.py"
# Beside all clones of this user: what Debian and PyPI give is fetched once for a machine.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sickbay-image"
USER = "10001:10001"
ENTERED = 'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" && exec chroot "$@"'
STORES = "from sickbay.adapters.stores.sql import open_store; open_store('sqlite:////var/lib/sickbay/try.db').close()"
LIBRARIES = """
import ctypes, pathlib
for top in ("/usr/lib/python3.11/lib-dynload", "/usr/lib/python3"):
    for path in pathlib.Path(top).rglob("*.so"):
        ctypes.CDLL(str(path))
"""


def built(out: Path) -> Path:
    """Fetched once, and made again from the cache: some seconds."""
    missing = [name for name in ("apt-get", "dpkg-deb", "unshare", "chroot") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"an image is tried out as root with {', '.join(missing) or 'chroot'}, which cannot be had here")
    command = [sys.executable, str(BUILD), "--out", str(out), "--cache", str(CACHE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"the image cannot be built here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return out


def unpacked(image: Path, root: Path) -> dict[str, Any]:
    """As a container engine does, each blob by its digest. How it is to be run."""
    with tarfile.open(image) as archive:

        def blob(described: dict[str, Any]) -> bytes:
            found = archive.extractfile(f"blobs/sha256/{described['digest'].removeprefix('sha256:')}")
            content = found.read() if found is not None else b""
            assert "sha256:" + hashlib.sha256(content).hexdigest() == described["digest"]
            assert len(content) == described["size"]
            return content

        index = archive.extractfile("index.json")
        assert index is not None
        manifest = json.loads(blob(json.loads(index.read())["manifests"][0]))
        config = json.loads(blob(manifest["config"]))
        for described in manifest["layers"]:
            with tarfile.open(fileobj=io.BytesIO(blob(described))) as layer:
                layer.extractall(root, numeric_owner=True, filter="fully_trusted")
    run: dict[str, Any] = config["config"]
    return run


def in_it(root: Path, user: str, *command: str) -> "subprocess.CompletedProcess[str]":
    """In a root, mounts and processes of its own, with the environment that the image says and no more."""
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTERED, str(root)]
    return subprocess.run(
        [*words, f"--userspec={user}", str(root), *command], capture_output=True, text=True, timeout=60, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/var/lib/sickbay"},
    )  # fmt: skip


def test_the_image_runs_the_controller_as_nobody_special_and_the_agent_as_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    run = unpacked(built(tmp_path / "image.tar"), root)
    assert (run["Entrypoint"], run["User"]) == (["/usr/bin/sickbay"], USER)
    version = in_it(root, USER, "/usr/bin/sickbay", "--version")
    assert version.returncode == 0, version.stderr
    assert version.stdout.split()[1] == run["Labels"]["org.opencontainers.image.version"]
    help_of = in_it(root, USER, "/usr/bin/sickbay", "controller", "--help")
    assert "--config" in help_of.stdout, help_of.stderr
    for program in (STORES, LIBRARIES):
        done = in_it(root, USER, "/usr/bin/python3", "-c", program)
        assert done.returncode == 0, done.stderr
    assert in_it(root, USER, "/usr/bin/journalctl", "--version").stdout.startswith("systemd")
    assert (
        in_it(root, "0:0", "/usr/bin/nsenter", "-t", "1", "-m", "--", "/bin/sh", "-c", "echo there").stdout == "there\n"
    )
    agent = in_it(root, "0:0", "/usr/bin/sickbay", "agent", "--once", "--json")
    assert agent.returncode in {0, 1}, agent.stderr  # 1: something is wrong with this machine
    assert isinstance(json.loads(agent.stdout), list), agent.stderr
    assert not _naming(root, [str(REPOSITORY), str(tmp_path), sys.prefix, *_sources()])


def _sources() -> set[str]:
    """The hosts from which this machine fetches packages."""
    lists = [*Path("/etc/apt").glob("sources.list*"), *Path("/etc/apt/sources.list.d").glob("*")]
    said = [file.read_text(errors="replace") for file in lists if file.is_file()]
    pip = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    said += [pip.stdout, os.environ.get("PIP_INDEX_URL", "")]
    return {host for text in said for host in re.findall(r"https?://(?:[^/@\s]*@)?([^/\s'\"]+)", text)}


def _naming(root: Path, places: list[str]) -> list[str]:
    """Files that say where the image was made, or where from."""
    words = [place.encode() for place in places]
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(root)) for path in files if any(word in path.read_bytes() for word in words)]
