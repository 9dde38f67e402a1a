"""A changed byte in a segment or its other files is found, and never served as good data or believed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.config.log import LogConfig
from millstream.errors import KafkaError, KafkaStorageError
from millstream.protocol.batch import (
    ControlMarker,
    Record,
    decode_records,
    encode_batch,
    encode_marker,
    read_header,
)
from millstream.storage.log import Log
from tests.crash.folders import PARTITION, SEGMENT, append, batch_kinds, copied, opened_log, read_bytes
from tests.crash.test_truncation import boundaries
from tests.processes import BrokerProcess
from tests.wire import Wire, batches, create_topic, fetch, values
from tests.wire import append as produce

KAFKA_STORAGE_ERROR = 56
CHANGES = (0x01, 0x80, 0xFF)
HOUR_MS = 3_600_000
MIXED = LogConfig(index_interval_bytes=200, retention_ms=2 * HOUR_MS)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of five batches, stopped cleanly: what is in it was durable and is not up for recovery."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    data.mkdir()
    with opened_log(data, is_clean=True) as log:
        for batch in batch_kinds():
            append(log, batch)
    return data


@pytest.mark.parametrize("change", CHANGES)
def test_every_byte_of_a_segment(stopped: Path, tmp_path: Path, change: int) -> None:
    """Read from the start and from each offset, what is given out is what was written, or nothing."""
    data = copied(stopped, tmp_path / "data")
    segment = data / str(PARTITION) / SEGMENT
    whole = segment.read_bytes()
    edges = boundaries(whole)
    wrong: list[int] = []
    with opened_log(data) as log, segment.open("r+b", buffering=0) as file:
        end = log.end_offset
        for position in range(len(whole)):
            file.seek(position)
            file.write(bytes([whole[position] ^ change]))
            good = {
                whole[start:stop]
                for start in edges
                for stop in edges
                if start < stop and (stop <= position or start > position)
            }
            for offset in range(end):
                try:
                    piece = bytes(log.read(offset, 1 << 20, limit=end).data)
                except KafkaError:
                    continue
                if piece not in good:
                    wrong.append(position)
                    break
            file.seek(position)
            file.write(whole[position : position + 1])
        assert not wrong, f"changed bytes were served, or silently nothing, from positions {wrong}"
        assert bytes(log.read(0, 1 << 20, limit=end).data) == whole


def test_opened_with_a_changed_byte(stopped: Path, tmp_path: Path) -> None:
    """The same after a start: nothing that was durable is cut off, and the damage is not served."""
    whole = (stopped / str(PARTITION) / SEGMENT).read_bytes()
    edges = boundaries(whole)
    for position in range(0, len(whole), 3):
        data = copied(stopped, tmp_path / "data")
        segment = data / str(PARTITION) / SEGMENT
        changed = bytearray(whole)
        changed[position] ^= 0x10
        segment.write_bytes(changed)
        damaged = max(edge for edge in edges if edge <= position)
        with opened_log(data) as log:
            try:
                piece = bytes(log.read(0, 1 << 20, limit=log.end_offset).data)
            except KafkaError:
                piece = b""
            assert piece == whole[: len(piece)], f"position {position}"
            assert len(piece) <= damaged, f"position {position}"
        assert segment.read_bytes() == bytes(changed), f"position {position}: durable bytes were cut off"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three segments and two leader epochs, with aborted transactions, stopped cleanly."""
    data = tmp_path_factory.mktemp("mixed") / "data"
    data.mkdir()
    now_ms = int(time.time() * 1000)
    with opened_log(data, is_clean=True, config=MIXED) as log:
        for number in range(30):
            producer_id = number % 3
            record = Record(value=b"%d" % number, timestamp=now_ms - HOUR_MS + number)
            batch = encode_batch(
                [record],
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number // 3,
                is_transactional=True,
            )
            log.append(memoryview(batch), read_header(batch), number // 15)
            marker = ControlMarker(producer_id == 0, 0)
            batch = encode_marker(
                marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=record.timestamp
            )
            log.append(memoryview(batch), read_header(batch), number // 15)
            if number % 10 == 9 and number < 29:
                log.roll()
    return data


def committed(log: Log) -> list[bytes]:
    """The values that a reader of committed records sees."""
    found: list[bytes] = []
    offset = log.start_offset
    while offset < log.end_offset:
        piece = log.read(offset, 1000, limit=log.end_offset)
        aborted = log.aborted_transactions(piece.first_offset, piece.next_offset)
        found += [record.value or b"" for record in decode_records(piece.data, aborted=aborted)]
        offset = piece.next_offset
    return found


def is_readable(log: Log, offset: int) -> bool:
    try:
        return bool(log.read(offset, 1).data)
    except KafkaStorageError:
        return False


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot", "-checkpoint"])
def test_a_changed_byte_beside_the_records(mixed: Path, tmp_path: Path, suffix: str) -> None:
    """In whatever file of a log: nothing young is deleted, nothing aborted is served, nothing is lost."""
    pick = random.Random(suffix)
    names = sorted(path.name for path in (mixed / str(PARTITION)).iterdir() if path.name.endswith(suffix))
    assert names
    for name in names:
        whole = (mixed / str(PARTITION) / name).read_bytes()
        for position in sorted(pick.sample(range(len(whole)), min(len(whole), 60))):
            data = copied(mixed, tmp_path / "data")
            changed = bytearray(whole)
            changed[position] ^= pick.choice(CHANGES)
            (data / str(PARTITION) / name).write_bytes(changed)
            with opened_log(data, config=MIXED) as log:
                what = f"{name}, position {position}"
                assert log.apply_retention(int(time.time() * 1000)) == 0, what
                assert (log.start_offset, log.end_offset) == (0, 60), what
                refused = [offset for offset in range(60) if not is_readable(log, offset)]
                if suffix == "-checkpoint" and len(refused) == 1:
                    continue  # whether the file or the one batch is wrong cannot be known
                assert committed(log) == [b"%d" % number for number in range(0, 30, 3)], what
                assert len(read_bytes(log)) == log.size_bytes, what
                sent = encode_batch([Record(value=b"0")], producer_id=2, producer_epoch=0, base_sequence=9)
                assert log.append(memoryview(sent), read_header(sent), 1).base_offset == 58, what


def test_a_broker_does_not_delete_young_records_by_a_damaged_index(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    broker = broker_process(log_retention_check_interval_ms="100").start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "young", segment_bytes=str(1 << 20))
        for number in range(60):
            produce(wire, "young", b"%d" % (number % 10) * 50_000)
    assert broker.stop() == 0
    index = broker.partition_folder("young") / SEGMENT.replace(".log", ".timeindex")
    changed = bytearray(index.read_bytes())
    changed[-10] ^= 1
    index.write_bytes(changed)
    broker.start()
    with Wire(broker.bootstrap) as wire:
        time.sleep(1)
        assert values(fetch(wire, "young", 0).records)[0] == b"0" * 50_000
    assert str(index.name) in broker.output


def test_a_broker_reports_damage_and_serves_the_rest(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "hurt")
        create_topic(wire, "well")
        for number in range(30):
            assert produce(wire, "hurt", b"%d" % number * 10, codec=number % 5) == number
        produce(wire, "well", b"unharmed")
        segment = broker.partition_folder("hurt") / SEGMENT
        whole = segment.read_bytes()
        edges = boundaries(whole)
        pick = random.Random(3)
        for position in sorted(pick.sample(range(len(whole)), 60)):
            with segment.open("r+b", buffering=0) as file:
                file.seek(position)
                file.write(bytes([whole[position] ^ 0x20]))
                damaged = sum(edge <= position for edge in edges) - 1
                for offset in {0, damaged, max(damaged - 1, 0)}:
                    answer = fetch(wire, "hurt", offset)
                    given = batches(answer.records)
                    good = [whole[edges[n] : edges[n + 1]] for n in range(offset, damaged)]
                    assert given == good[: len(given)], f"position {position}, offset {offset}"
                    if not given:
                        assert answer.error_code == KAFKA_STORAGE_ERROR, (
                            f"position {position}, offset {offset}"
                        )
                assert values(fetch(wire, "well", 0).records) == [b"unharmed"]
                file.seek(position)
                file.write(whole[position : position + 1])
        assert len(batches(fetch(wire, "hurt", 0).records)) == 30
    assert "hurt-0" in broker.output  # somebody who looks at the log sees which partition it is


def test_damage_found_after_a_clean_stop(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "hurt")
        for number in range(10):
            produce(wire, "hurt", b"%d" % number)
    assert broker.stop() == 0
    segment = broker.partition_folder("hurt") / SEGMENT
    whole = segment.read_bytes()
    edges = boundaries(whole)
    changed = bytearray(whole)
    changed[edges[4] + 65] ^= 1
    segment.write_bytes(changed)
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert values(fetch(wire, "hurt", 0).records) == [b"0", b"1", b"2", b"3"]
        assert fetch(wire, "hurt", 4).error_code == KAFKA_STORAGE_ERROR
        assert values(fetch(wire, "hurt", 5).records) == [b"5", b"6", b"7", b"8", b"9"]
        assert produce(wire, "hurt", b"10") == 10
