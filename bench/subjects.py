"""The brokers under test, behind one small face: start, stop, and where they listen and write."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from bench.apache_kafka import REPOSITORY, KafkaBroker
from bench.process import wait_for_exit
from bench.wire import cluster_is_ready
from millstream.testing.ports import free_port

SETTINGS = {
    "log.segment.delete.delay.ms": "1000",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "5",
    "group.initial.rebalance.delay.ms": "0",
}
"""What both brokers are given in every run; all else is their default."""

CONSOLE = "import sys; from millstream.cli.main import main; sys.exit(main())"
"""What the installed console command does, for an environment without it."""

MILLSTREAM, APACHE_KAFKA = "millstream", "apache-kafka"


class Broker(Protocol):
    """One broker process."""

    data: Path
    port: int

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def format(self) -> None: ...
    def launch(self) -> subprocess.Popen[bytes]: ...
    def start(self, timeout_seconds: float = 60) -> None: ...
    def stop(self, timeout_seconds: float = 30) -> None: ...
    def log_tail(self, characters: int = 3000) -> str: ...


class MillstreamBroker:
    """`millstream serve` in a process of its own, from the environment that runs the benchmark."""

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log_path = folder / "broker.log"
        self.port = free_port()
        self.settings = dict(settings or {})
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError("Millstream is not running: start() it first")
        return self.process.pid

    def command(self) -> list[str]:
        console = Path(sys.executable).with_name("millstream")
        program = [str(console)] if console.exists() else [sys.executable, "-c", CONSOLE]
        options = [part for key, value in self.settings.items() for part in ("-o", f"{key}={value}")]
        return [*program, "serve", "--listen", self.bootstrap, "--data", str(self.data), *options]

    def format(self) -> None:
        """Nothing to do beforehand: the first start makes the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)

    def launch(self) -> subprocess.Popen[bytes]:
        if self.process is not None:
            raise RuntimeError("Millstream is running already")
        path = os.pathsep.join(filter(None, [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        return self.process

    def start(self, timeout_seconds: float = 60) -> None:
        self.format()
        process = self.launch()
        deadline = time.monotonic() + timeout_seconds
        while not cluster_is_ready(self.port):
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop(5)
                raise RuntimeError(f"Millstream did not start:\n{self.log_tail()}")
            time.sleep(0.02)

    def log_tail(self, characters: int = 3000) -> str:
        return self.log_path.read_text(errors="replace")[-characters:] if self.log_path.exists() else ""

    def stop(self, timeout_seconds: float = 30) -> None:
        process, self.process = self.process, None
        if process is not None:
            wait_for_exit(process, signal.SIGTERM, timeout_seconds)


class Subject:
    """One kind of broker: a shared process that most workloads use, and fresh ones for those that ask.

    `label` names it in the tables; two subjects of one kind (to see the noise) have different labels.
    """

    def __init__(self, kind: str, label: str, folder: Path) -> None:
        self.kind = kind
        self.label = label
        self._folder = folder / label
        self._shared: Broker | None = None
        self._made = 0

    def new_folder(self) -> Path:
        """A folder that no other broker of this subject has, not made yet."""
        self._made += 1
        return self._folder / str(self._made)

    def make(self, settings: Mapping[str, str] | None = None) -> Broker:
        """A broker with an empty folder of its own, not started."""
        folder = self.new_folder()
        folder.mkdir(parents=True)
        merged = {**SETTINGS, **(settings or {})}
        if self.kind == APACHE_KAFKA:
            return KafkaBroker(folder, heap="1g", settings=merged)
        return MillstreamBroker(folder, settings=merged)

    def shared(self) -> Broker:
        if self._shared is None:
            self._shared = self.make()
            self._shared.start()
        return self._shared

    @property
    def has_shared(self) -> bool:
        return self._shared is not None

    def stop_shared(self) -> None:
        broker, self._shared = self._shared, None
        if broker is not None:
            discard(broker)

    @contextlib.contextmanager
    def fresh(self, settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
        """A broker started for one measurement; its folder is removed at the end."""
        broker = self.make(settings)
        try:
            broker.start()
            yield broker
        finally:
            discard(broker)


def discard(broker: Broker) -> None:
    """Stop a broker and remove its data (not its log)."""
    broker.stop()
    shutil.rmtree(broker.data, ignore_errors=True)
