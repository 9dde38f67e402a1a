"""Apache Kafka's own dumper reads every file of a log and finds nothing wrong."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from bench.apache_kafka import run_tool

from millstream.protocol.batch import ControlMarker, Record, encode_batch, encode_marker
from millstream.storage.log import Log
from tests.storage.logs import NOW_MS, World, append

pytestmark = pytest.mark.java

KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
COMPLAINT = re.compile(
    r"mismatch|out of order|invalid|isvalid: false|corrupt|exception|not found", re.IGNORECASE
)
FOLLOWED = re.compile(r"^ *(-?\d+) is followed by \d+$", re.MULTILINE)


def write_everything(log: Log, random: Random, sequences: dict[int, int]) -> None:
    """Plain, idempotent and transactional batches of all codecs, times in disorder, commits and aborts."""
    for number in range(200):
        producer_id = random.choice((-1, 1, 2, 3))
        count = random.randrange(1, 5)
        sequence = sequences.get(producer_id, 0)
        records = [
            Record(
                key=random.choice((None, b"key")),
                value=random.choice((None, b"v" * random.randrange(200))),
                timestamp=NOW_MS + number * 10 + random.randrange(-300, 300),
                headers=(("name", b"value"),),
            )
            for _ in range(count)
        ]
        is_known = producer_id >= 0
        data = encode_batch(
            records,
            codec=random.randrange(5),
            is_transactional=producer_id == 3,
            producer_id=producer_id,
            producer_epoch=0 if is_known else -1,
            base_sequence=sequence if is_known else -1,
        )
        append(log, data, number // 70)
        sequences[producer_id] = sequence + count
        if number % 30 == 29:
            marker = ControlMarker(number % 60 == 29, 1)
            append(
                log, encode_marker(marker, producer_id=3, producer_epoch=0, timestamp_ms=NOW_MS), number // 70
            )


def test_nothing_is_wrong_after_a_stop_a_kill_and_a_truncation(world: World, tmp_path: Path) -> None:
    random = Random(4)
    sequences: dict[int, int] = {}
    log = world.open()
    write_everything(log, random, sequences)
    log.close()
    copies = [_copy(log, tmp_path / "stopped")]
    log = world.open(is_clean=True)
    write_everything(log, random, {**sequences})
    log.close(is_clean=False)
    log = world.open()
    log.close()
    copies.append(_copy(log, tmp_path / "recovered"))
    log = world.open(is_clean=True)
    log.truncate_to(log.end_offset - 100)
    log.close()
    copies.append(_copy(log, tmp_path / "truncated"))

    files = [path for copy in copies for path in sorted(copy.iterdir()) if path.suffix in KINDS]
    assert {path.suffix for path in files} == set(KINDS)
    names = ",".join(map(str, files))
    done = run_tool("org.apache.kafka.tools.DumpLogSegments", ["--deep-iteration", "--files", names])
    printed = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    complaint = COMPLAINT.search(printed)
    assert complaint is None, printed[max(0, complaint.start() - 300) : complaint.end() + 300]
    # it says "-1 is followed by" of every segment that does not begin at 0, also of Kafka's own
    assert set(FOLLOWED.findall(printed)) <= {"-1"}
    parts = dict(zip(*[iter(re.split(r"^Dumping (.*)$", printed, flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert list(parts) == [str(path) for path in files]
    for copy in copies:
        offsets = [
            int(offset)
            for path in sorted(copy.glob("*.log"))
            for offset in re.findall(r"^\| offset: (\d+) ", parts[str(path)], re.MULTILINE)
        ]
        assert offsets == list(range(len(offsets)))
        assert len(offsets) > 400
        assert sum(parts[str(path)].count("producerId:") for path in copy.glob("*.txnindex")) >= 3
        assert sum(parts[str(path)].count("offset:") for path in copy.glob("*.index")) > 40
        assert sum(parts[str(path)].count("timestamp:") for path in copy.glob("*.timeindex")) > 20
        assert all(f"producerId: {producer}" in _last_snapshot(copy, parts) for producer in (1, 2, 3))


def _last_snapshot(copy: Path, parts: dict[str, str]) -> str:
    return parts[str(max(copy.glob("*.snapshot")))]


def _copy(log: Log, target: Path) -> Path:
    target.mkdir()
    for path in Path(log.folder).iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target
