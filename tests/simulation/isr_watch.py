"""Looks into a simulated cluster for what no client may ever come to see: a replica that may be elected and
does not have all that is committed.

Who may be elected is what the registry says, whoever is the controller. A broker counts from when a
controller has drawn the consequences of its registration: what a crash cost it is known then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from uuid import UUID

import msgspec

from millstream.broker.server import Broker
from millstream.cluster.partition import Partition
from millstream.controller import tree
from millstream.model import decode_uuid
from millstream.registry.memory import MemoryTree
from tests.simulation.history import History
from tests.simulation.node import Node

INTERVAL_S = 0.05


class IsrWatch:
    """Complains of each such replica, once."""

    def __init__(
        self, registry: MemoryTree, nodes: Sequence[Node], history: History, spared: Collection[str] = ()
    ) -> None:
        """`spared` are topics that ask for unclean elections."""
        self._registry = registry
        self._nodes = nodes
        self._history = history
        self._spared = spared
        self._found: set[tuple[str, int, int]] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            for place in self._lacking():
                if place not in self._found:
                    self._found.add(place)
                    topic, index, number = place
                    self._history.complaints.append(
                        f"broker {number} may be elected to lead {topic}-{index}, and lacks committed records"
                    )

    def _lacking(self) -> Iterator[tuple[str, int, int]]:
        registry = self._registry
        brokers = {node.number: node.broker for node in self._nodes if node.broker is not None}
        known = [number for number, broker in brokers.items() if self._is_known(number, broker)]
        deleted = {*registry.children(tree.DELETED_TOPICS), *self._spared}
        names = [name for name in registry.children(tree.TOPICS) if name not in deleted]
        for name, found in zip(names, registry.get_many([*map(tree.topic_path, names)]), strict=True):
            if found is None:
                continue
            topic_id, count = _topic(found.data)
            held = {number: broker.replicas.topic(name) for number, broker in brokers.items()}
            for index, written in enumerate(registry.get_many(_state_paths(name, count))):
                if written is None:
                    continue
                copies = [
                    (number, partition)
                    for number, partitions in held.items()
                    if (partition := partitions.get(index)) is not None and partition.topic_id == topic_id
                ]
                committed = max([partition.high_watermark for _, partition in copies], default=0)
                state, ends = _state(written.data), {number: _end_offset(each) for number, each in copies}
                for number in (*state.isr, *state.eligible):
                    if number in known and ends.get(number, 0) < committed:
                        yield name, index, number

    def _is_known(self, number: int, broker: Broker) -> bool:
        node, seen = self._registry.get_many([f"{tree.BROKERS}/{number}", f"{tree.SEEN_BROKERS}/{number}"])
        if node is None or seen is None or node.created != broker.broker_epoch:
            return False
        return msgspec.json.decode(seen.data, type=tree.SeenNode).epoch == node.created


@lru_cache(maxsize=1024)
def _topic(data: bytes) -> tuple[UUID, int]:
    """Its id, and how many partitions it has."""
    topic = msgspec.json.decode(data, type=tree.TopicNode)
    return decode_uuid(topic.topic_id), len(topic.partitions)


@lru_cache(maxsize=1024)
def _state_paths(name: str, count: int) -> list[str]:
    return [tree.state_path(name, index) for index in range(count)]


@lru_cache(maxsize=1024)
def _state(data: bytes) -> tree.StateNode:
    return msgspec.json.decode(data, type=tree.StateNode)


def _end_offset(partition: Partition) -> float:
    """Where a log ends; one whose disk failed may hold anything."""
    return float("inf") if partition.failure is not None else partition.log.end_offset
