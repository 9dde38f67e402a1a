"""ElectLeaders: leadership goes to preferred leaders, or to anybody where there is no leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from millstream.broker.handlers.passing_on import passed_on
from millstream.broker.router import Context, handles
from millstream.controller.partition_changes import Outcome
from millstream.errors import ElectionNotNeeded, InvalidRequest, KafkaError
from millstream.model import TopicPartition
from millstream.protocol.messages import ElectLeadersRequest, ElectLeadersResponse

PREFERRED = 0
UNCLEAN = 1

MAX_NAMED = 50_000
"""How many partitions a request names; all of them, however many there are, are meant by null."""


@handles(ElectLeadersRequest)
async def elect_leaders(ctx: Context, req: ElectLeadersRequest) -> ElectLeadersResponse:
    """v1 unclean elections (KIP-460); v2 flexible. Null is for all partitions: those that need no
    election are left out then.
    """
    wanted = _named(req)
    refused = partial(_refused, ctx, wanted) if ctx.version == 0 else None
    passed = await passed_on(ctx, req, ElectLeadersResponse, refused)
    if passed is not None and (ctx.version > 0 or not passed.error_code):
        return passed
    if req.election_type not in (PREFERRED, UNCLEAN):
        raise InvalidRequest(f"there is no election of type {req.election_type}; 0 and 1 there are")
    try:
        outcomes = await ctx.broker.controller.elect(wanted, is_unclean=req.election_type == UNCLEAN)
    except KafkaError as refusal:
        if refused is None:
            raise
        return refused(refusal)
    if wanted is None:
        outcomes = {
            place: error
            for place, error in outcomes.items()
            if error is None or error.code != ElectionNotNeeded.code
        }
    return _answer(outcomes)


def _named(req: ElectLeadersRequest) -> list[TopicPartition] | None:
    """The partitions that are asked for; None for all."""
    if req.topic_partitions is None:
        return None
    if sum(len(topic.partitions) for topic in req.topic_partitions) > MAX_NAMED:
        raise InvalidRequest(f"a request names at most {MAX_NAMED} partitions")
    return [
        TopicPartition(topic.topic, partition)
        for topic in req.topic_partitions
        for partition in topic.partitions
    ]


def _refused(
    ctx: Context, wanted: Iterable[TopicPartition] | None, error: KafkaError
) -> ElectLeadersResponse:
    """An error of all partitions, told of each: version 0 has no place for it but there."""
    if wanted is None:
        wanted = [
            TopicPartition(topic.name, index)
            for topic in ctx.broker.metadata.topics.values()
            for index in range(len(topic.partitions))
        ]
    return _answer(dict.fromkeys(wanted, error))


def _answer(outcomes: Mapping[TopicPartition, Outcome]) -> ElectLeadersResponse:
    by_topic: dict[str, list[ElectLeadersResponse.PartitionResult]] = {}
    for place, error in outcomes.items():
        by_topic.setdefault(place.topic, []).append(
            ElectLeadersResponse.PartitionResult(
                partition_id=place.partition,
                error_code=0 if error is None else error.code,
                error_message=None if error is None else error.message,
            )
        )
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=results)
            for topic, results in by_topic.items()
        ]
    )
