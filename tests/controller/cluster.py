"""Brokers of one cluster in one process and loop, over one registry: in memory, or in a SQLite file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.broker.server import Broker
from millstream.cluster.metadata import PartitionState
from millstream.config.broker import BrokerConfig
from millstream.controller.topics import NewTopic
from millstream.registry.contract import Registry
from millstream.registry.memory import MemoryRegistry, MemoryTree
from millstream.registry.sqlite import SqliteRegistry

SESSION_MS = 1500


class Cluster:
    """Brokers 1, 2, …; each with a folder of its own that outlives it."""

    def __init__(
        self, folder: Path, kind: str = "memory", count: int = 3, config: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.tree = MemoryTree()
        self._kind = kind
        self._config = dict(config or {})
        self.boot_id = ""
        """What brokers take for the machine's boot id when they start."""
        self.ids = range(1, count + 1)
        self.brokers: dict[int, Broker] = {}
        self.registries: dict[int, Registry] = {}

    async def __aenter__(self) -> Self:
        await asyncio.gather(*(self.start(broker_id) for broker_id in self.ids))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(broker.stop() for broker in self.brokers.values()))

    def _registry(self) -> Registry:
        if self._kind == "memory":
            return MemoryRegistry(self.tree, SESSION_MS)
        return SqliteRegistry(str(self.folder / "registry.db"), SESSION_MS)

    async def start(self, broker_id: int, config: Mapping[str, str] | None = None) -> Broker:
        values = {
            "node.id": str(broker_id),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self.folder / f"broker-{broker_id}"),
            "registry.session.timeout.ms": str(SESSION_MS),
            "offsets.topic.num.partitions": "2",
            **self._config,
            **(config or {}),
        }
        registry = self._registry()
        broker = Broker(BrokerConfig(values), registry=registry, boot_id=self.boot_id)
        await broker.start()
        self.brokers[broker_id] = broker
        self.registries[broker_id] = registry
        return broker

    async def stop(self, broker_id: int) -> None:
        await self.brokers.pop(broker_id).stop()

    def lose(self, broker_id: int) -> None:
        """Take a broker's session with the registry away; it begins a new one by itself."""
        registry = self.registries[broker_id]
        assert isinstance(registry, MemoryRegistry)
        registry.lose()

    @property
    def controller(self) -> Broker:
        (found,) = [broker for broker in self.brokers.values() if broker.controller.is_active]
        return found

    @property
    def follower(self) -> Broker:
        """A broker that is not the controller."""
        return next(broker for broker in self.brokers.values() if not broker.controller.is_active)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 40) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)

    async def until_controller(self) -> Broker:
        await self.until(lambda: sum(each.controller.is_active for each in self.brokers.values()) == 1)
        return self.controller

    async def create(
        self,
        name: str,
        partitions: int = 1,
        replicas: int = 3,
        assignment: Mapping[int, list[int]] | None = None,
        **configs: str,
    ) -> None:
        wanted = (
            NewTopic(name, assignment=assignment, configs=_dotted(configs))
            if assignment
            else NewTopic(name, partitions, replicas, configs=_dotted(configs))
        )
        await self.controller.controller.create_topic(wanted)

    def states(self, name: str, at: int | None = None) -> list[PartitionState]:
        """A topic's partitions as a broker knows them; as all of them do, if none is named."""
        brokers = self.brokers.values() if at is None else [self.brokers[at]]
        found = [broker.metadata.topic(name).partitions for broker in brokers]
        assert all(each == found[0] for each in found), found
        return found[0]

    def agree(self, name: str, condition: Callable[[PartitionState], bool]) -> bool:
        """Whether all brokers say this of all partitions of a topic."""
        return all(
            condition(state)
            for broker in self.brokers.values()
            for state in broker.metadata.topic(name).partitions
        )

    async def until_in_sync(self, name: str, brokers: Iterable[int]) -> None:
        wanted = set(brokers)
        await self.until(lambda: self.agree(name, lambda state: set(state.isr) == wanted))

    def leaders(self, name: str) -> list[list[int]]:
        """The brokers that really lead, for each partition."""
        count = len(next(iter(self.brokers.values())).metadata.topic(name).partitions)
        return [
            [
                broker_id
                for broker_id, broker in self.brokers.items()
                if index in broker.replicas.topic(name) and broker.replicas.topic(name)[index].is_leader
            ]
            for index in range(count)
        ]


def _dotted(configs: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in configs.items()}
