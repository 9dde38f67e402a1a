"""OffsetCommit, OffsetFetch, OffsetDelete and TxnOffsetCommit: the positions of groups."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from millstream.broker.handlers.groups import group_index
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.coordinator.groups.commits import Caller, Commit, Errors
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.promise import Promise
from millstream.coordinator.shard import Producer, Result
from millstream.errors import (
    CoordinatorNotAvailable,
    InvalidCommitOffsetSize,
    InvalidGroupId,
    InvalidRequest,
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
UNKNOWN_OFFSET = -1
MANY_POSITIONS = 5000
"""Who asks for the positions of more partitions than these asks for many that the group does not have."""

_CommittedTopic = OffsetCommitResponse.OffsetCommitResponseTopic
_CommittedPartition = OffsetCommitResponse.OffsetCommitResponsePartition

_Wanted = dict[tuple[str, UUID], dict[int, None]]
"""Partitions by their topic's name and id, in the order in which they were asked for."""
_Positions = dict[TopicPartition, OffsetFetchResponse.OffsetFetchResponsePartitions]


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
    metadata, is_by_id = ctx.broker.metadata, ctx.version >= ids_since
    topic = metadata.find_by_id(topic_id) if is_by_id else metadata.topics.get(name)
    if topic is None:
        return ("", 0, UnknownTopicId.code) if is_by_id else (name, 0, UnknownTopicOrPartition.code)
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


@handles(OffsetFetchRequest, large_bytes=LONG_LIST_BYTES)
async def offset_fetch(ctx: Context, req: OffsetFetchRequest) -> OffsetFetchResponse:
    """v2 null for all topics, an error for the group; v5 leader epochs (KIP-320); v6 flexible; v7 only
    stable offsets (KIP-447); v8 many groups (KIP-709); v9 member epochs (KIP-848); v10 topic ids.

    A group or a partition without a commit has the offset -1, and that is no error. All positions of one
    group are as of one moment: a transaction may have moved several. A partition that is named twice is
    told once, and a group can be in a request only once: a commit may hold some KB of metadata.

    An error of the group is also one of each partition that was asked for, below v8: before v2 there is no
    other place for it, and some clients of v3 look nowhere else and would take the group for a new one.
    COORDINATOR_NOT_AVAILABLE is never told: many clients do not expect it here, and give up.
    """
    if ctx.version >= MANY_GROUPS_SINCE:
        response, pauses = OffsetFetchResponse(groups=[]), Pauses()
        seen: set[str] = set()
        for group in req.groups:
            if pauses.is_due:
                await pauses.take()
            if group.group_id in seen:
                found = OffsetFetchResponse.OffsetFetchResponseGroup(
                    group_id=group.group_id, topics=[], error_code=InvalidRequest.code
                )
            else:
                found = await _fetch_group(ctx, group, req.require_stable)
            seen.add(group.group_id)
            response.groups.append(found)
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
    response, pauses = OffsetFetchResponse(error_code=found.error_code, topics=[]), Pauses()
    for topic in found.topics:
        answer = OffsetFetchResponse.OffsetFetchResponseTopic(name=topic.name, partitions=[])
        response.topics.append(answer)
        for each in topic.partitions:
            if pauses.is_due:
                await pauses.take()
            answer.partitions.append(
                OffsetFetchResponse.OffsetFetchResponsePartition(
                    partition_index=each.partition_index,
                    committed_offset=each.committed_offset,
                    committed_leader_epoch=each.committed_leader_epoch,
                    metadata=each.metadata,
                    error_code=each.error_code,
                )
            )
    return response


async def _fetch_group(
    ctx: Context, group: OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    wanted = None if group.topics is None else _wanted(ctx, group.topics)

    def look(shard: GroupShard) -> tuple[_Wanted, _Positions]:
        """What is asked for, and the positions there are; where very much is asked for, only those that the
        group has are looked for."""
        commits, group_id = shard.commits, group.group_id
        commits.check_fetch(group_id, group.member_id, group.member_epoch)
        asked = _all_wanted(ctx, shard, group_id) if wanted is None else wanted
        places: Iterable[TopicPartition]
        if sum(map(len, asked.values())) > MANY_POSITIONS:
            by_name = {name: indexes for (name, _), indexes in asked.items()}
            places = [
                each for each in commits.all_partitions(group_id) if each[1] in by_name.get(each[0], ())
            ]
        else:
            places = [
                TopicPartition(name, index) for (name, _), indexes in asked.items() for index in indexes
            ]
        return asked, {place: _committed(shard, group_id, place, require_stable) for place in places}

    response = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id, topics=[])
    try:
        asked, positions = await ctx.broker.groups.read(group_index(ctx, group.group_id), look)
    except KafkaError as error:
        is_expected = not isinstance(error, CoordinatorNotAvailable)
        response.error_code = error.code if is_expected else NotCoordinator.code
        if ctx.version >= MANY_GROUPS_SINCE:
            return response
        asked, positions = wanted or {}, {}
    pauses = Pauses()
    for (name, topic_id), indexes in asked.items():
        topic = OffsetFetchResponse.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=[])
        response.topics.append(topic)
        missing = response.error_code or (0 if name else UnknownTopicId.code)
        for index in indexes:
            if pauses.is_due:
                await pauses.take()
            found = positions.get(TopicPartition(name, index)) if name else None
            topic.partitions.append(_position(index, missing) if found is None else found)
    return response


def _wanted(ctx: Context, topics: list[OffsetFetchRequest.OffsetFetchRequestTopics]) -> _Wanted:
    """The partitions that are asked for; a topic that is not known by its id has no name."""
    wanted: _Wanted = {}
    for topic in topics:
        name = topic.name
        if ctx.version >= IDS_SINCE:
            name, _, _ = _topic(ctx, name, topic.topic_id, IDS_SINCE)
        wanted.setdefault((name, topic.topic_id), {}).update(dict.fromkeys(topic.partition_indexes))
    return wanted


def _all_wanted(ctx: Context, shard: GroupShard, group_id: str) -> _Wanted:
    """All topics that a group has positions in; where ids are spoken, those that still exist."""
    by_topic: dict[str, dict[int, None]] = {}
    for topic, index in shard.commits.all_partitions(group_id):
        by_topic.setdefault(topic, {})[index] = None
    wanted: _Wanted = {}
    for name, indexes in by_topic.items():
        known = ctx.broker.metadata.topics.get(name)
        if known is not None or ctx.version < IDS_SINCE:
            wanted[name, NO_UUID if known is None else known.topic_id] = indexes
    return wanted


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
