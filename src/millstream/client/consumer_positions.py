"""Where a consumer begins: at the group's committed offset, at a time, or as its reset policy says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from millstream.client.cluster import Cluster
from millstream.client.consumer_errors import LogTruncated, NoOffset
from millstream.client.consumer_options import ConsumerOptions
from millstream.client.deadline import Deadline
from millstream.client.errors import raise_for
from millstream.client.group_offsets import fetch_committed
from millstream.client.offsets import LATEST, list_offsets
from millstream.client.subscription import NOT_KNOWN, PartitionState
from millstream.errors import KafkaError
from millstream.protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse


class Positions:
    """Looks up positions for partitions that have none, and checks those under a new leader."""

    def __init__(self, cluster: Cluster, coordinators: Cluster, options: ConsumerOptions) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._options = options

    async def find(self, states: Iterable[PartitionState]) -> list[KafkaError]:
        """Give each state a position; the errors of those that stay without one."""
        deadline = Deadline(self._options.request_timeout_ms)
        turns = {state: state.turn for state in states}
        fresh = [state for state in turns if state.reset_to is None]
        if self._options.group is not None and fresh:
            found = await fetch_committed(
                self._coordinators,
                self._options.group,
                deadline,
                partitions=[state.partition for state in fresh],
            )
            for state in fresh:
                committed = found.get(state.partition)
                if committed is not None and state.turn == turns.pop(state):
                    state.seek(committed.offset, committed.leader_epoch)
        by_topic: dict[str, dict[PartitionState, int]] = defaultdict(dict)
        for state, turn in turns.items():
            by_topic[state.partition.topic][state] = turn
        results = await asyncio.gather(
            *(self._begin(turns, deadline) for turns in by_topic.values()), return_exceptions=True
        )
        errors: list[KafkaError] = []
        for result in results:
            if isinstance(result, KafkaError):
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
        return errors

    async def _begin(self, turns: dict[PartitionState, int], deadline: Deadline) -> None:
        """Begin partitions of one topic at the times that are asked for, or by the policy."""
        times: dict[PartitionState, int] = {}
        for state in turns:
            time_ms = state.reset_to if state.reset_to is not None else self._options.reset_to
            if time_ms is None:
                raise NoOffset(
                    f'partition {state.partition} has no committed offset, and offset_reset is "none"',
                    (state.partition,),
                )
            times[state] = time_ms
        isolation = self._options.isolation
        asked = {state.partition: time_ms for state, time_ms in times.items()}
        found = await list_offsets(self._cluster, asked, deadline, isolation_level=isolation)
        too_late = {partition: LATEST for partition, place in found.items() if place.offset < 0}
        if too_late:
            found |= await list_offsets(self._cluster, too_late, deadline, isolation_level=isolation)
        for state, turn in turns.items():
            if state.turn == turn and state.fetch_position == NOT_KNOWN:
                state.seek(found[state.partition].offset)

    async def check(self, state: PartitionState, leader: int, leader_epoch: int) -> tuple[int, int] | None:
        """See that the records before a position are still those that were read (KIP-320).

        Gives the offset at which to go on instead, and its leader epoch, where a new leader never had some
        of those that were fetched. Where it never had some that the caller got, that is a LogTruncated
        if the policy lets nothing be chosen.
        """
        turn, position, epoch = state.turn, state.position, state.consumed_epoch
        deadline = Deadline(self._options.request_timeout_ms)
        topic, index = state.partition
        request = OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                            partition=index, current_leader_epoch=leader_epoch, leader_epoch=epoch
                        )
                    ],
                )
            ],
        )
        response = await self._cluster.request(leader, request, OffsetForLeaderEpochResponse, deadline)
        end = response.topics[0].partitions[0]
        raise_for(end.error_code, None, f"partition {state.partition}")
        if state.turn != turn or end.end_offset < 0 or end.end_offset >= state.fetch_position:
            return None
        if end.end_offset >= position:
            return position, epoch
        if self._options.reset_to is None:
            raise LogTruncated(
                f"partition {state.partition} lost the records from {end.end_offset} to {position - 1}",
                state.partition,
                end.end_offset,
            )
        return end.end_offset, end.leader_epoch
