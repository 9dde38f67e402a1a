"""CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from millstream.broker.handlers.passing_on import passed_on
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.cluster.metadata import Topic
from millstream.config.describe import describe_topic
from millstream.controller.topics import MAX_PARTITIONS_A_REQUEST, NewTopic
from millstream.errors import (
    InvalidReplicaAssignment,
    InvalidRequest,
    KafkaError,
    PolicyViolation,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from millstream.model import NO_UUID
from millstream.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

R = TypeVar("R")
T = TypeVar("T")


TOPICS_AT_ONCE = 100
"""So many topics of a request are under way at a time: what all of them do at once, others wait for."""


async def _in_turns(work: Callable[[T], Awaitable[R]], wanted: Sequence[T]) -> list[R]:
    """What comes of each, in order."""
    results: list[R] = []
    for start in range(0, len(wanted), TOPICS_AT_ONCE):
        results += await asyncio.gather(*map(work, wanted[start : start + TOPICS_AT_ONCE]))
        await asyncio.sleep(0)
    return results


@handles(CreateTopicsRequest, large_bytes=LONG_LIST_BYTES)
async def create_topics(ctx: Context, req: CreateTopicsRequest) -> CreateTopicsResponse:
    """v4 default counts (KIP-464); v5 flexible, what was made is described (KIP-525); v7 topic ids.

    As in Kafka the partitions of all topics of a request together have a limit.
    """
    passed = await passed_on(
        ctx,
        req,
        CreateTopicsResponse,
        lambda error: CreateTopicsResponse(
            topics=[
                CreateTopicsResponse.CreatableTopicResult(
                    name=topic.name, error_code=error.code, error_message=error.message
                )
                for topic in req.topics
            ]
        ),
    )
    if passed is not None:
        return passed
    asked = Counter(topic.name for topic in req.topics)
    default: int = ctx.broker.config["num.partitions"]
    partitions = sum(
        len(topic.assignments) or (topic.num_partitions if topic.num_partitions > 0 else default)
        for topic in req.topics
    )

    async def create(wanted: CreateTopicsRequest.CreatableTopic) -> CreateTopicsResponse.CreatableTopicResult:
        result = CreateTopicsResponse.CreatableTopicResult(name=wanted.name, error_code=0)
        try:
            if asked[wanted.name] > 1:
                raise InvalidRequest(f"the topic {wanted.name!r} is in the request more than once")
            _check_total(partitions)
            topic = await ctx.broker.controller.create_topic(
                _new_topic(wanted), validate_only=req.validate_only
            )
            if not req.validate_only:
                await ctx.broker.controller_link.until_known(topic.name)
            _describe(ctx, result, topic)
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = error.message
        return result

    return CreateTopicsResponse(topics=await _in_turns(create, req.topics))


def _check_total(partitions: int) -> None:
    if partitions > MAX_PARTITIONS_A_REQUEST:
        raise PolicyViolation(f"at most {MAX_PARTITIONS_A_REQUEST} partitions can be made by one request")


def _new_topic(wanted: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    assignment = {each.partition_index: each.broker_ids for each in wanted.assignments}
    if len(assignment) != len(wanted.assignments):
        raise InvalidReplicaAssignment("a partition is assigned twice")
    configs = {}
    for config in wanted.configs:
        if config.value is None:
            raise InvalidRequest(f"the config {config.name} has no value")
        configs[config.name] = config.value
    return NewTopic(wanted.name, wanted.num_partitions, wanted.replication_factor, assignment, configs)


def _describe(ctx: Context, result: CreateTopicsResponse.CreatableTopicResult, topic: Topic) -> None:
    result.topic_id = topic.topic_id
    result.num_partitions = len(topic.partitions)
    result.replication_factor = topic.replication_factor
    result.configs = [
        CreateTopicsResponse.CreatableTopicConfigs(
            name=config.name,
            value=config.value,
            read_only=config.is_read_only,
            config_source=config.source,
            is_sensitive=config.is_sensitive,
        )
        for config in describe_topic(topic.overrides, ctx.broker.config)
    ]


@handles(DeleteTopicsRequest, large_bytes=LONG_LIST_BYTES)
async def delete_topics(ctx: Context, req: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """v4 flexible; v5 error messages; v6 by id (KIP-516)."""
    if req.topic_names:  # below v6
        state = DeleteTopicsRequest.DeleteTopicState
        topics = [state(name=name, topic_id=NO_UUID) for name in req.topic_names]
        req = DeleteTopicsRequest(topics=topics, timeout_ms=req.timeout_ms)
    wanted = [(topic.name, topic.topic_id) for topic in req.topics]
    passed = await passed_on(
        ctx,
        req,
        DeleteTopicsResponse,
        lambda error: DeleteTopicsResponse(
            responses=[
                DeleteTopicsResponse.DeletableTopicResult(
                    name=name, topic_id=topic_id, error_code=error.code, error_message=error.message
                )
                for name, topic_id in wanted
            ]
        ),
    )
    if passed is not None:
        return passed
    asked = Counter(wanted)

    async def delete(each: tuple[str | None, UUID]) -> DeleteTopicsResponse.DeletableTopicResult:
        name, topic_id = each
        result = DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=topic_id, error_code=0)
        try:
            if (name is None) == (topic_id == NO_UUID):
                raise InvalidRequest("a topic is deleted by name or by id, not both")
            if asked[each] > 1:
                raise InvalidRequest(f"the topic {name or topic_id} is in the request more than once")
            topic = await ctx.broker.controller.topic(name, topic_id)
            result.name, result.topic_id = topic.name, topic.topic_id
            try:
                await ctx.broker.controller.delete_topic(topic)
            except UnknownTopicOrPartition as error:
                if name is None:
                    raise UnknownTopicId(error.message) from error
                raise
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = error.message
        return result

    return DeleteTopicsResponse(responses=await _in_turns(delete, list(asked)))


@handles(CreatePartitionsRequest, large_bytes=LONG_LIST_BYTES)
async def create_partitions(ctx: Context, req: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """v2 flexible; v3 may be throttled (KIP-599). New partitions have a limit, as when topics are made."""
    passed = await passed_on(
        ctx,
        req,
        CreatePartitionsResponse,
        lambda error: CreatePartitionsResponse(
            results=[
                CreatePartitionsResponse.CreatePartitionsTopicResult(
                    name=topic.name, error_code=error.code, error_message=error.message
                )
                for topic in req.topics
            ]
        ),
    )
    if passed is not None:
        return passed
    asked = Counter(topic.name for topic in req.topics)
    known = ctx.broker.metadata.topics
    partitions = sum(
        max(topic.count - len(known[topic.name].partitions), 0) for topic in req.topics if topic.name in known
    )

    async def grow(
        wanted: CreatePartitionsRequest.CreatePartitionsTopic,
    ) -> CreatePartitionsResponse.CreatePartitionsTopicResult:
        result = CreatePartitionsResponse.CreatePartitionsTopicResult(name=wanted.name, error_code=0)
        try:
            if asked[wanted.name] > 1:
                raise InvalidRequest(f"the topic {wanted.name!r} is in the request more than once")
            _check_total(partitions)
            assignments = (
                None if wanted.assignments is None else [each.broker_ids for each in wanted.assignments]
            )
            await ctx.broker.controller.add_partitions(
                wanted.name, wanted.count, assignments, validate_only=req.validate_only
            )
            if not req.validate_only:
                await ctx.broker.controller_link.until_known(wanted.name, wanted.count)
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = error.message
        return result

    return CreatePartitionsResponse(results=await _in_turns(grow, req.topics))
