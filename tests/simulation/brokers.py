"""The way of a simulated client to the brokers it needs: leaders, coordinators, the controller."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from millstream.errors import error_for
from millstream.protocol.messages import FindCoordinatorRequest, MetadataRequest
from tests.simulation.client import Client

Address = tuple[str, int]

GROUP, TRANSACTION = 0, 1
METADATA_VERSION = 12
FIND_VERSION = 4


class NoWay(OSError):
    """Nobody is known now who could be asked."""


class Brokers:
    """Asks the right broker once. OSError: no answer, and what was known of the way is forgotten."""

    def __init__(self, bootstrap: Sequence[Address], random: Random) -> None:
        self.bootstrap = list(bootstrap)
        self.random = random
        self._leaders: dict[tuple[str, int], Address] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._controller: Address | None = None
        self._clients: dict[tuple[Address, str], Client] = {}

    def client(self, address: Address, purpose: str = "") -> Client:
        found = self._clients.get((address, purpose))
        if found is None:
            found = self._clients[address, purpose] = Client(*address, "")
        return found

    async def ask_any(self, request: Any, version: int) -> Any:
        return await self.client(self.random.choice(self.bootstrap)).request(request, version)

    async def leader(self, topic: str, partition: int) -> Address:
        """Where the partition's leader is reached."""
        return self._leaders.get((topic, partition)) or await self._find_leader(topic, partition)

    async def ask_leader(self, topic: str, partition: int, request: Any, version: int) -> Any:
        address = await self.leader(topic, partition)
        try:
            return await self.client(address, f"{topic}-{partition}").request(request, version)
        except OSError:
            self.forget_leader(topic, partition)
            raise

    async def ask_coordinator(self, kind: int, key: str, request: Any, version: int) -> Any:
        address = self._coordinators.get((kind, key))
        if address is None:
            address = await self._find_coordinator(kind, key)
        try:
            return await self.client(address, f"{kind} {key}").request(request, version)
        except OSError:
            self.forget_coordinator(kind, key)
            raise

    async def ask_controller(self, request: Any, version: int) -> Any:
        if self._controller is None:
            await self._learn(None)
        if self._controller is None:
            raise NoWay("nobody knows the controller")
        try:
            return await self.client(self._controller).request(request, version)
        except OSError:
            self._controller = None
            raise

    # Leader epochs (KIP-320): a broker that knows less than its client is not believed

    def epoch(self, topic: str, partition: int) -> int:
        """The latest leader epoch that is known, -1 for none."""
        return self._epochs.get((topic, partition), -1)

    def saw_epoch(self, topic: str, partition: int, epoch: int) -> None:
        """Records, or a committed position, tell of an epoch; who leads in an earlier one leads no more."""
        if epoch > self.epoch(topic, partition):
            self._epochs[topic, partition] = epoch
            self.forget_leader(topic, partition)

    # What an error code may tell

    def forget_leader(self, topic: str, partition: int) -> None:
        self._leaders.pop((topic, partition), None)

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    def forget_controller(self) -> None:
        self._controller = None

    # Finding out

    async def _find_leader(self, topic: str, partition: int) -> Address:
        await self._learn(topic)
        found = self._leaders.get((topic, partition))
        if found is None:
            raise NoWay(f"nobody leads {topic}-{partition}")
        return found

    async def _learn(self, topic: str | None) -> None:
        asked = [] if topic is None else [MetadataRequest.MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        answer = await self.ask_any(request, METADATA_VERSION)
        addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._controller = addresses.get(answer.controller_id)
        for found in answer.topics:
            for each in found.partitions:
                address, place = addresses.get(each.leader_id), (found.name, each.partition_index)
                if address is None or each.error_code or each.leader_epoch < self.epoch(*place):
                    self._leaders.pop(place, None)
                else:
                    self._leaders[place] = address
                    self._epochs[place] = each.leader_epoch

    async def _find_coordinator(self, kind: int, key: str) -> Address:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        (found,) = (await self.ask_any(request, FIND_VERSION)).coordinators
        if found.error_code:
            raise NoWay(f"no coordinator of {key}: {error_for(found.error_code).__name__}")
        address = self._coordinators[kind, key] = (found.host, found.port)
        return address
