"""The checks of `millstream doctor` on this machine; cluster_checks.py has those on brokers."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import resource
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from pkgutil import iter_modules

from millstream import protocol
from millstream.cli.output import human_bytes
from millstream.client.cluster import parse_bootstrap
from millstream.errors import MillstreamError
from millstream.storage.names import LOCK_FILE

LOW_SPACE_BYTES = 1024**3
LOW_DESCRIPTORS = 4096
CLOCK_SKEW_SECONDS = 2


class State(Enum):
    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at, what was found, and what to do about it."""

    name: str
    state: State
    found: str
    advice: str | None = None


def machine_checks(data: str, listen: str, *, broker_is_running: bool) -> list[Check]:
    """What a broker needs of the machine."""
    return [
        python_check(),
        kernel_check(),
        loop_check(),
        *folder_checks(data),
        descriptors_check(),
        port_check(listen, broker_is_running=broker_is_running),
        clock_check(data),
    ]


def python_check() -> Check:
    found = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()}"
    return Check("python", State.GOOD, found)


def kernel_check() -> Check:
    names = [found.name for found in iter_modules(protocol.__path__) if found.name.endswith("kernel")]
    interpreted = [name for name in names if not import_module(f"millstream.protocol.{name}").IS_COMPILED]
    if not interpreted:
        return Check("record kernel", State.GOOD, "compiled")
    return Check(
        "record kernel",
        State.NOTE,
        f"interpreted ({', '.join(interpreted)}): it works, but takes records many times slower",
        "Install a C compiler and install Millstream again.",
    )


def loop_check() -> Check:
    try:
        import uvloop
    except ImportError:
        return Check("event loop", State.NOTE, "asyncio's own", "Install uvloop: it is about twice as fast.")
    return Check("event loop", State.GOOD, f"uvloop {uvloop.__version__}")


def folder_checks(data: str) -> list[Check]:
    """Whether the data folder, or the nearest one that exists above it, can be written, and has room."""
    folder = os.path.abspath(data)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return [
            Check(
                "data folder",
                State.BAD,
                f"{folder} cannot be written",
                "Choose another folder with --data DIR.",
            )
        ]
    state = "exists" if folder == os.path.abspath(data) else "will be created"
    return [
        Check("data folder", State.GOOD, f"{data} {state}"),
        *lock_checks(data),
        space_check(folder),
        cold_read_check(folder),
    ]


def lock_checks(data: str) -> list[Check]:
    path = os.path.join(data, LOCK_FILE)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return [
            Check(
                "folder lock", State.NOTE, f"a broker is using {data}", "A second one needs another folder."
            )
        ]
    finally:
        os.close(descriptor)
    return [Check("folder lock", State.GOOD, "no broker is using it")]


def space_check(folder: str) -> Check:
    free = shutil.disk_usage(folder).free
    found = f"{human_bytes(free)} free"
    if free < LOW_SPACE_BYTES:
        return Check(
            "disk space", State.NOTE, found, "Make room: producers are refused when the disk is full."
        )
    return Check("disk space", State.GOOD, found)


def cold_read_check(folder: str) -> Check:
    """Whether reads that would wait for the disk can be told from those that would not."""
    name = "cold reads"
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return Check(name, State.NOTE, "this system cannot say what is in memory; reads go through threads")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"probe")
            file.flush()
            os.preadv(file.fileno(), [bytearray(5)], 0, flag)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return Check(name, State.GOOD, "the file system has RWF_NOWAIT")
        return Check(
            name,
            State.NOTE,
            f"the file system has no RWF_NOWAIT ({error.strerror}); reads go through threads",
            "ext4, xfs and btrfs have it.",
        )
    return Check(name, State.GOOD, "the file system has RWF_NOWAIT")


def descriptors_check() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} files and connections at once"
    if soft < LOW_DESCRIPTORS:
        return Check("file limit", State.NOTE, found, f"Raise it with `ulimit -n {min(hard, 65536)}`.")
    return Check("file limit", State.GOOD, found)


def port_check(listen: str, *, broker_is_running: bool) -> Check:
    try:
        host, port = parse_bootstrap(listen)[0]
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (MillstreamError, OSError) as error:
        return Check("port", State.BAD, f"{listen}: {error}", "Write HOST:PORT, such as localhost:9092.")
    with socket.socket(address[0], socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address[4])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return Check(
                    "port", State.BAD, f"{listen}: {error.strerror}", "Choose another with --listen."
                )
            if broker_is_running:
                return Check("port", State.NOTE, f"{listen} is in use, by the broker that answers below")
            return Check(
                "port", State.BAD, f"{listen} is in use", "Stop that program, or use --listen HOST:PORT."
            )
    return Check("port", State.GOOD, f"{listen} is free")


def clock_check(data: str) -> Check:
    """Whether time goes on, and the disk's clock agrees, which retention compares with."""
    now = time.time()
    found = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    if time.gmtime(now).tm_year < 2025:
        return Check("clock", State.BAD, found, "Set the clock: records carry its time.")
    folder = data if os.path.isdir(data) and os.access(data, os.W_OK) else None
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        skew = abs(os.stat(file.name).st_mtime - now)
    if skew > CLOCK_SKEW_SECONDS:
        return Check(
            "clock", State.NOTE, f"{found}, but the disk's is {skew:.0f} s apart", "Synchronise them."
        )
    return Check("clock", State.GOOD, found)
