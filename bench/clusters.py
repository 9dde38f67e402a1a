"""Clusters of three brokers under test, behind one small face."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench.apache_kafka import REPOSITORY, KafkaBroker, run_tool
from bench.process import Usage, resident_mb, wait_for_exit
from bench.subjects import APACHE_KAFKA, CONSOLE, SETTINGS
from bench.wire import WireError
from millstream.testing.ports import free_port, free_ports

COUNT = 3
READY_SECONDS = 90
HEAP = "700m"


class Cluster(Protocol):
    """Three brokers, each a process, on one machine."""

    data: Path
    ports: list[int]
    """By broker, in the order of their ids, which begin with 1."""

    @property
    def pids(self) -> list[int]: ...
    def format(self) -> None: ...
    def launch(self) -> None: ...
    def stop(self) -> None: ...
    def log_tail(self) -> str: ...


class MillstreamCluster:
    """`millstream serve --brokers 3`."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.data = folder / "data"
        first = free_ports(COUNT)
        self.ports = list(range(first, first + COUNT))
        self._settings = settings
        self._log_path = folder / "brokers.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pids(self) -> list[int]:
        if self._process is None:
            raise RuntimeError("Millstream is not running: launch() it first")
        return [int((self.data / f"broker-{one}" / "pid").read_text()) for one in range(1, COUNT + 1)]

    def format(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)

    def launch(self) -> None:
        console = Path(sys.executable).with_name("millstream")
        program = [str(console)] if console.exists() else [sys.executable, "-c", CONSOLE]
        options = [part for key, value in self._settings.items() for part in ("-o", f"{key}={value}")]
        where = ["--listen", f"127.0.0.1:{self.ports[0]}", "--data", str(self.data)]
        path = os.pathsep.join(filter(None, [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*program, "serve", "--brokers", str(COUNT), *where, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            wait_for_exit(process, signal.SIGTERM, 30)

    def log_tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-3000:]


class KafkaNode(KafkaBroker):
    """One of three nodes, each broker and controller (KRaft)."""

    def __init__(self, folder: Path, number: int, voters: str, cluster_id: str, **options: object) -> None:
        super().__init__(folder, heap=HEAP, **options)  # type: ignore[arg-type]
        self.number = number
        self.voters = voters
        self.cluster_id = cluster_id

    def format(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        if not (self.data / "meta.properties").exists():
            done = run_tool(
                "kafka.tools.StorageTool", ["format", "-t", self.cluster_id, "-c", str(properties)]
            )
            if done.returncode != 0:
                raise RuntimeError(
                    f"formatting Apache Kafka's storage failed:\n{done.stderr.decode()[-3000:]}"
                )

    def _properties(self) -> dict[str, str]:
        properties = super()._properties()
        del properties["controller.quorum.bootstrap.servers"]
        replicated = {
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
        }
        return {
            **properties,
            **replicated,
            "node.id": str(self.number),
            "controller.quorum.voters": self.voters,
        }


class KafkaCluster:
    """Three nodes of Apache Kafka."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.data = folder
        cluster_id = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        controllers = [free_port() for _ in range(COUNT)]
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
        self._nodes = [
            KafkaNode(folder / f"node-{number}", number, voters, cluster_id, settings=settings)
            for number in range(1, COUNT + 1)
        ]
        for node, port in zip(self._nodes, controllers, strict=True):
            node.controller_port = port
        self.ports = [node.port for node in self._nodes]

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self._nodes]

    def format(self) -> None:
        for node in self._nodes:
            node.format()

    def launch(self) -> None:
        for node in self._nodes:
            node.launch()

    def stop(self) -> None:
        for node in self._nodes:
            node.kill()

    def log_tail(self) -> str:
        return "\n".join(node.log_tail(1000) for node in self._nodes)


def make_cluster(kind: str, folder: Path) -> Cluster:
    """A cluster with an empty folder of its own, not started."""
    folder.mkdir(parents=True)
    return KafkaCluster(folder, SETTINGS) if kind == APACHE_KAFKA else MillstreamCluster(folder, SETTINGS)


def bootstrap_of(cluster: Cluster) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in cluster.ports)


def create_replicated(cluster: Cluster, topic: str, partitions: int) -> None:
    """Make a topic on all three, with min.insync.replicas 2; wait for the cluster if it is starting."""
    deadline = time.monotonic() + READY_SECONDS
    admin = AdminClient(
        {"bootstrap.servers": bootstrap_of(cluster), "log_level": 0, "error_cb": lambda _: None}
    )
    wanted = NewTopic(topic, partitions, COUNT, config={"min.insync.replicas": "2"})
    while True:
        try:
            admin.create_topics([wanted], request_timeout=10)[topic].result(15)
            return
        except (KafkaException, WireError) as error:
            if "ALREADY_EXISTS" in str(error):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{error}; the brokers say: {cluster.log_tail()}") from error
            time.sleep(0.02)


def discard_cluster(cluster: Cluster) -> None:
    cluster.stop()
    shutil.rmtree(cluster.data, ignore_errors=True)


class ClusterCpu:
    """CPU seconds of all brokers between two moments."""

    def __init__(self, cluster: Cluster) -> None:
        self._before = {pid: Usage.of(pid) for pid in cluster.pids}

    def seconds(self) -> float:
        return sum(Usage.of(pid).since(before) for pid, before in self._before.items())


def memory_mb(cluster: Cluster) -> float:
    """Resident memory of all brokers."""
    return sum(map(resident_mb, cluster.pids))
