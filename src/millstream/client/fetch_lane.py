"""The ways on which Fetches go out to brokers, and those that are out."""

from __future__ import annotations

import asyncio

from millstream.client.cluster import Cluster
from millstream.client.fetch_session import FetchSession
from millstream.client.metadata import Partition
from millstream.client.subscription import PartitionState
from millstream.model import TopicPartition


class Lane:
    """Connections of their own for Fetches, each of which may wait for records for long.

    A broker answers the requests of a connection in order. With two lanes a partition that becomes
    free while the first waits for others is fetched at once.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sessions: dict[int, FetchSession] = {}
        self.flights: dict[int, Flight] = {}

    def landed(self, node: int, flight: Flight) -> None:
        """A Fetch has ended, be it that it was given up before it began. May be called twice."""
        if self.flights.get(node) is flight:
            del self.flights[node]
            flight.land()


class Flight:
    """A Fetch that is out, and for which state of each partition it was sent."""

    def __init__(self, wanted: dict[PartitionState, Partition]) -> None:
        self.wanted = wanted
        self.turns: dict[TopicPartition, tuple[PartitionState | None, int]] = {
            state.partition: (state, state.turn) for state in wanted
        }
        self.offsets = {state.partition: state.fetch_position for state in wanted}
        self.task: asyncio.Task[None] | None = None
        for state in wanted:
            state.is_fetching = True

    @property
    def is_awaited(self) -> bool:
        """Whether somebody still wants the answer: not if there was a seek in all its partitions."""
        return any(self.state(partition) is not None for partition in self.turns)

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """The state that an answer is for, if it still asks for that."""
        state, turn = self.turns.get(partition, (None, 0))
        if state is None or not state.is_live or state.turn != turn:
            return None
        return state if state.fetch_position == self.offsets[partition] else None

    def land(self) -> None:
        for state in self.wanted:
            if self.state(state.partition) is not None:
                state.is_fetching = False
