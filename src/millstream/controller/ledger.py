"""What the controller decided, written down: in the registry, in its picture, and in the feed to brokers.

Every write is a multi that checks the controller's epoch. Large ones are made in several, none of which
leaves anything that the next controller could not go on with: a partition without a state gets its first
one, and a state always belongs to the replicas that the topic's node says.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millstream.cluster.metadata import PartitionState, Topic
from millstream.controller import tree
from millstream.controller.feed import Feed
from millstream.controller.office import Office
from millstream.controller.picture import Picture
from millstream.controller.reading import partition_numbers, partition_removals, removals
from millstream.metrics import Counter
from millstream.registry.contract import Create, Delete, NodeExists, NotEmpty, Operation, Registry, Set

log = logging.getLogger(__name__)

MAX_OPERATIONS = 1000
"""How many nodes one multi changes at most, about: ZooKeeper takes 1 MB."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A state that a partition is to have."""

    topic: Topic
    index: int
    state: PartitionState
    is_unclean: bool = False
    """Whether the new leader may lack records that were acknowledged."""


class Ledger:
    """Writes decisions, one after another."""

    def __init__(
        self, registry: Registry, office: Office, picture: Picture, feed: Feed, unclean_elections: Counter
    ) -> None:
        self._registry = registry
        self._unclean_elections = unclean_elections
        self._office = office
        self._picture = picture
        self._feed = feed

    # Partitions

    async def decide(self, decisions: Iterable[Decision], also: Sequence[Operation] = ()) -> None:
        """Give partitions new states; `also` is written with the last of them."""
        batches = list(_batches(decisions))
        for batch in batches or [[]]:
            is_last = not batches or batch is batches[-1]
            await self._decide(batch, also if is_last else ())

    async def _decide(self, batch: list[Decision], also: Sequence[Operation]) -> None:
        operations: list[Operation] = []
        positions: list[int] = []
        moved: dict[str, Topic] = {}
        for each in batch:
            if _is_moved(each.topic.partitions[each.index], each.state):
                topic = each.topic
                moved.setdefault(topic.name, replace(topic, partitions=list(topic.partitions)))
        for each in batch:
            topic, version = each.topic, each.topic.partitions[each.index].version
            if topic.name in moved:
                moved[topic.name].partitions[each.index] = each.state
            operations += self._state_operations(topic, each.index, each.state, version)
            positions.append(len(operations) - 1)
        operations += [
            Set(tree.topic_path(name), tree.dump(tree.node_of(topic))) for name, topic in moved.items()
        ]
        operations += also
        if not operations:
            return
        versions = await self._office.write(operations)
        changed: dict[str, set[int]] = {}
        for each, position in zip(batch, positions, strict=True):
            if each.is_unclean:
                self._tell_unclean(each)
            each.topic.partitions[each.index] = replace(each.state, version=versions[position])
            changed.setdefault(each.topic.name, set()).add(each.index)
        if changed:
            self._feed.publish(changed)

    def _tell_unclean(self, decision: Decision) -> None:
        before, topic = decision.topic.partitions[decision.index], decision.topic.name
        self._unclean_elections.value += 1
        log.warning(
            "unclean election: broker %d leads %s-%d from leader epoch %d on; in sync were %s: what only "
            "they have is lost",
            decision.state.leader,
            topic,
            decision.index,
            decision.state.leader_epoch,
            before.isr or before.doubted,
        )

    def _state_operations(
        self, topic: Topic, index: int, state: PartitionState, version: int
    ) -> list[Operation]:
        path = tree.state_path(topic.name, index)
        data = tree.dump(tree.state_of(state, self._office.epoch))
        if version >= 0:
            return [Set(path, data, version)]
        return [Create(path.removesuffix("/state")), Create(path, data)]

    # Topics

    async def add_topic(self, topic: Topic) -> None:
        """Write a new topic; it is in the picture and the feed once `announce` says so.

        A configuration, or a marker of its deletion, that stands there is of no topic: it goes.
        """
        node, config = tree.topic_path(topic.name), f"{tree.TOPIC_CONFIGS}/{topic.name}"
        strays = [config, f"{tree.DELETED_TOPICS}/{topic.name}"]
        existing = await self._registry.get_many(strays)
        first: list[Operation] = [
            Delete(path) for path, found in zip(strays, existing, strict=True) if found is not None
        ]
        first += [Create(node, tree.dump(tree.node_of(topic))), Create(f"{node}/partitions")]
        if topic.overrides:
            first.append(Create(config, tree.dump(tree.ConfigNode(dict(topic.overrides)))))
        await self._write_states(topic, 0, first)

    async def grow_topic(self, topic: Topic, first: int) -> None:
        """Write a topic's new partitions, from `first` on. Nodes that a failure left are replaced."""
        name = topic.name
        strays = [number for number in await partition_numbers(self._registry, name) if number >= first]
        removals = await partition_removals(self._registry, name, strays)
        await self._write_states(
            topic, first, [*removals, Set(tree.topic_path(name), tree.dump(tree.node_of(topic)))]
        )

    async def _write_states(self, topic: Topic, first: int, operations: list[Operation]) -> None:
        for index in range(first, len(topic.partitions)):
            if len(operations) >= MAX_OPERATIONS:
                await self._office.write(operations)
                operations = []
            operations += self._state_operations(topic, index, topic.partitions[index], -1)
        await self._office.write(operations)

    def announce(self, topic: Topic, first: int = 0) -> None:
        """Take a written topic into the picture, and tell the brokers."""
        self._picture.put(topic)
        self._feed.publish({topic.name: range(first, len(topic.partitions))})

    async def mark_deleted(self, topic: Topic) -> None:
        """A deletion begins: from now on it goes on until the topic is gone."""
        try:
            await self._office.write([Create(f"{tree.DELETED_TOPICS}/{topic.name}")])
        except NodeExists:
            pass
        if topic.name in self._picture.topics:
            self._picture.remove(topic.name)
        self._picture.deleted[topic.name] = topic
        self._feed.publish(deleted={topic.topic_id: topic.name})

    async def remove_topic(self, name: str, numbers: Sequence[int]) -> None:
        """Remove what there is of a deleted topic's nodes; the marker goes last, with the topic's own.

        One that outlived it would be taken for the deletion of a later topic of that name.
        """
        node = tree.topic_path(name)
        try:
            operations = await partition_removals(self._registry, name, numbers)
            await self._remove(node, name, operations)
        except NotEmpty:  # somebody wrote more there
            await self._remove(node, name, (await removals(self._registry, node))[:-1])
        self._picture.deleted.pop(name, None)

    async def _remove(self, node: str, name: str, operations: list[Operation]) -> None:
        rest = [
            f"{node}/partitions",
            node,
            f"{tree.TOPIC_CONFIGS}/{name}",
            f"{tree.DELETED_TOPICS}/{name}",
        ]
        existing = await self._registry.get_many(rest)
        removed = {operation.path for operation in operations}
        while len(operations) > MAX_OPERATIONS:
            await self._office.write(operations[:MAX_OPERATIONS])
            operations = operations[MAX_OPERATIONS:]
        operations += [
            Delete(path)
            for path, found in zip(rest, existing, strict=True)
            if found is not None and path not in removed
        ]
        await self._office.write(operations)

    # Configurations

    async def config_operation(self, path: str, config: Mapping[str, str]) -> Operation:
        data = tree.dump(tree.ConfigNode(dict(config)))
        is_new = await self._registry.exists(path) is None
        return Create(path, data) if is_new else Set(path, data)


def _is_moved(before: PartitionState, after: PartitionState) -> bool:
    """Whether the topic's node has to be written too."""
    return (before.replicas, before.adding, before.removing) != (after.replicas, after.adding, after.removing)


def _batches(decisions: Iterable[Decision]) -> Iterator[list[Decision]]:
    """Decisions in lists of a size that one multi takes; those of a topic stay together if they can."""
    batch: list[Decision] = []
    for decision in decisions:
        if len(batch) >= MAX_OPERATIONS:
            yield batch
            batch = []
        batch.append(decision)
    if batch:
        yield batch
