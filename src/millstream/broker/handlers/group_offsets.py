"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit: the positions of groups."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from millstream.broker.handlers.groups import group_index
from millstream.broker.router import Context, handles
from millstream.coordinator.groups.commits import Caller, Commit, Errors
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Producer, Result
from millstream.errors import (
    InvalidCommitOffsetSize,
    InvalidGroupId,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotLeaderOrFollower,
    RecordListTooLarge,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from millstream.model import NO_UUID, TopicPartition
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

IDS_SINCE = 10
MANY_GROUPS_SINCE = 8
GROUP_ERROR_SINCE = 2
UNKNOWN_OFFSET = -1

_CommittedTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_CommittedPartition = OffsetCommitResponse.OffsetCommitResponsePartition


# Committing


@handles(OffsetCommitRequest)
def offset_commit(
    ctx: Context, req: OffsetCommitRequest
) -> OffsetCommitResponse | Promise[OffsetCommitResponse]:
    """v2 retention time (until v4); v6 leader epochs (KIP-320); v7 static members (KIP-345); v8 flexible;
    v9 member epochs (KIP-848); v10 topic ids.
    """
    response = OffsetCommitResponse(topics=[])
    commits: list[Commit] = []
    answers: list[_CommittedPartition] = []
    for topic in req.topics:
        name, count, missing = _topic(ctx, topic.name, topic.topic_id, IDS_SINCE)
        partitions: list[_CommittedPartition] = []
        response.topics.append(
            _CommittedTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
        )
        for each in topic.partitions:
            index = each.partition_index
            answer = _CommittedPartition(partition_index=index)
            partitions.append(answer)
            if 0 <= index < count:
                place, metadata = TopicPartition(name, index), each.committed_metadata or ""
                commits.append(Commit(place, each.committed_offset, each.committed_leader_epoch, metadata))
                answers.append(answer)
            else:
                answer.error_code = missing

    def work(shard: GroupShard) -> Result[OffsetCommitResponse]:
        caller = Caller(req.generation_id_or_member_epoch, req.member_id, req.group_instance_id)
        result = shard.commits.commit(
            req.group_id, caller, commits, retention_ms=req.retention_time_ms, version=ctx.version
        )
        failed = result.response
        assert isinstance(failed, dict)
        if failed:
            for commit, answer in zip(commits, answers, strict=True):
                answer.error_code = failed.get(commit.partition, 0)
        return Result(response, result.entries)

    def refuse(error: KafkaError) -> OffsetCommitResponse:
        code = _failure(error)
        for answer in answers:
            answer.error_code = code
        return response

    if not commits:
        return response
    try:
        return ctx.broker.groups.write_with_others(group_index(ctx, req.group_id), work, refuse)
    except KafkaError as error:
        return refuse(error)


@handles(TxnOffsetCommitRequest)
async def txn_offset_commit(ctx: Context, req: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse:
    """v2 leader epochs (KIP-320); v3 flexible, member and generation (KIP-447); v4 and v5 KIP-890."""
    errors: Errors = {}
    commits: list[Commit] = []
    for topic in req.topics:
        _, count, missing = _topic(ctx, topic.name, NO_UUID, ctx.version + 1)
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            if 0 <= each.partition_index < count:
                commits.append(
                    Commit(
                        partition,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.committed_metadata or "",
                    )
                )
            else:
                errors[partition] = missing
    if commits:
        caller = Caller(req.generation_id, req.member_id, req.group_instance_id)
        producer = Producer(req.producer_id, req.producer_epoch)
        try:
            if not req.group_id:
                raise InvalidGroupId
            index = group_index(ctx, req.group_id)
            ctx.broker.groups.check_active(index)
            failed = await ctx.broker.transaction_admission.commit_offsets(
                req.transactional_id,
                producer,
                index,
                ctx.version,
                lambda: ctx.broker.groups.write(
                    index,
                    lambda shard: shard.commits.commit_in_transaction(
                        req.group_id, caller, producer, commits
                    ),
                ),
            )
            errors |= failed
        except KafkaError as error:
            errors |= dict.fromkeys((commit.partition for commit in commits), _failure(error))
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=errors.get(TopicPartition(topic.name, each.partition_index), 0),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in req.topics
        ]
    )


def _topic(ctx: Context, name: str, topic_id: UUID, ids_since: int) -> tuple[str, int, int]:
    """A topic's name and number of partitions, and the error for partitions that do not exist."""
    metadata = ctx.broker.metadata
    try:
        topic = metadata.topic_by_id(topic_id) if ctx.version >= ids_since else metadata.topic(name)
    except UnknownTopicId as error:
        return "", 0, error.code
    except UnknownTopicOrPartition as error:
        return name, 0, error.code
    return topic.name, len(topic.partitions), UnknownTopicOrPartition.code


def _failure(error: KafkaError) -> int:
    """The code for offsets that were not written."""
    if isinstance(error, RecordListTooLarge):
        return InvalidCommitOffsetSize.code
    if isinstance(error, (NotLeaderOrFollower, KafkaStorageError)):
        # Of the partition that the offsets are kept in: producers take any other word for the end of them.
        return NotCoordinator.code
    return error.code


# Fetching


@handles(OffsetFetchRequest)
async def offset_fetch(ctx: Context, req: OffsetFetchRequest) -> OffsetFetchResponse:
    """v2 null for all topics, an error for the group; v5 leader epochs (KIP-320); v6 flexible; v7 only
    stable offsets (KIP-447); v8 many groups (KIP-709); v9 member epochs (KIP-848); v10 topic ids.

    A group or a partition without a commit has the offset -1, and that is no error. All positions of one
    group are as of one moment: a transaction may have moved several.
    """
    if ctx.version >= MANY_GROUPS_SINCE:
        response, pauses = OffsetFetchResponse(groups=[]), Pauses()
        for group in req.groups:
            response.groups.append(await _fetch_group(ctx, group, req.require_stable))
            if pauses.is_due:
                await pauses.take()
        return response
    topics = req.topics
    group = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=req.group_id,
        topics=None
        if topics is None
        else [
            OffsetFetchRequest.OffsetFetchRequestTopics(
                name=topic.name, partition_indexes=topic.partition_indexes
            )
            for topic in topics
        ],
    )
    found = await _fetch_group(ctx, group, req.require_stable)
    if found.error_code and ctx.version < GROUP_ERROR_SINCE:
        # There is no place for an error but the partitions.
        found.topics = [
            OffsetFetchResponse.OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[_position(index, found.error_code) for index in topic.partition_indexes],
            )
            for topic in topics or ()
        ]
    return OffsetFetchResponse(
        error_code=found.error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=each.partition_index,
                        committed_offset=each.committed_offset,
                        committed_leader_epoch=each.committed_leader_epoch,
                        metadata=each.metadata,
                        error_code=each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in found.topics
        ],
    )


async def _fetch_group(
    ctx: Context, group: OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    def look(shard: GroupShard) -> list[OffsetFetchResponse.OffsetFetchResponseTopics]:
        shard.commits.check_fetch(group.group_id, group.member_id, group.member_epoch)
        wanted = _wanted(ctx, group) if group.topics is not None else _all_wanted(ctx, shard, group.group_id)
        return [
            OffsetFetchResponse.OffsetFetchResponseTopics(
                name=name,
                topic_id=topic_id,
                partitions=[
                    _committed(shard, group.group_id, TopicPartition(name, index), require_stable)
                    if name
                    else _position(index, error_code=UnknownTopicId.code)
                    for index in indexes
                ],
            )
            for name, topic_id, indexes in wanted
        ]

    response = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, topics=[])
    try:
        response.topics = await ctx.broker.groups.read(group_index(ctx, group.group_id), look)
    except KafkaError as error:
        response.error_code = error.code
    return response


def _wanted(
    ctx: Context, group: OffsetFetchRequest.OffsetFetchRequestGroup
) -> Iterable[tuple[str, UUID, list[int]]]:
    for topic in group.topics or ():
        name = topic.name
        if ctx.version >= IDS_SINCE:
            name, _, _ = _topic(ctx, name, topic.topic_id, IDS_SINCE)
        yield name, topic.topic_id, topic.partition_indexes


def _all_wanted(ctx: Context, shard: GroupShard, group_id: str) -> Iterable[tuple[str, UUID, list[int]]]:
    """All topics that a group has positions in; where ids are spoken, those that still exist."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in shard.commits.all_partitions(group_id):
        by_topic.setdefault(topic, []).append(index)
    for name, indexes in by_topic.items():
        known = ctx.broker.metadata.topics.get(name)
        if known is not None or ctx.version < IDS_SINCE:
            yield name, NO_UUID if known is None else known.topic_id, indexes


def _committed(
    shard: GroupShard, group_id: str, partition: TopicPartition, require_stable: bool
) -> OffsetFetchResponse.OffsetFetchResponsePartitions:
    if require_stable and shard.commits.is_unstable(group_id, partition):
        return _position(partition.partition, error_code=UnstableOffsetCommit.code)
    committed = shard.commits.committed(group_id, partition)
    if committed is None:
        return _position(partition.partition)
    return OffsetFetchResponse.OffsetFetchResponsePartitions(
        partition_index=partition.partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )


def _position(index: int, error_code: int = 0) -> OffsetFetchResponse.OffsetFetchResponsePartitions:
    """No position."""
    return OffsetFetchResponse.OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=UNKNOWN_OFFSET, metadata="", error_code=error_code
    )


# Removing


@handles(OffsetDeleteRequest)
async def offset_delete(ctx: Context, req: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """v0 (KIP-496): positions in topics that nobody in the group reads."""
    errors: Errors = {}
    partitions: list[TopicPartition] = []
    if not req.group_id:
        raise InvalidGroupId("a group's id must not be empty")
    for topic in req.topics:
        _, count, missing = _topic(ctx, topic.name, NO_UUID, ctx.version + 1)
        for each in topic.partitions:
            partition = TopicPartition(topic.name, each.partition_index)
            if 0 <= each.partition_index < count:
                partitions.append(partition)
            else:
                errors[partition] = missing
    failed = await ctx.broker.groups.write(
        group_index(ctx, req.group_id), lambda shard: shard.commits.delete(req.group_id, partitions)
    )
    errors |= failed
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=errors.get(TopicPartition(topic.name, each.partition_index), 0),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in req.topics
        ]
    )
