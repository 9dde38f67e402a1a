"""`millstream log dump`: files of Millstream and of Apache Kafka, whole and damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.apache_kafka import KafkaBroker

from millstream.testing import Broker
from tests.cli.conftest import CommandLine
from tests.storage.logs import World
from tests.storage.test_transaction_check import stopped

LINES = b"".join(b"key%d:%s\n" % (n, b"v" * 1000) for n in range(2000))
SMALL_SEGMENTS = ("-c", "segment.bytes=1048576", "-c", "index.interval.bytes=1000", "-p", "2")


@pytest.fixture(scope="module", params=["millstream", pytest.param("kafka", marks=pytest.mark.java)])
def data(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str]]:
    """The data folder of a running broker, and its address."""
    folder = tmp_path_factory.mktemp("data")
    if request.param == "kafka":
        with KafkaBroker(folder, heap="400m") as kafka:
            yield kafka.data, kafka.bootstrap
    else:
        with Broker(data=folder) as broker:
            yield folder, broker.bootstrap


@pytest.fixture
def log(millstream: CommandLine, data: tuple[Path, str]) -> Path:
    """The folder of a partition with records in several segments."""
    folder, bootstrap = data
    if not (folder / "dumped-0").exists():
        millstream("topic", "create", "dumped", *SMALL_SEGMENTS, "-b", bootstrap)
        for start in range(0, len(LINES), 100_000):
            part = LINES[:start].count(b"\n"), LINES[: start + 100_000].count(b"\n")
            lines = b"".join(LINES.splitlines(True)[part[0] : part[1]])
            millstream(
                "produce", "dumped", "-p", "0", "-K", ":", "-H", "h=\u00e9", "-b", bootstrap, given=lines
            )
    return folder / "dumped-0"


def test_records_of_a_segment(millstream: CommandLine, log: Path) -> None:
    batches = []
    segments = sorted(log.glob("*.log"))
    assert len(segments) > 1
    for segment in segments:
        batches += millstream("log", "dump", str(segment), "--records", "--json").json_lines
    records = [record for batch in batches for record in batch["records"]]
    assert [record["offset"] for record in records] == list(range(2000))
    assert [record["key"] for record in records] == [f"key{n}" for n in range(2000)]
    assert records[7]["headers"] == [{"key": "h", "value": "\u00e9"}]
    first = batches[0]
    assert (first["position"], first["base_offset"], first["codec"], first["control"]) == (
        0,
        0,
        "none",
        False,
    )
    assert first["last_offset"] == first["count"] - 1
    assert first["producer_id"] >= 0


def test_indexes_point_to_batches(millstream: CommandLine, log: Path) -> None:
    """Every entry of an offset index names a batch by its last offset and its place."""
    segment = min(log.glob("*.log"))
    batches = millstream("log", "dump", str(segment), "--json").json_lines
    places = {(batch["last_offset"], batch["position"]) for batch in batches}
    entries = millstream("log", "dump", str(segment.with_suffix(".index")), "--json").json_lines
    assert entries
    assert {(entry["offset"], entry["position"]) for entry in entries} <= places
    times = millstream("log", "dump", str(segment.with_suffix(".timeindex")), "--json").json_lines
    assert times
    assert times[-1]["timestamp"] == max(batch["max_timestamp"] for batch in batches)


def test_other_files(millstream: CommandLine, log: Path) -> None:
    snapshots = sorted(log.glob("*.snapshot"))
    assert snapshots
    producers = millstream("log", "dump", str(snapshots[0]), "--json").json_lines
    assert max(producer["last_offset"] for producer in producers) == int(snapshots[0].stem) - 1
    assert {producer["transaction_start"] for producer in producers} == {-1}
    metadata = millstream("log", "dump", str(log / "partition.metadata"), "--json").json_lines
    assert {entry["key"] for entry in metadata} == {"version", "topic_id"}
    meta = millstream("log", "dump", str(log.parent / "meta.properties"), "--json").json_lines
    assert "cluster.id" in {entry["key"] for entry in meta}


def test_checkpoints_of_a_stopped_broker(millstream: CommandLine, tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        millstream("produce", "checkpointed", "-b", broker.bootstrap, given=b"a\nb\n")
    folder = tmp_path / "checkpointed-0"
    (epoch,) = millstream("log", "dump", str(folder / "leader-epoch-checkpoint"), "--json").json_lines
    assert (epoch["epoch"], epoch["start_offset"]) == (0, 0)
    points = str(tmp_path / "recovery-point-offset-checkpoint")
    (entry,) = millstream("log", "dump", points, "--json").json_lines
    assert (entry["topic"], entry["partition"], entry["offset"]) == ("checkpointed", 0, 2)
    assert "damaged" not in millstream("log", "dump", str(tmp_path), "--check").text


def test_a_whole_folder(millstream: CommandLine, log: Path) -> None:
    text = millstream("log", "dump", str(log)).text
    assert "base_offset=0" in text
    assert f"{log}/partition.metadata" in text
    checked = millstream("log", "dump", str(log), "--check", "--json").json
    segments = [row for row in checked if row["file"].endswith(".log")]
    assert sum(row["records"] for row in segments) == 2000
    assert (segments[0]["first_offset"], segments[-1]["last_offset"]) == (0, 1999)
    assert not any(row["error"] for row in checked)


def test_reading_does_not_change_a_file(millstream: CommandLine, log: Path, tmp_path: Path) -> None:
    """An active segment's index may be padded with zeros: they are passed over, not cut off."""
    copy = tmp_path / log.name
    shutil.copytree(log, copy)
    index = min(copy.glob("*.index"))
    whole = millstream("log", "dump", str(index), "--json").out
    with index.open("ab") as file:
        file.write(bytes(8 * 1000))
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in copy.iterdir()}
    assert millstream("log", "dump", str(index), "--json").out == whole
    millstream("log", "dump", str(copy))
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in copy.iterdir()} == before


def test_damage_is_named_with_its_place(millstream: CommandLine, log: Path, tmp_path: Path) -> None:
    copy = tmp_path / log.name
    shutil.copytree(log, copy)
    first, second, *_ = sorted(copy.glob("*.log"))
    data = bytearray(first.read_bytes())
    batches = millstream("log", "dump", str(first), "--json").json_lines
    place = batches[3]["position"]
    data[place + 90] ^= 1
    first.write_bytes(data)
    second.write_bytes(second.read_bytes()[:-1])
    snapshot = min(copy.glob("*.snapshot"))
    snapshot.write_bytes(b"\0\1\0\0\0\0\0\0\0\0")
    result = millstream.run("log", "dump", str(copy), "--check")
    assert result.code == 1
    assert f"{first} is not good from byte {place} on" in result.err
    assert "does not match its checksum" in result.err
    assert f"{second} is not good from byte" in result.err
    assert f"{snapshot}: wrong checksum" in result.err
    assert result.err.count("damaged:") == 3
    dumped = millstream.run("log", "dump", str(first), "--json")
    assert dumped.code == 1
    assert [json.loads(line)["position"] for line in dumped.out.splitlines()] == [
        batch["position"] for batch in batches[:3]
    ]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_is_held_against_its_segment(
    millstream: CommandLine, log: Path, tmp_path: Path, suffix: str
) -> None:
    copy = tmp_path / log.name
    shutil.copytree(log, copy)
    index = min(copy.glob(f"*{suffix}"))
    whole = index.read_bytes()
    assert millstream.run("log", "dump", str(index), "--check").code == 0
    for position in (0, 1, 5, 7, len(whole) // 2, len(whole) - 11, len(whole) - 6, len(whole) - 1):
        index.write_bytes(whole[:position] + bytes([whole[position] ^ 0x80]) + whole[position + 1 :])
        result = millstream.run("log", "dump", str(index), "--check")
        assert (result.code, f"damaged: {index}" in result.err) == (1, True), f"position {position}"
    if suffix == ".timeindex":
        index.write_bytes(whole[:-12])
        assert "largest timestamp" in millstream.run("log", "dump", str(index), "--check").err


def test_a_transaction_index_is_held_against_its_segment(millstream: CommandLine, tmp_path: Path) -> None:
    index = stopped(World(tmp_path))[0]
    whole = index.read_bytes()
    assert len(whole) == 34
    folder = str(index.parent)
    assert millstream.run("log", "dump", folder, "--check").code == 0
    for position in range(33):
        index.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        result = millstream.run("log", "dump", str(index), "--check")
        assert (result.code, f"damaged: {index}" in result.err) == (1, True), f"position {position}"
    for shorter in (b"", whole[:-3]):
        index.write_bytes(shorter)
        assert f"damaged: {index}" in millstream.run("log", "dump", str(index), "--check").err
    index.unlink()
    assert f"damaged: {index}" in millstream.run("log", "dump", folder, "--check").err


def test_what_is_no_file_of_a_broker(millstream: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    result = millstream.run("log", "dump", str(tmp_path / "notes.txt"))
    assert (result.code, "none of a broker's files" in result.err) == (1, True)
    empty = millstream.run("log", "dump", str(tmp_path))
    assert (empty.code, "none of a broker's files" in empty.err) == (1, True)
    assert millstream.run("log", "dump", str(tmp_path / "absent")).code == 2


def test_a_batch_larger_than_the_window(millstream: CommandLine, cli_broker: Broker, tmp_path: Path) -> None:
    from millstream.protocol.batch import encode_batch
    from millstream.protocol.record import Record

    big = encode_batch([Record(value=b"x" * 9_000_000, timestamp=1)], base_offset=0)
    small = encode_batch([Record(value=b"y", timestamp=1)], base_offset=1)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(small[:0] + big + small)
    lines = millstream("log", "dump", str(path), "--json").json_lines
    assert [line["base_offset"] for line in lines] == [0, 1]
    assert lines[1]["position"] == len(big)
