"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: where a partition begins, ends and was when."""

from __future__ import annotations

import asyncio
from functools import partial

from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.cluster.partition import Partition
from millstream.errors import (
    InvalidRequest,
    KafkaError,
    KafkaStorageError,
    LeaderNotAvailable,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
    UnsupportedVersion,
)
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The version from which on a client may ask for each."""

NOT_AVAILABLE_SINCE = 5
"""Before this version clients know no OFFSET_NOT_AVAILABLE."""

READ_COMMITTED = 1
HIGH_WATERMARK = -1
UNKNOWN = -1


@handles(ListOffsetsRequest, large_bytes=LONG_LIST_BYTES)
async def list_offsets(ctx: Context, req: ListOffsetsRequest) -> ListOffsetsResponse:
    """v2 isolation level; v4 leader epochs (KIP-320); v5 OFFSET_NOT_AVAILABLE (KIP-207); v6 flexible;
    v7 -3, the greatest timestamp (KIP-734); v8 -4; v9 -5; v10 a time-out (KIP-1075); v11 -6 (KIP-1023).

    Nothing is tiered, so the earliest local offset is the earliest, and there is no tiered one.
    """
    response, pauses = ListOffsetsResponse(topics=[]), Pauses()
    for topic in req.topics:
        if pauses.is_due:
            await pauses.take()
        answer = ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=[])
        response.topics.append(answer)
        for wanted in topic.partitions:
            if pauses.is_due:
                await pauses.take()
            result = ListOffsetsResponse.ListOffsetsPartitionResponse(
                partition_index=wanted.partition_index, error_code=0
            )
            answer.partitions.append(result)
            try:
                if ctx.version < SINCE.get(wanted.timestamp, 0):
                    raise UnsupportedVersion(f"{wanted.timestamp} cannot be asked for in this version")
                partition = ctx.broker.replicas.leader(
                    topic.name, wanted.partition_index, wanted.current_leader_epoch
                )
                partition.check_lease()
                is_committed_only = req.isolation_level == READ_COMMITTED
                found = await _find(partition, wanted.timestamp, is_committed_only)
                if found is not None:
                    result.timestamp, result.offset, result.leader_epoch = found
            except OffsetNotAvailable as error:
                is_known = ctx.version >= NOT_AVAILABLE_SINCE
                result.error_code = error.code if is_known else LeaderNotAvailable.code
            except KafkaError as error:
                result.error_code = error.code
    return response


async def _find(partition: Partition, timestamp: int, is_committed_only: bool) -> tuple[int, int, int] | None:
    """The timestamp, offset and leader epoch of what is asked for; None if there is no such record."""
    log = partition.log
    limit = partition.last_stable_offset if is_committed_only else partition.high_watermark
    if timestamp == LATEST:
        partition.check_available()
        return UNKNOWN, limit, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return UNKNOWN, log.start_offset, log.epochs.epoch_of(log.start_offset)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    loop, threads = asyncio.get_running_loop(), partition.cold_reads
    if timestamp == MAX_TIMESTAMP:
        found = await loop.run_in_executor(threads, partial(log.max_timestamp_offset, limit=limit))
    elif timestamp < 0:
        raise InvalidRequest(f"{timestamp} is not a timestamp")
    else:
        found = await loop.run_in_executor(threads, partial(log.offset_for_timestamp, timestamp, limit=limit))
    if found is None:
        partition.check_available()  # it may be among the records that are not known to be committed yet
        return None
    return found.timestamp, found.offset, log.epochs.epoch_of(found.offset)


@handles(OffsetForLeaderEpochRequest, large_bytes=LONG_LIST_BYTES)
async def offset_for_leader_epoch(
    ctx: Context, req: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """v2 the client's epoch (KIP-320); v3 replica id; v4 flexible."""
    response, pauses = OffsetForLeaderEpochResponse(topics=[]), Pauses()
    for topic in req.topics:
        if pauses.is_due:
            await pauses.take()
        answer = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=[])
        response.topics.append(answer)
        for wanted in topic.partitions:
            if pauses.is_due:
                await pauses.take()
            result = OffsetForLeaderEpochResponse.EpochEndOffset(partition=wanted.partition, error_code=0)
            answer.partitions.append(result)
            try:
                partition = ctx.broker.replicas.leader(
                    topic.topic, wanted.partition, wanted.current_leader_epoch
                )
                partition.check_lease()
                log = partition.log
                result.leader_epoch, result.end_offset = log.epochs.end_offset_for(
                    wanted.leader_epoch, log.end_offset
                )
            except KafkaError as error:
                result.error_code = error.code
    return response


@handles(DeleteRecordsRequest, large_bytes=LONG_LIST_BYTES)
async def delete_records(ctx: Context, req: DeleteRecordsRequest) -> DeleteRecordsResponse:
    """v2 flexible. Everything below the offset is gone at once; its files go as segments empty.

    The answer waits for the followers' logs to begin there too.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(req.timeout_ms, 0) / 1000
    pauses = Pauses()
    response = DeleteRecordsResponse(topics=[])
    deleted: list[tuple[DeleteRecordsResponse.DeleteRecordsPartitionResult, str]] = []
    waiting: list[tuple[DeleteRecordsResponse.DeleteRecordsPartitionResult, asyncio.Future[None]]] = []
    for topic in req.topics:
        if pauses.is_due:
            await pauses.take()
        answer = DeleteRecordsResponse.DeleteRecordsTopicResult(name=topic.name, partitions=[])
        response.topics.append(answer)
        for wanted in topic.partitions:
            if pauses.is_due:
                await pauses.take()
            result = DeleteRecordsResponse.DeleteRecordsPartitionResult(
                partition_index=wanted.partition_index, low_watermark=UNKNOWN, error_code=0
            )
            answer.partitions.append(result)
            try:
                partition = ctx.broker.replicas.leader(topic.name, wanted.partition_index)
                partition.check_lease()
                if not partition.log.config.deletes_old:
                    raise PolicyViolation(f"{topic.name!r} is compacted only: its records cannot be deleted")
                offset = partition.high_watermark if wanted.offset == HIGH_WATERMARK else wanted.offset
                if offset < 0 or offset > partition.high_watermark:
                    raise OffsetOutOfRange
                followed = partition.delete_records(offset)
                result.low_watermark = partition.log.start_offset
                deleted.append((result, partition.log.dir_path))
                if followed is not None:
                    waiting.append((result, followed))
            except KafkaError as error:
                result.error_code = error.code
    # An answer means that the records stay deleted, also after a power loss.
    store, threads = ctx.broker.store, ctx.broker.threads
    unwritten = await asyncio.gather(
        *(
            loop.run_in_executor(threads.flushes(dir_path), store.checkpoints.write_starts, dir_path)
            for dir_path in dict.fromkeys(dir_path for _, dir_path in deleted)
        )
    )
    for result, dir_path in deleted:
        if any(dir_path in paths for paths in unwritten):
            result.low_watermark, result.error_code = UNKNOWN, KafkaStorageError.code
    for result, followed in waiting:
        try:
            async with asyncio.timeout_at(deadline):
                await followed
        except TimeoutError:
            result.low_watermark, result.error_code = UNKNOWN, RequestTimedOut.code
        except KafkaError as error:
            result.low_watermark, result.error_code = UNKNOWN, error.code
    return response
