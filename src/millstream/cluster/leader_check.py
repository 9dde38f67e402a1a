"""Seeing whether a leader can give the records that a replica is about to cut off.

A leader in sync has them, but nobody may have read them there: if they are damaged there too, in another
place, those of the replica are the last ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import CorruptMessage, KafkaStorageError, OffsetOutOfRange, error_for
from millstream.protocol.batch import scan_batches
from millstream.protocol.messages import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from millstream.cluster.partition import Partition
    from millstream.cluster.peers import Peers

OUTSIDE = -1
READ_BYTES = 1 << 20
TIMEOUT_MS = 30_000.0


async def read_leader(peers: Peers, partition: Partition, offset: int, end_offset: int) -> None:
    """Read what a partition's leader has committed from `offset` to `end_offset`; KafkaError if it cannot."""
    while offset < end_offset:
        data = await _fetch(peers, partition, offset)
        if data.error_code == OffsetOutOfRange.code and data.log_start_offset > offset:
            offset = data.log_start_offset  # deleted meanwhile
            continue
        if data.error_code:
            raise error_for(data.error_code)(f"its leader cannot read {partition.name} at offset {offset}")
        records = memoryview(data.records or b"")
        if not records:
            if offset >= data.high_watermark:
                return  # the rest was never committed
            raise KafkaStorageError(f"its leader gives nothing of {partition.name} at offset {offset}")
        scan = scan_batches(records, 0, len(records), True, -1)
        if not scan.batches:
            raise CorruptMessage(
                f"its leader's {partition.name} is damaged at offset {offset}: {scan.reason}"
            )
        offset = max(offset, scan.last_offset) + 1


async def _fetch(peers: Peers, partition: Partition, offset: int) -> FetchResponse.PartitionData:
    wanted = FetchRequest.FetchPartition(
        partition=partition.name.partition,
        current_leader_epoch=partition.leader_epoch,
        fetch_offset=offset,
        partition_max_bytes=READ_BYTES,
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=READ_BYTES,
        session_epoch=OUTSIDE,
        topics=[FetchRequest.FetchTopic(topic_id=partition.topic_id, partitions=[wanted])],
    )
    leader = partition.state.leader
    answer = await peers.request(leader, "mending", request, FetchResponse, TIMEOUT_MS)
    if answer.error_code:
        raise error_for(answer.error_code)()
    return answer.responses[0].partitions[0]
