"""AlterPartitionReassignments and ListPartitionReassignments: partitions that move to other brokers."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.broker.handlers.passing_on import passed_on
from millstream.broker.router import Context, handles
from millstream.controller.partition_changes import Outcome
from millstream.errors import InvalidRequest
from millstream.model import TopicPartition
from millstream.protocol.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

Altered = AlterPartitionReassignmentsResponse
Listed = ListPartitionReassignmentsResponse


@handles(AlterPartitionReassignmentsRequest)
async def alter_partition_reassignments(
    ctx: Context, req: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """v0 flexible (KIP-455); v1 may forbid another number of replicas (KIP-860)."""
    passed = await passed_on(ctx, req, AlterPartitionReassignmentsResponse)
    if passed is not None:
        return passed
    wanted: dict[TopicPartition, Sequence[int] | None] = {}
    for topic in req.topics:
        for partition in topic.partitions:
            place = TopicPartition(topic.name, partition.partition_index)
            if place in wanted:
                raise InvalidRequest(f"{place} is in the request more than once")
            wanted[place] = partition.replicas
    outcomes = await ctx.broker.controller.reassign(wanted, may_resize=req.allow_replication_factor_change)
    return Altered(
        allow_replication_factor_change=req.allow_replication_factor_change,
        responses=[
            Altered.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    _outcome(
                        partition.partition_index,
                        outcomes[TopicPartition(topic.name, partition.partition_index)],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in req.topics
        ],
    )


def _outcome(index: int, error: Outcome) -> Altered.ReassignablePartitionResponse:
    return Altered.ReassignablePartitionResponse(
        partition_index=index,
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
    )


@handles(ListPartitionReassignmentsRequest)
async def list_partition_reassignments(
    ctx: Context, req: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """v0: what goes on, of some partitions or of all (KIP-455)."""
    passed = await passed_on(ctx, req, ListPartitionReassignmentsResponse)
    if passed is not None:
        return passed
    moving = await ctx.broker.controller.reassignments()
    if req.topics is not None:
        asked: dict[str, set[int]] = {}
        for topic in req.topics:
            asked.setdefault(topic.name, set()).update(topic.partition_indexes)
        moving = {
            place: state for place, state in moving.items() if place.partition in asked.get(place.topic, ())
        }
    by_topic: dict[str, list[Listed.OngoingPartitionReassignment]] = {}
    for place, state in moving.items():
        by_topic.setdefault(place.topic, []).append(
            Listed.OngoingPartitionReassignment(
                partition_index=place.partition,
                replicas=state.replicas,
                adding_replicas=state.adding,
                removing_replicas=state.removing,
            )
        )
    return Listed(
        topics=[
            Listed.OngoingTopicReassignment(name=name, partitions=partitions)
            for name, partitions in by_topic.items()
        ]
    )
