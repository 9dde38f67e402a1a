"""A cluster whose brokers, and ZooKeeper servers, are on hosts of their own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from millstream.testing import Cluster
from millstream.testing.member import Member
from tests.chaos.network import Network
from tests.zookeeper import ZookeeperServer

PORT = 9092
PEER_PORT = 9093
ZOOKEEPER_PORT = 2181


class HostedCluster(Cluster):
    """One broker on each host of a network; the folder, and a registry in SQLite, are shared."""

    def __init__(
        self, network: Network, brokers: int, config: Mapping[str, str], data: Path, registry: str | None
    ) -> None:
        factor = str(min(3, brokers))
        own = {
            "offsets.topic.replication.factor": factor,
            "transaction.state.log.replication.factor": factor,
            "transaction.state.log.min.isr": "2" if brokers >= 3 else "1",
        }
        super().__init__(brokers, {**own, **config}, data=data, registry=registry or f"sqlite:{data}")
        self._network = network
        self._is_on_one_machine = registry is None

    def _add(self, broker_id: int) -> Member:
        member = self.members.get(broker_id)
        if member is None:
            name = f"broker-{broker_id}"
            member = Member(
                broker_id,
                PORT,
                self.data / name,
                self.data / f"{name}.out",
                host=self._network.address(broker_id),
                prefix=self._network.inside(broker_id),
            )
            self.members[broker_id] = member
        return member

    def _words(self, broker_id: int) -> list[str]:
        options = [word for key, value in self.config.items() for word in ("-o", f"{key}={value}")]
        host, folder = self._network.address(broker_id), self.data / f"broker-{broker_id}"
        place = ["--data", str(folder), "--log-level", "info", "-o", f"node.id={broker_id}"]
        if not self._is_on_one_machine:
            return ["--listen", f"{host}:{PORT}", *place, *options]
        listen = f"listeners=PLAINTEXT://{host}:{PORT},PEERS://{host}:{PEER_PORT}"  # others must reach it
        names = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PEERS:PLAINTEXT"
        return [*place, *options, "-o", listen, "-o", names, "-o", "inter.broker.listener.name=PEERS"]

    def replicas(self, topic: str, partition: int) -> dict[int, bytes]:
        """The records of a partition as they lie in each broker's folder."""
        found = {}
        for broker_id, member in self.members.items():
            folder = member.folder / f"{topic}-{partition}"
            found[broker_id] = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
        return found


def zookeeper_servers(network: Network, folder: Path, count: int = 3) -> list[ZookeeperServer]:
    """A ZooKeeper ensemble, one server on each host; not started."""
    numbers = range(1, count + 1)
    ports = itertools.repeat((2888, 3888))
    members = [
        f"server.{number}={network.address(number)}:{peer}:{election}"
        for number, (peer, election) in zip(numbers, ports, strict=False)
    ]
    return [
        ZookeeperServer(
            folder / f"zookeeper-{number}",
            number,
            members,
            host=network.address(number),
            port=ZOOKEEPER_PORT,
            prefix=network.inside(number),
        )
        for number in numbers
    ]
