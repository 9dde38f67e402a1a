"""Whatever happens to a log: what it says of times, epochs and transactions is what its batches say.

Each seed is a history of one log in a store, on a disk in memory that a power loss tears. After each step the
log is held against its own batches, read one by one.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from millstream.config.log import LogConfig
from millstream.errors import InvalidProducerEpoch, OutOfOrderSequenceNumber
from millstream.protocol.batch import (
    BatchHeader,
    ControlMarker,
    Record,
    decode_marker,
    decode_records,
    encode_batch,
    encode_marker,
    read_header,
)
from millstream.storage.cleanable import find_cleanable
from millstream.storage.compaction import compact
from millstream.storage.log import Log
from millstream.storage.store import Store
from tests.simulation.disk import SimDisk
from tests.simulation.world import ProcessKilled, World
from tests.storage.logs import NOW_MS, PARTITION, TOPIC_ID, TestClock

ALWAYS = ["append"] * 10 + ["end"] * 3 + ["roll", "flush", "checkpoint", "tick"] * 2
ALWAYS += ["lead", "restart", "kill", "kill", "truncate", "remove"]
DROPPING = ["delete", "retain", "clean", "clean", "clean"]
STEPS = 45


class Model:
    """One log, and what is done to it by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.steps = ALWAYS + (DROPPING if seed % 2 else [])
        self.drops = bool(seed % 2)
        """Whether what is left of the log may begin in the middle of a transaction."""
        self.disk = SimDisk(World(seed), lambda: 0)
        self.disk.on_kill = self.disk.crash
        self.clock = TestClock()
        self.config = LogConfig(
            segment_bytes=random.choice([400, 900, 3000]),
            index_interval_bytes=random.choice([0, 150, 4096]),
            file_delete_delay_ms=random.choice([0, 60_000]),
            cleanup_policy=frozenset({"compact", "delete"}),
            retention_ms=-1,
            delete_retention_ms=random.choice([0, 500, 1_000_000_000]),
        )
        self.leader_epoch = 0
        self.boot = 0
        self.sequences: dict[int, list[int]] = {}
        self.start()

    def start(self) -> None:
        self.store = Store(
            ["/data"],
            self.disk.mount(),
            self.clock,
            self.config,
            cluster_id="cluster",
            random=Random(3),
            boot_id=f"boot {self.boot}",
        )
        self.store.open()
        found = self.store.get(PARTITION, TOPIC_ID)
        self.log: Log = found or self.store.create(PARTITION, TOPIC_ID, self.config)
        self.store.accept_new_dirs()
        self.store.dirs.mark_boot()

    # Steps

    def append(self) -> None:
        random = self.random
        stamps = [-1, self.clock.ms, NOW_MS + random.randrange(-5000, 5000)]
        records = [
            Record(
                value=random.choice([None, b"v" * random.randrange(60)]),
                key=b"%d" % random.randrange(6),
                timestamp=random.choice(stamps),
            )
            for _ in range(random.choice([1, 1, 2, 4]))
        ]
        producer_id = random.choice([-1, -1, 1, 2, 10, 11, 12])
        epoch, sequence = self.sequences.setdefault(producer_id, [0, 0]) if producer_id >= 0 else (-1, -1)
        data = encode_batch(
            records,
            codec=random.choice([0, 0, 3]),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=producer_id >= 10,
            log_append_time_ms=random.choice([None, None, None, self.clock.ms]),
        )
        try:
            self.log.append(memoryview(data), read_header(data), self.leader_epoch)
        except (OutOfOrderSequenceNumber, InvalidProducerEpoch):  # what it wrote last was lost
            self.sequences[producer_id] = [epoch + 1, 0]
        else:
            if producer_id >= 0:
                self.sequences[producer_id][1] += len(records)

    def end(self) -> None:
        for producer in self.log.producers:
            if producer.transaction_start >= 0 and self.random.random() < 0.5:
                marker = ControlMarker(self.random.random() < 0.5, 1)
                data = encode_marker(
                    marker,
                    producer_id=producer.producer_id,
                    producer_epoch=producer.epoch,
                    timestamp_ms=self.clock.ms,
                )
                self.log.append(memoryview(data), read_header(data), self.leader_epoch)
                return

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flush()

    def checkpoint(self) -> None:
        self.store.checkpoints.write()

    def remove(self) -> None:
        self.store.remove_deleted()

    def tick(self) -> None:
        self.clock.ms += self.random.randrange(1, 3000)

    def lead(self) -> None:
        self.leader_epoch += 1
        self.log.begin_epoch(self.leader_epoch)

    def truncate(self) -> None:
        self.log.truncate_to(self.random.randrange(self.log.start_offset, self.log.end_offset + 1))
        self.lead()

    def delete(self) -> None:
        self.log.delete_records(self.random.randrange(self.log.start_offset, self.log.end_offset + 1))
        self.store.checkpoints.write_starts()

    def retain(self) -> None:
        self.log.config = replace(self.config, retention_bytes=self.random.randrange(2000))
        self.log.apply_retention(self.clock.ms)
        self.log.config = self.config

    def clean(self) -> None:
        stable_offset = self.log.last_stable_offset(self.log.end_offset)
        found = find_cleanable(self.log, stable_offset, self.clock.ms)
        if found.dirty_bytes:
            compact(found, self.clock.ms, self.random.choice([200, 1 << 16]))
            self.store.checkpoints.write_cleaned(self.log)

    def restart(self) -> None:
        before = self.records()
        self.store.close()
        self.start()
        assert self.records() == before

    def kill(self) -> None:
        """A kill or a power loss, perhaps again while the log is recovered."""
        before, point = self.records(), self.log.recovery_point
        has_power = self.random.random() < 0.5
        self._stop(has_power)
        while self.random.random() < 0.4:
            self.disk.kill_after = self.random.randrange(1, 60)
            try:
                self.start()
            except ProcessKilled:
                pass
            self._stop(has_power or self.random.random() < 0.5)
        self.start()
        left = {record.offset: record for record in self.records()}
        for record in before:
            if record.offset >= self.log.start_offset and (has_power or record.offset < point):
                assert left.get(record.offset) == record

    def _stop(self, has_power: bool) -> None:
        self.disk.crash()
        if not has_power:
            self.disk.power_loss(self.random)
            self.boot += 1

    # Checks

    def batches(self) -> list[tuple[BatchHeader, memoryview]]:
        found = []
        offset = self.log.start_offset
        while part := self.log.read(offset, 500).data:
            while part:
                header = read_header(part)
                found.append((header, part[: header.size]))
                part = part[header.size :]
            offset = header.next_offset
        return found

    def records(self) -> list[Record]:
        start_offset = self.log.start_offset
        return [
            record
            for _, data in self.batches()
            for record in decode_records(data, from_offset=start_offset, include_control=True)
        ]

    def check(self) -> None:
        log, records, batches = self.log, self.records(), self.batches()
        times = {0, *(record.timestamp + more for record in records for more in (0, 1))}
        for wanted in [time for time in times if time >= 0]:
            first = next((one for one in records if one.timestamp >= wanted), None)
            by_time = log.offset_for_timestamp(wanted)
            assert (by_time and by_time[:2]) == (first and (first.timestamp, first.offset))
        timed = [record for record in records if record.timestamp >= 0]
        largest = max(timed, key=lambda one: (one.timestamp, -one.offset), default=None)
        latest = log.max_timestamp_offset()
        assert (latest and latest[:2]) == (largest and (largest.timestamp, largest.offset))
        log.segments.positions.clear()
        for header, _ in batches:
            assert log.epochs.epoch_of(header.last_offset) == header.leader_epoch
            assert log.read(header.last_offset, 1).first_offset == header.base_offset
        self.check_transactions(batches)

    def check_transactions(self, batches: list[tuple[BatchHeader, memoryview]]) -> None:
        log = self.log
        open_since: dict[int, int] = {}
        for header, data in batches:
            if header.is_control and header.count:
                marker = decode_marker(decode_records(data, include_control=True)[0])
                first_offset = open_since.pop(header.producer_id, None)
                if first_offset is not None and marker is not None and not marker.is_commit:
                    told = log.aborted_transactions(first_offset, header.last_offset)
                    assert any(one == header.producer_id and at <= first_offset for one, at in told)
            elif header.is_transactional:
                open_since.setdefault(header.producer_id, header.base_offset)
        if not self.drops:
            stable_offset = min([log.end_offset, *open_since.values()])
            assert log.last_stable_offset(log.end_offset) == stable_offset


@pytest.mark.parametrize("seed", range(16))
def test_a_log_agrees_with_its_batches_through_any_history(seed: int) -> None:
    model = Model(seed)
    for _ in range(STEPS):
        getattr(model, model.random.choice(model.steps))()
        model.check()
