"""A root file system out of Debian's packages: fetched and verified by apt, unpacked without being installed."""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from oci import Layer

MERGED = ("bin", "sbin", "lib", "lib64")  # since Debian 12 these are links into /usr, which its packages do not say
LEFT_OUT = re.compile(
    r"usr/share/(man|locale|lintian|bash-completion|info|bug|zsh|doc-base)/|usr/share/doc/(?![^/]+/copyright$)|"
    r"usr/lib/python3\.11/(test|idlelib|tkinter|lib2to3|ensurepip|pydoc_data|distutils/tests|unittest/test)/|"
    r"usr/share/(python3|perl5|base-files|debconf)/|etc/(apt|dpkg|cron\.\w+|systemd|init\.d|default|ca-certificates|update-motd.d)/|"
    r"usr/lib/(udev|tmpfiles\.d)/|usr/s?bin/(update-ca|py3)|var/lib/systemd/|"
    r"usr/lib/[^/]+/(gconv/|libthread_db|systemd/libsystemd-core)|"  # of debuggers, iconv and systemd itself
    r"usr/lib/python3\.11/lib-dynload/(_dbm|_gdbm|_curses|_curses_panel|readline|nis)\."  # their libraries are not here
)


class CannotBuild(Exception):  # noqa: N818 - one line for a person
    """What is missing here, and what to do instead."""


def wanted(text: str) -> dict[str, list[str]]:
    """Names of packages, each with the files that are taken of it; none: all."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return {words[0]: words[1:] for words in lines if words}


def fetch(packages: Sequence[str], into: Path) -> dict[str, Path]:
    """The packages' archives. What is there already is not fetched again."""
    into.mkdir(parents=True, exist_ok=True)
    have = {path.name.partition("_")[0]: path for path in sorted(into.glob("*.deb"))}
    missing = [name for name in packages if name not in have]
    if missing:
        # apt's own user may not write here, and says so at length.
        done = _run(["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *missing], into)
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().splitlines()
            raise CannotBuild(f"the packages cannot be fetched ({(why or ['apt-get failed'])[-1]}): is this Debian 12?")
    have = {path.name.partition("_")[0]: path for path in sorted(into.glob("*.deb"))}
    return {name: have[name] for name in packages}


def root(archives: Mapping[str, Path], only: Mapping[str, Sequence[str]]) -> Layer:
    layer = Layer()
    for name in MERGED:
        layer.link(name, f"usr/{name}")
        layer.directory(f"usr/{name}")
    certificates: dict[str, bytes] = {}
    for package, path in archives.items():
        for entry, content in _files(path):
            if entry.name.endswith(".crt") and "ca-certificates/" in entry.name:
                certificates[entry.name] = content
            elif _is_taken(entry, only[package]):
                layer.put(entry, content)
        # Where scanners for known weaknesses look for what is installed.
        layer.add(f"var/lib/dpkg/status.d/{package}", _run(["dpkg-deb", "-f", str(path)]).stdout)
    layer.add("etc/ssl/certs/ca-certificates.crt", b"".join(certificates[name] for name in sorted(certificates)))
    layer.link("usr/lib/ssl/cert.pem", "/etc/ssl/certs/ca-certificates.crt")
    layer.link("usr/bin/sh", "dash")
    for name in ("dev", "proc", "sys", "root"):
        layer.directory(name)
    layer.directory("tmp", 0o1777)
    return layer


def _is_taken(entry: tarfile.TarInfo, only: Sequence[str]) -> bool:
    if entry.isdir() or LEFT_OUT.match(entry.name):
        return False
    return not only or entry.name in only or entry.name.endswith("/copyright")


def _files(package: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """With names as they are on a system whose /bin and /lib are links."""
    done = _run(["dpkg-deb", "--fsys-tarfile", str(package)])
    if done.returncode:
        raise CannotBuild(f"{package} cannot be read: remove it, and it is fetched again")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        for entry in tar:
            entry.name = _merged(entry.name)
            if entry.islnk():
                entry.linkname = _merged(entry.linkname)
            found = tar.extractfile(entry) if entry.isreg() else None
            yield entry, found.read() if found is not None else b""


def _merged(name: str) -> str:
    plain = name.removeprefix("./").strip("/")
    return f"usr/{plain}" if plain.partition("/")[0] in MERGED else plain


def architecture() -> str:
    return _run(["dpkg", "--print-architecture"]).stdout.decode().strip()


def _run(command: Sequence[str], where: Path | None = None) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(command, capture_output=True, cwd=where, timeout=600, check=False)
    except FileNotFoundError:
        raise CannotBuild(
            f"there is no {command[0]} here: build on Debian 12, or with deploy/image/Containerfile"
        ) from None
