"""What is known of a simulated cluster from inside: its partitions, their replicas, and how these differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from millstream.cluster.metadata import PartitionState
from millstream.cluster.partition import Partition
from millstream.controller import tree
from millstream.registry.memory import MemoryTree
from tests.simulation.cluster_trimmer import Seen
from tests.simulation.ledger import Place
from tests.simulation.node import Node
from tests.simulation.operator import Operator
from tests.simulation.replica_content import differences
from tests.simulation.unclean_topic import NAME as UNCLEAN_TOPIC


class ClusterView:
    """All brokers of a cluster and their registry."""

    def __init__(self, nodes: Sequence[Node], registry: MemoryTree) -> None:
        self._nodes = nodes
        self._registry = registry

    def states(self) -> Iterator[tuple[Place, PartitionState]]:
        """The partitions as the controller knows them."""
        for node in self._nodes:
            if node.broker is not None and node.broker.controller.is_active:
                for topic in node.broker.metadata.topics.values():
                    for index, state in enumerate(topic.partitions):
                        yield (topic.name, index), state
                return

    def replicas(self, place: Place) -> dict[str, Partition]:
        found = {}
        for node in self._nodes:
            if node.broker is not None:
                held = node.broker.replicas.topic(place[0]).get(place[1])
                if held is not None:
                    found[node.name] = held
        return found

    def in_sync(self, place: Place) -> Seen:
        """The replicas that are in sync as the registry has it, of brokers that are registered."""
        written = self._registry.get_many([tree.state_path(*place)])[0]
        if written is None:
            return Seen(b"", {})
        found, held = {}, self.replicas(place)
        for number in msgspec.json.decode(written.data, type=tree.StateNode).isr:
            registered = self._registry.get_many([f"{tree.BROKERS}/{number}"])[0]
            name = f"broker-{number}"
            if registered is not None and name in held:
                found[name] = (held[name], registered.created)
        return Seen(written.data, found)

    def is_whole(self) -> bool:
        """All replicas of all partitions are in sync, and led."""
        if not all(node.is_serving for node in self._nodes):
            return False
        states = list(self.states())
        return bool(states) and all(
            state.leader >= 0
            and len(state.isr) == len(state.replicas)
            and not (state.adding or state.removing)
            for _, state in states
        )

    def is_quiet(self) -> bool:
        """All replicas have everything, and know that it is committed."""
        return self.is_whole() and all(
            len({replica.log.end_offset for replica in replicas.values()}) == 1
            and all(replica.high_watermark == replica.log.end_offset for replica in replicas.values())
            for replicas in (self.replicas(place) for place, _ in self.states())
        )

    def unwell(self) -> Iterator[str]:
        """The partitions that are not whole, and what each broker makes of them."""
        for place, state in self.states():
            if state.leader < 0 or len(state.isr) < len(state.replicas):
                seen = {
                    name: (
                        held.leader_epoch,
                        held.log.end_offset,
                        held.high_watermark,
                        held.leadership is not None,
                    )
                    for name, held in self.replicas(place).items()
                }
                yield f"{place}: {state}; epoch, end, high watermark, whether it leads: {seen}"

    def differences(self, compacted: Sequence[str]) -> Iterator[str]:
        """All replicas of a partition hold the same bytes, and know the same of them; those of `compacted`
        topics, the same table."""
        for place, state in self.states():
            replicas = self.replicas(place)
            if len(replicas) != len(state.replicas):
                yield f"{place} is held by {list(replicas)}, not {state.replicas}"
            least = max((each.log.config.min_insync_replicas for each in replicas.values()), default=0)
            if len(state.isr) <= least and place[0] != UNCLEAN_TOPIC:
                # A hurried operator may have left so few that a damaged one is needed, and is not mended.
                replicas = {name: each for name, each in replicas.items() if each.log.damage is None}
            for text in differences(replicas, are_compacted=place[0] in compacted):
                yield f"the replicas of {place} {text}"

    def wrong_topics(self, operator: Operator) -> Iterator[str]:
        """Topics that were made are there, those that were deleted are not, and all brokers know the same."""
        known = {place[0] for place, _ in self.states()}
        for name in sorted(operator.made - known):
            yield f"the topic {name} was made, and is not there"
        for name in sorted(operator.deleted & known):
            yield f"the topic {name} was deleted, and is there"
        for node in self._nodes:
            assert node.broker is not None
            seen = set(node.broker.metadata.topics)
            held = {partition.name.topic for partition in node.broker.replicas}
            if seen != known or held - known:
                yield f"{node.name} knows {sorted(seen)} and holds {sorted(held)}, not {sorted(known)}"
