"""A log of keyed records, with a memory of everything that was written to it."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from millstream.config.log import LogConfig
from millstream.protocol.batch import (
    ControlMarker,
    Record,
    decode_records,
    encode_batch,
    encode_marker,
    read_header,
)
from millstream.storage.cleanable import find_cleanable
from millstream.storage.cleaning_job import Scanned
from millstream.storage.compaction import compact
from millstream.storage.disk import Disk
from millstream.storage.loading import load_log
from millstream.storage.log import Log
from millstream.storage.surroundings import Surroundings
from millstream.storage.trash import Trash
from tests.storage.logs import PARTITION, TestClock

COMPACTED = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=200,
    file_delete_delay_ms=0,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=1000,
)

Table = dict[bytes, bytes]


class Producer:
    """A producer with an id, and perhaps with a transaction."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0
        self.offsets: list[int] | None = None
        """What it wrote in the transaction that is open."""


class Ledger:
    """One log on one disk, and what a reader must find in it."""

    def __init__(self, disk: Disk, folder: str, config: LogConfig = COMPACTED) -> None:
        self.disk = disk
        self.folder = f"{folder}/{PARTITION}"
        self.config = config
        self.clock = TestClock()
        self.leader_epoch = 0
        self.written: dict[int, Record] = {}
        self.aborted: set[int] = set()
        self.first_cleaned_ms: dict[int, int] = {}
        """When compaction first met a record."""
        disk.makedirs(self.folder)
        self.log = self.open()

    def open(self, disk: Disk | None = None, *, is_clean: bool = False, recovery_point: int = 0) -> Log:
        self.disk = disk or self.disk
        self.trash = Trash(self.disk, self.clock)
        around = Surroundings(self.disk, self.clock, Random(1), self.trash, lambda: None, _raise)
        opened = load_log(
            around, self.folder, PARTITION, self.config, is_clean=is_clean, recovery_point=recovery_point
        )
        self.log = opened
        return opened

    def reopen(self, *, is_clean: bool = True) -> Log:
        """Stop and start, as a broker does, with what its checkpoints would have said."""
        point, cleaned_until = self.log.recovery_point, self.log.cleaned_until
        self.log.close(is_clean=is_clean)
        self.trash.empty(is_due_only=False)
        self.open(is_clean=is_clean, recovery_point=self.log.end_offset if is_clean else point)
        self.log.cleaned_until = cleaned_until
        return self.log

    # Writing

    def append(
        self, *pairs: tuple[bytes | None, bytes | None], codec: int = 0, producer: Producer | None = None
    ) -> int:
        """Write one batch of keys and values; its base offset."""
        now_ms = self.clock.now_ms()
        written = [
            Record(key=key, value=value, timestamp=now_ms - 7 * number, headers=(("n", b"%d" % number),))
            for number, (key, value) in enumerate(pairs)
        ]
        options = {}
        if producer is not None:
            options = {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.epoch,
                "base_sequence": producer.sequence,
                "is_transactional": producer.offsets is not None,
            }
        data = encode_batch(written, codec=codec, **options)  # type: ignore[arg-type]
        base = self.log.append(memoryview(data), read_header(data), self.leader_epoch).base_offset
        for number, record in enumerate(written):
            self.written[base + number] = Record(
                record.value, record.key, record.headers, record.timestamp, base + number
            )
        if producer is not None:
            producer.sequence += len(written)
            if producer.offsets is not None:
                producer.offsets += range(base, base + len(written))
        return base

    def begin(self, producer: Producer) -> None:
        producer.offsets = []

    def end(self, producer: Producer, *, is_commit: bool, bumps_epoch: bool = False) -> int:
        """End a transaction, if it wrote anything; the marker's offset."""
        offsets, producer.offsets = producer.offsets, None
        if not offsets:
            return -1
        if bumps_epoch:
            producer.epoch += 1
            producer.sequence = 0
        data = encode_marker(
            ControlMarker(is_commit, 1),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            timestamp_ms=self.clock.now_ms(),
        )
        if not is_commit:
            self.aborted.update(offsets)
        return self.log.append(memoryview(data), read_header(data), self.leader_epoch).base_offset

    def clean(self, map_bytes: int = 1 << 20, *, rolls: bool = True) -> Scanned | None:
        """Compact what can be compacted now; None if there is nothing."""
        if rolls:
            self.log.roll()
        now_ms = self.clock.now_ms()
        stable = self.log.last_stable_offset(self.log.end_offset)
        cleanable = find_cleanable(self.log, stable, now_ms)
        if not cleanable.dirty_bytes:
            return None
        done = compact(cleanable, now_ms, map_bytes)
        for offset in self.written:
            if offset < self.log.cleaned_until:
                self.first_cleaned_ms.setdefault(offset, now_ms)
        self.trash.empty()
        return done

    # Reading

    def read(self, *, is_committed: bool = True, max_bytes: int = 700) -> list[Record]:
        """All records that a consumer gets, fetched bit by bit, up to where the log then ends."""
        log = self.log
        found: list[Record] = []
        offset = log.start_offset
        while True:
            limit = log.last_stable_offset(log.end_offset) if is_committed else log.end_offset
            part = log.read(offset, max_bytes, limit=limit)
            if not part.data:
                return found
            aborted = log.aborted_transactions(offset, part.next_offset) if is_committed else None
            found += decode_records(part.data, from_offset=offset, aborted=aborted)
            offset = part.next_offset

    def table(self) -> Table:
        """What the keys' values are, by what was written and is decided."""
        stable = self.log.last_stable_offset(self.log.end_offset)
        return as_table(
            record
            for offset, record in self.written.items()
            if offset < stable and offset not in self.aborted
        )

    def is_swept(self) -> bool:
        """Whether no file is left that only a compaction under way needs."""
        return not any(name.endswith((".cleaned", ".swap")) for name in self.disk.listdir(self.folder))


def as_table(records: Iterable[Record]) -> Table:
    table: Table = {}
    for record in records:
        if record.key is None:
            continue
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def _raise(error: OSError) -> None:
    raise error
