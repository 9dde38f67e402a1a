"""A Spark standalone cluster on loopback: a master and workers, each on an address of its own.

Spark speculates only where another host is free, and addresses are hosts to it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.processes import WITH_PARENT, free_port, until

START_SECONDS = 300.0


class StandaloneCluster:
    """`with StandaloneCluster(folder, workers=2) as cluster:` then `cluster.master` is what to connect to."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """Where it listens: on another port than it was told to, if somebody has that by now."""
        started = re.search(r"Starting Spark master at (spark://\S+)", self.log)
        assert started is not None, "the master has not started"
        return started[1]

    @property
    def pids(self) -> list[int]:
        """Master and workers; executors are children of these."""
        return [process.pid for process in self._processes]

    @property
    def executors(self) -> list[tuple[str, str]]:
        """Where executors ran: the worker, and the id of the app."""
        found = [path for path in self._folder.glob("worker-*/app-*/*") if path.is_dir()]
        return [(path.parent.parent.name, path.parent.name) for path in found]

    @property
    def log(self) -> str:
        return (self._folder / "cluster.out").read_text(errors="replace")

    def __enter__(self) -> Self:
        deploy = "org.apache.spark.deploy"
        where = ["--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"]
        self._launch(f"{deploy}.master.Master", *where)
        until(lambda: "I have been elected leader" in self.log, START_SECONDS, "the master is there")
        for number in range(self._workers):
            own = ["--host", f"127.0.0.{number + 2}", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            own += ["--work-dir", str(self._folder / f"worker-{number}")]
            self._launch(f"{deploy}.worker.Worker", *own, self.master)
        until(
            lambda: self.log.count("Successfully registered with master") == self._workers,
            START_SECONDS,
            "the workers are there",
        )
        return self

    def _launch(self, name: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_HOME": str(home),
        }
        with (self._folder / "cluster.out").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [*WITH_PARENT, str(home / "bin" / "spark-class"), name, *arguments],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(30)
