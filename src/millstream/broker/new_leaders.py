"""Telling a client that asked the wrong broker who leads, in the very answer that refuses it (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millstream.broker.router import Context
from millstream.cluster.metadata import NO_LEADER, BrokerNode
from millstream.errors import FencedLeaderEpoch, NotLeaderOrFollower

WRONG_BROKER = (NotLeaderOrFollower.code, FencedLeaderEpoch.code)
"""The errors with which another leader is told."""


class NewLeader(NamedTuple):
    """Who leads a partition, and since when."""

    leader_id: int
    leader_epoch: int


class NewLeaders:
    """The leaders that one answer tells of, and the addresses under which its client reaches them."""

    def __init__(self, ctx: Context) -> None:
        self._broker = ctx.broker
        self._listener = ctx.listener
        self._nodes: dict[int, BrokerNode] = {}

    def find(self, topic: str, index: int) -> NewLeader | None:
        """Who leads a partition instead of this broker; None if that is not known yet."""
        metadata = self._broker.metadata
        known = metadata.topics.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return None
        state = known.partitions[index]
        node = metadata.brokers.get(state.leader)
        if state.leader in (NO_LEADER, self._broker.config.node_id) or node is None:
            return None
        self._nodes[state.leader] = node
        return NewLeader(state.leader, state.leader_epoch)

    def endpoints(self) -> Iterable[tuple[int, str, int, str | None]]:
        """Id, host, port and rack of each leader that was found."""
        for node in self._nodes.values():
            endpoint = node.endpoint(self._listener)
            if endpoint is not None:
                yield node.broker_id, endpoint.host, endpoint.port, node.rack
