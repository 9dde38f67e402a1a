"""What a replica holds, to be held against the others of its partition: the very bytes, what of them readers
of committed records would see, and what is known of their producers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from millstream.cluster.partition import Partition
from millstream.protocol.batch import decode_records

Producer = tuple[int, int, int, bool]
"""Epoch, last sequence, last offset, and whether a transaction is open."""


def differences(replicas: Mapping[str, Partition], *, are_compacted: bool = False) -> Iterator[str]:
    """In what the replicas of a partition differ, from where all of them start on.

    Those that `are_compacted`, each by itself, need only hold the same last value of each key.
    """
    start_offset = max((replica.log.start_offset for replica in replicas.values()), default=0)
    if are_compacted:
        tables = {name: _table(replica) for name, replica in replicas.items()}
        for key in sorted({key for table in tables.values() for key in table}):
            found = {name: table.get(key) for name, table in tables.items()}
            if len(set(found.values())) > 1:
                yield f"differ: {key!r} is {found}"
        yield from _unlike_producers(replicas, start_offset)
        return
    contents = {name: content(replica, start_offset) for name, replica in replicas.items()}
    if len(set(contents.values())) > 1:
        sizes = {name: len(each) for name, each in contents.items()}
        yield f"differ: {sizes} bytes from {start_offset} on"
        return
    seen = {name: _committed(replica, start_offset, contents[name]) for name, replica in replicas.items()}
    if len(set(seen.values())) > 1:
        counts = {name: len(each) for name, each in seen.items()}
        yield f"show different records as committed: {counts} from {start_offset} on"
    yield from _unlike_producers(replicas, start_offset)


def _unlike_producers(replicas: Mapping[str, Partition], start_offset: int) -> Iterator[str]:
    known = {name: _producers(replica) for name, replica in replicas.items()}
    everyone = {number for producers in known.values() for number in producers}
    for number in sorted(everyone):
        told = {name: producers.get(number) for name, producers in known.items()}
        is_recent = any(each is not None and each[2] >= start_offset for each in told.values())
        if is_recent and len(set(told.values())) > 1:
            yield f"know different things of producer {number}: {told}"


def content(replica: Partition, offset: int) -> bytes:
    """The batches of a log from the one that holds an offset on, as they lie on its disk."""
    data = []
    while offset < replica.log.end_offset:
        found = replica.log.read(offset, 1 << 20)
        if not found.data:
            break
        data.append(bytes(found.data))
        offset = found.next_offset
    return b"".join(data)


def _table(replica: Partition) -> dict[bytes, tuple[int, bytes]]:
    """What compaction must leave: the last committed value of each key, and its offset."""
    log = replica.log
    aborted = log.aborted_transactions(log.start_offset, log.end_offset)
    latest: dict[bytes, tuple[int, bytes]] = {}
    for record in decode_records(content(replica, log.start_offset), aborted=aborted):
        key = bytes(record.key or b"")
        latest.pop(key, None)
        if record.value is not None:
            latest[key] = (record.offset, bytes(record.value))
    return latest


def _committed(replica: Partition, start_offset: int, data: bytes) -> tuple[int, ...]:
    aborted = replica.log.aborted_transactions(start_offset, replica.log.end_offset)
    return tuple(record.offset for record in decode_records(data, from_offset=start_offset, aborted=aborted))


def _producers(replica: Partition) -> dict[int, Producer]:
    return {
        one.producer_id: (one.epoch, one.last_sequence, one.last_offset, one.transaction_start >= 0)
        for one in replica.log.active_producers()
    }
