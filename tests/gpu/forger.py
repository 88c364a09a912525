"""An unprivileged user's ways to put words into a machine's logs: `python forger.py WAY TEXT [MORE]`.

Each runs in a process of its own, as a user with no rights, and ends with 0 if the machine let it do what it wanted.
What came of it is in the logs. Standard library only: it is copied to where that user may read it.
"""

import ctypes
import fcntl
import importlib
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_NAME, PR_SET_DUMPABLE = 15, 4
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
SOCK_PACKET = 10
SIOCSIFNAME = 0x8923
TIOCSTI = 0x5412
LOGS = ("messages", "syslog", "kern.log", "dmesg", "nvidia-fabricmanager.log", "fabricmanager.log")
SOCKETS = ("/dev/log", "/run/systemd/journal/dev-log", "/run/systemd/journal/syslog", "/run/systemd/journal/socket")
TERMINALS = ("/dev/ttyprintk", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ttyS0", "/dev/pts/ptmx")

libc = ctypes.CDLL(None, use_errno=True)


def written(paths: tuple[str, ...], data: bytes) -> bool:
    """Whether any of them took it."""
    took = False
    for path in paths:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK)
        except OSError:
            continue
        with os.fdopen(handle, "wb", buffering=0) as file:
            file.write(data)
            took = True
    return took


def ring(text: str) -> bool:
    return written(("/dev/kmsg", "/proc/kmsg", "/proc/sysrq-trigger"), f"<0>{text}\n".encode())


def terminals(text: str) -> bool:
    return written(TERMINALS, f"{text}\r\n".encode())


def logs(text: str) -> bool:
    line = f"{time.strftime('%b %e %H:%M:%S')} {socket.gethostname()} kernel: {text}\n"
    return written(tuple(f"/var/log/{name}" for name in LOGS), line.encode())


def syslog(text: str) -> bool:
    """As `logger -t kernel -p kern.emerg`, and as a program that speaks journald's own protocol."""
    took = False
    native = f"MESSAGE={text}\nPRIORITY=0\nSYSLOG_FACILITY=0\nSYSLOG_IDENTIFIER=kernel\n_TRANSPORT=kernel\n"
    for path in SOCKETS:
        for said in (f"<0>kernel: {text}", f"<0>{time.strftime('%b %e %H:%M:%S')} {text}", native):
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                try:
                    out.sendto(said.encode(), path)
                    took = True
                except OSError:
                    continue
    return took


def call_me(name: str) -> None:
    libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def crash(name: str) -> bool:
    """`<name>[pid]: segfault at 0 …`"""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    call_me(name)
    ctypes.string_at(0)
    return False


def trap(name: str) -> bool:
    """`traps: <name>[pid] trap int3 …`"""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    call_me(name)
    code = ctypes.create_string_buffer(b"\x0f\x0b" * 8)
    page = ctypes.addressof(code) & ~4095
    libc.mprotect(ctypes.c_void_p(page), 8192, 7)
    ctypes.CFUNCTYPE(None)(ctypes.addressof(code))()
    return False


def program(executable_stack: bool) -> bytes:
    """The smallest one that writes to address 0."""
    code = b"\x31\xc0\x89\x00"  # xor eax, eax; mov [rax], eax
    start, base = 64 + 2 * 56, 0x400000
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + start, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    size = start + len(code)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 7 if executable_stack else 6, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code


def crash_in(name: str, executable_stack: str = "") -> bool:
    """`… segfault at 0 … in <name>[…]`, of a program whose file has this name."""
    place = Path.cwd() / name
    place.write_bytes(program(bool(executable_stack)))
    place.chmod(0o755)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.execv(place, [str(place)])


def own_namespace(flags: int) -> None:
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | flags):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")


def mount(text: str) -> bool:
    """`tmpfs: Unknown parameter '<text>'`"""
    own_namespace(CLONE_NEWNS)
    for kind in (b"tmpfs", b"overlay", b"devpts", b"proc"):
        libc.mount(b"none", str(Path.cwd()).encode(), kind, 0, text.encode())
    return True


def packets(name: str) -> bool:
    """`<name> uses obsolete (PF_INET,SOCK_PACKET)`"""
    call_me(name)
    own_namespace(CLONE_NEWNET)
    socket.socket(socket.AF_INET, SOCK_PACKET, socket.htons(3)).close()
    return True


def cipher(name: str) -> bool:
    """`<name> sent an empty control message without MSG_MORE.`"""
    call_me(name)
    with socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET) as made:
        made.bind(("skcipher", "cbc(aes)"))
        made.setsockopt(socket.SOL_ALG, socket.ALG_SET_KEY, bytes(16))
        worker, _ = made.accept()
        for _ in range(2):
            worker.sendmsg([], [(socket.SOL_ALG, socket.ALG_SET_OP, bytes(4))])
    return True


def interface(name: str) -> bool:
    """`<name>: renamed from lo`, and what drivers print of its name."""
    own_namespace(CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        fcntl.ioctl(out, SIOCSIFNAME, struct.pack("16s16s", b"lo", name.encode()))
    return True


def terminal(text: str) -> bool:
    """Typed into the terminal that it has, if it has one."""
    with Path("/dev/tty").open("wb", buffering=0) as tty:
        for sign in text.encode():
            fcntl.ioctl(tty, TIOCSTI, bytes([sign]))
    return True


def memory(text: str, group: str) -> bool:
    """Out of memory in a control group of its own, whose name it chose."""
    inner = Path(group) / text
    inner.mkdir()
    (inner / "memory.max").write_text(str(24 << 20), encoding="ascii")
    (inner / "memory.swap.max").write_text("0", encoding="ascii")
    (inner / "memory.oom.group").write_text("1", encoding="ascii")
    child = os.fork()
    if child == 0:
        call_me("NVRM: Xid (PCI:")
        (inner / "cgroup.procs").write_text("0", encoding="ascii")
        held = [bytearray(os.urandom(1 << 20)) for _ in range(256)]
        os._exit(len(held) % 2)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def on_gpu(name: str, kernel: str) -> bool:
    """A real Xid, in whose line the driver prints the name of this process."""
    call_me(name)
    bad_kernels = importlib.import_module("bad_kernels")  # beside this file, where both were copied to
    cuda = bad_kernels.Cuda()
    call_me(name)
    cuda.launch(bad_kernels.KERNELS[kernel])
    try:
        cuda.call("cuCtxSynchronize")
    except OSError:
        return True
    return False


WAYS: dict[str, Callable[..., bool]] = {
    way.__name__: way
    for way in (ring, terminals, logs, syslog, crash, trap, crash_in, mount, packets, cipher, interface, terminal)
} | {"memory": memory, "on_gpu": on_gpu}


def main() -> int:
    libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        return int(not WAYS[sys.argv[1]](*sys.argv[2:]))
    except OSError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
