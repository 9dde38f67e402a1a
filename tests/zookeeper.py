"""Real ZooKeeper servers on loopback, each a Java process with a folder and ports of its own."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.processes import WITH_PARENT, free_port, until

JAR = Path("/usr/share/java/zookeeper.jar")
"""Where Debian's packages put it; its manifest names the other jars."""

CLASSPATH = ":".join(str(JAR.parent / f"{name}.jar") for name in ("zookeeper", "slf4j-nop", "slf4j-api"))
COMMAND_LINE = Path("/usr/share/zookeeper/bin/zkCli.sh")
READY_TIMEOUT_S = 60.0
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
ANY_THREAD = 0x40000000
"""waitpid's __WALL."""
TICK_MS = 500
"""The tick; a session's time-out lies between 2 and 20 of them."""

JAVA = [
    "java",
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dzookeeper.admin.enableServer=false",
]


def is_installed() -> bool:
    return JAR.exists() and shutil.which("java") is not None


def _trace(request: int, thread: int) -> None:
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(request, thread, None, None) < 0:
        raise OSError(ctypes.get_errno(), "ptrace")


class ZookeeperServer:
    """One server; alone, or one of an ensemble."""

    def __init__(
        self,
        folder: Path,
        number: int = 1,
        members: Sequence[str] = (),
        tick_ms: int = TICK_MS,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        prefix: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.host = host
        self.port = port or free_port()
        self._prefix = list(prefix)
        self._log_path = folder / "output"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "myid").write_text(f"{number}\n")
        settings = {
            "tickTime": tick_ms,
            "initLimit": 20,
            "syncLimit": 5,
            "dataDir": folder / "data",
            "clientPortAddress": host,
            "clientPort": self.port,
            "4lw.commands.whitelist": "*",
            "maxClientCnxns": 0,
            "maxSessionTimeout": tick_ms * 80,
        }
        lines = [f"{key}={value}" for key, value in settings.items()] + list(members)
        (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self) -> None:
        """Start the process and return at once."""
        assert not self.is_running, "the server runs already"
        main = [
            "-cp",
            CLASSPATH,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self.folder / "zoo.cfg"),
        ]
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*WITH_PARENT, *self._prefix, *JAVA, *main],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> None:
        """Wait until it serves clients."""
        try:
            until(
                lambda: not self.is_running or "Mode:" in self.ask("srvr"), READY_TIMEOUT_S, "ZooKeeper ready"
            )
        except TimeoutError as late:
            raise TimeoutError(f"{late}\n{self._log_path.read_text()[-2000:]}") from None
        assert self.is_running, self._log_path.read_text()[-2000:]

    def start(self) -> Self:
        self.launch()
        self.wait()
        return self

    def ask(self, word: str) -> str:
        """What the server answers to one of its four-letter words; nothing if it does not."""
        try:
            with closing(socket.create_connection((self.host, self.port), timeout=2)) as connection:
                connection.sendall(word.encode())
                with connection.makefile("rb") as answer:
                    return answer.read().decode()
        except OSError:
            return ""

    def signal(self, number: int) -> None:
        assert self.process is not None, "the server was not started"
        self.process.send_signal(number)

    @contextmanager
    def slow_disk(self) -> Iterator[None]:
        """Nothing that is written becomes durable meanwhile; all else goes on. To be used in one thread."""
        assert self.process is not None, "the server was not started"
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        (writer,) = (int(each.name) for each in threads if "SyncThread" in (each / "comm").read_text())
        _trace(PTRACE_SEIZE, writer)
        try:
            _trace(PTRACE_INTERRUPT, writer)
            os.waitpid(writer, ANY_THREAD)
            yield
        finally:
            _trace(PTRACE_DETACH, writer)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(30)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class ZookeeperEnsemble:
    """Three servers that go on as long as two of them live."""

    def __init__(self, folder: Path, count: int = 3, tick_ms: int = TICK_MS) -> None:
        numbers = range(1, count + 1)
        members = [f"server.{number}=127.0.0.1:{free_port()}:{free_port()}" for number in numbers]
        self.servers = [
            ZookeeperServer(folder / f"zookeeper-{number}", number, members, tick_ms) for number in numbers
        ]

    @property
    def address(self) -> str:
        """All servers, as in zookeeper://ADDRESS/path."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> Self:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait()
        return self

    def leader(self) -> ZookeeperServer:
        return next(server for server in self.servers if "Mode: leader" in server.ask("srvr"))

    def follower(self) -> ZookeeperServer:
        return next(server for server in self.servers if "Mode: follower" in server.ask("srvr"))

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def command_line(address: str, *words: str) -> str:
    """What ZooKeeper's own zkCli.sh prints for a command."""
    environment = {**os.environ, "JAVA_OPTS": "-Xmx64m", "ZOO_LOG_DIR": "/tmp"}
    done = subprocess.run(
        ["sh", str(COMMAND_LINE), "-server", address, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout
