"""Apache Kafka on the same hosts, for the same faults: what it passes, the checks do not ask too much of."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.apache_kafka import java_command, run_tool

from millstream.testing.member import WITH_PARENT, Member
from tests.chaos.cluster import PORT, HostedCluster
from tests.chaos.network import Network
from tests.processes import answers

CONTROLLER_PORT = 9093
HEAP = "400m"


class KafkaMember(Member):
    """One node, broker and controller at once (KRaft)."""

    def launch(self, words: Sequence[str]) -> None:
        if self.is_running:
            raise RuntimeError(f"node {self.id} runs already")
        self.is_paused = False
        command = java_command("kafka.Kafka", words, heap=HEAP)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*WITH_PARENT, *self._prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not answers(self.host, self.port):
            if not self.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"node {self.id} is not ready\n{self.output[-3000:]}")
            time.sleep(0.05)


class HostedKafka(HostedCluster):
    """Three nodes of Apache Kafka, one on each host."""

    def __init__(self, network: Network, brokers: int, config: Mapping[str, str], data: Path) -> None:
        super().__init__(network, brokers, config, data, None)
        del self.config["registry"]
        self._cluster_id = "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        self._brokers = brokers

    def _add(self, broker_id: int) -> Member:
        if broker_id not in self.members:
            self.members[broker_id] = KafkaMember(
                broker_id,
                PORT,
                self.data / f"broker-{broker_id}",
                self.data / f"broker-{broker_id}.out",
                host=self._network.address(broker_id),
                prefix=self._network.inside(broker_id),
            )
            self._format(broker_id)
        return self.members[broker_id]

    def _words(self, broker_id: int) -> list[str]:
        return [str(self.data / f"node-{broker_id}.properties")]

    def _format(self, broker_id: int) -> None:
        host = self._network.address(broker_id)
        voters = (
            f"{one}@{self._network.address(one)}:{CONTROLLER_PORT}" for one in range(1, self._brokers + 1)
        )
        values = {
            "process.roles": "broker,controller",
            "node.id": str(broker_id),
            "controller.quorum.voters": ",".join(voters),
            "listeners": f"PLAINTEXT://{host}:{PORT},CONTROLLER://{host}:{CONTROLLER_PORT}",
            "advertised.listeners": f"PLAINTEXT://{host}:{PORT}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data / f"broker-{broker_id}"),
            **self.config,
        }
        path = self.data / f"node-{broker_id}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        done = run_tool("kafka.tools.StorageTool", ["format", "-t", self._cluster_id, "-c", str(path)])
        if done.returncode != 0:
            raise RuntimeError(f"formatting Apache Kafka's storage failed:\n{done.stderr.decode()[-2000:]}")
