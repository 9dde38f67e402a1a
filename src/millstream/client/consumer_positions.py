"""Where a consumer begins: at the group's committed offset, at a time, or as its reset policy says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from millstream.client.cluster import Cluster
from millstream.client.consumer_errors import LogTruncated, NoOffset
from millstream.client.consumer_options import ConsumerOptions
from millstream.client.errors import raise_for
from millstream.client.group_offsets import fetch_committed
from millstream.client.offsets import LATEST, Found, ask_leaders
from millstream.client.subscription import NOT_KNOWN, PartitionState
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import TopicPartition
from millstream.protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse


class Positions:
    """Looks up positions for partitions that have none, and checks those under a new leader.

    Each is looked up once: what has none then is asked for again after a pause. None waits for another that
    has no leader, or a silent one.
    """

    def __init__(self, cluster: Cluster, options: ConsumerOptions) -> None:
        self._cluster = cluster
        self._options = options

    async def find(
        self, states: Iterable[PartitionState], on_found: Callable[[], object]
    ) -> list[KafkaError]:
        """Give each state a position, telling when some have one; the errors of those that stay without."""
        deadline = Deadline(self._options.request_timeout_ms)
        turns = {state: state.turn for state in states}
        fresh = {state: turn for state, turn in turns.items() if state.reset_to is None}
        others = {state: turn for state, turn in turns.items() if state not in fresh}
        results = await asyncio.gather(
            self._resume(fresh, deadline, on_found),
            self._begin(others, deadline, on_found),
            return_exceptions=True,
        )
        errors: list[KafkaError] = []
        for result in results:
            if isinstance(result, KafkaError):
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                errors += result
        return errors

    async def _resume(
        self, turns: dict[PartitionState, int], deadline: Deadline, on_found: Callable[[], object]
    ) -> list[KafkaError]:
        """Go on where the group is; begin where it has never been."""
        if self._options.group is None or not turns:
            return await self._begin(turns, deadline, on_found)
        found = await fetch_committed(
            self._cluster,
            self._options.group,
            deadline,
            partitions=[state.partition for state in turns],
        )
        others = {}
        for state, turn in turns.items():
            committed = found.get(state.partition)
            if committed is None:
                others[state] = turn
            elif state.turn == turn:
                state.seek(committed.offset, committed.leader_epoch)
        on_found()
        return await self._begin(others, deadline, on_found)

    async def _begin(
        self, turns: dict[PartitionState, int], deadline: Deadline, on_found: Callable[[], object]
    ) -> list[KafkaError]:
        """Begin partitions at the times that are asked for, or by the policy."""
        by_topic: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
        errors: list[KafkaError] = []
        for state, turn in turns.items():
            if state.turn != turn:
                continue  # it was told where to begin meanwhile
            time_ms = state.reset_to if state.reset_to is not None else self._options.reset_to
            if time_ms is not None:
                by_topic[state.partition.topic][state.partition] = time_ms
                continue
            reason = f'partition {state.partition} has no committed offset, and offset_reset is "none"'
            errors.append(NoOffset(reason, (state.partition,)))
        known = {state.partition: (state, turn) for state, turn in turns.items()}
        too_late: dict[TopicPartition, int] = {}

        def take(found: dict[TopicPartition, Found]) -> None:
            for partition, place in found.items():
                state, turn = known.get(partition, (None, 0))
                if place.offset < 0:
                    too_late[partition] = LATEST
                elif state is not None and state.turn == turn and state.fetch_position == NOT_KNOWN:
                    state.seek(place.offset)
            on_found()

        isolation = self._options.isolation
        for part in await asyncio.gather(
            *(
                ask_leaders(self._cluster, asked, deadline, take, isolation_level=isolation)
                for asked in by_topic.values()
            )
        ):
            errors += part
        if too_late:
            errors += await ask_leaders(
                self._cluster, dict(too_late), deadline, take, isolation_level=isolation
            )
        return errors

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
