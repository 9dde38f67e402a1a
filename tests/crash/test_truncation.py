"""A torn tail: the file ends at any byte of its last two batches. What is whole stays."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.protocol.batch import seal
from tests.crash.folders import PARTITION, SEGMENT, append, batch_kinds, copied, opened_log, read_bytes
from tests.crash.load import read_all
from tests.processes import BrokerProcess
from tests.wire import Wire, create_topic
from tests.wire import append as produce


def boundaries(data: bytes) -> list[int]:
    """Where batches begin and end in a segment."""
    found = [0]
    while found[-1] < len(data):
        found.append(found[-1] + 12 + struct.unpack_from(">i", data, found[-1] + 8)[0])
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one log of ten batches, left behind by a process that was killed."""
    data = tmp_path_factory.mktemp("written") / "data"
    data.mkdir()
    with opened_log(data) as log:
        for batch in [*batch_kinds(), *batch_kinds()][:10]:
            batch[43:51] = struct.pack(">q", -1)
            batch[51:57] = struct.pack(">hi", -1, -1)
            seal(memoryview(batch))
            append(log, batch)
    return data


def test_every_byte_of_the_last_two_batches(written: Path, tmp_path: Path) -> None:
    whole = (written / str(PARTITION) / SEGMENT).read_bytes()
    edges = boundaries(whole)
    assert len(edges) == 11
    for cut in range(edges[-3], len(whole) + 1):
        data = copied(written, tmp_path / "cut")
        segment = data / str(PARTITION) / SEGMENT
        with segment.open("r+b") as file:
            file.truncate(cut)
        kept = max(edge for edge in edges if edge <= cut)
        with opened_log(data) as log:
            assert read_bytes(log) == whole[:kept], f"cut at {cut}"
            end = log.end_offset
            again = append(log, next(batch_kinds()))
            assert again == end, f"cut at {cut}"
        assert segment.read_bytes()[:kept] == whole[:kept]
        with opened_log(data) as log:
            assert log.end_offset == end + 1


@pytest.mark.parametrize("noise", [b"\0" * 500, b"\xff" * 500, b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\2" * 100])
def test_what_follows_the_last_batch_is_cut_off(written: Path, tmp_path: Path, noise: bytes) -> None:
    """A crash of the machine can leave zeros or old blocks behind the last batch."""
    data = copied(written, tmp_path / "noise")
    segment = data / str(PARTITION) / SEGMENT
    whole = segment.read_bytes()
    with segment.open("ab") as file:
        file.write(noise)
    with opened_log(data) as log:
        assert read_bytes(log) == whole
        append(log, next(batch_kinds()))
    with opened_log(data) as log:
        assert read_bytes(log)[: len(whole)] == whole


def test_torn_and_missing_index_files(written: Path, tmp_path: Path) -> None:
    whole = (written / str(PARTITION) / SEGMENT).read_bytes()
    for suffix in ("index", "timeindex", "txnindex"):
        for content in (None, b"", b"x", b"\xff" * 8, b"\0" * 800, b"\x7f" * 1201):
            data = copied(written, tmp_path / "index")
            index = (data / str(PARTITION) / SEGMENT).with_suffix(f".{suffix}")
            if content is None:
                index.unlink(missing_ok=True)
            else:
                index.write_bytes(content)
            with opened_log(data) as log:
                assert read_bytes(log) == whole, (suffix, content)
                for offset in range(log.end_offset):
                    assert log.read(offset, 1, limit=log.end_offset).first_offset <= offset


def test_a_broker_starts_on_a_torn_log(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process().start()
    with Wire(broker.bootstrap) as wire:
        create_topic(wire, "torn")
        for number in range(10):
            assert produce(wire, "torn", b"%d" % number) == number
    broker.kill()
    segment = broker.partition_folder("torn") / SEGMENT
    whole = segment.read_bytes()
    edges = boundaries(whole)
    for cut in (edges[-1] - 1, edges[-2] + 11, edges[-3] + 60, edges[-3] + 1):
        with segment.open("r+b") as file:
            file.truncate(cut)
        kept = sum(edge <= cut for edge in edges) - 1
        broker.start()
        assert list(read_all(broker.bootstrap, "torn", 0).values()) == [b"%d" % n for n in range(kept)]
        broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert produce(wire, "torn", b"on") == kept
