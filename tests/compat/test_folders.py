"""Folders are exchangeable: Kafka's dumper reads our files, we serve Kafka's, and Kafka serves ours."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.apache_kafka import KafkaBroker, run_tool

from tests.compat.records import Stored, read_everything, write_mixture
from tests.compat.topics import create_topic
from tests.processes import BrokerProcess, until

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("quick_java")]

SEGMENT_BYTES = 1 << 20
INDEX_BYTES = 4096
COMPLAINTS = re.compile(
    r"mismatch|out of order|invalid bytes|non-?consecutive|isvalid: false|corrupt|exception", re.IGNORECASE
)
RECORD = re.compile(
    rb"\| offset: (\d+) CreateTime: (\d+) keySize: (-?\d+) valueSize: (-?\d+) "
    rb"sequence: (-?\d+) headerKeys: \[(.*?)\]"
)
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)


def log_files(folder: Path) -> list[Path]:
    """What a log consists of: segments, indexes and snapshots."""
    suffixes = {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    return sorted(path for path in folder.iterdir() if path.suffix in suffixes)


def dumped(files: list[Path]) -> str:
    """What Kafka's dumper says of them."""
    names = ",".join(map(str, files))
    done = run_tool("org.apache.kafka.tools.DumpLogSegments", ["--files", names, "--deep-iteration"])
    printed = done.stdout.decode(errors="replace")
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return printed


def test_kafkas_dumper_reads_our_files(broker_process: Callable[..., BrokerProcess]) -> None:
    """After a clean stop, right after a kill, and after the start that follows."""
    broker = broker_process(
        log_segment_bytes=str(SEGMENT_BYTES), log_index_interval_bytes=str(INDEX_BYTES)
    ).start()
    create_topic(broker.bootstrap, "mixed")
    write_mixture(broker.bootstrap, "mixed")
    copies: dict[str, tuple[Path, list[Stored]]] = {}

    def keep(name: str, records: list[Stored]) -> None:
        copy = broker.data.parent / name
        shutil.copytree(broker.partition_folder("mixed"), copy)
        copies[name] = copy, records

    records = read_everything(broker.bootstrap, "mixed")
    assert broker.stop() == 0
    keep("stopped", records)
    broker.start()
    write_mixture(broker.bootstrap, "mixed")
    records = read_everything(broker.bootstrap, "mixed")
    broker.kill()
    keep("killed", records)
    broker.start()
    assert read_everything(broker.bootstrap, "mixed") == records
    assert broker.stop() == 0
    keep("recovered", records)

    files = [path for copy, _ in copies.values() for path in log_files(copy)]
    kinds = {path.suffix for path in files}
    assert {".log", ".index", ".timeindex", ".snapshot"} <= kinds
    printed = dumped(files)
    complaint = COMPLAINTS.search(printed)
    assert complaint is None, printed[max(complaint.start() - 500, 0) : complaint.start() + 500]
    parts = dict(zip(*[iter(re.split(r"^Dumping (.*)$", printed, flags=re.MULTILINE)[1:])] * 2, strict=True))
    assert set(parts) == {str(path) for path in files}
    for copy, expected in copies.values():
        segments = [path for path in log_files(copy) if path.suffix == ".log"]
        assert len(segments) >= 3
        text = "".join(parts[str(path)] for path in segments).encode()
        found = [
            (int(offset), int(time_ms), int(key), int(value), names.decode())
            for offset, time_ms, key, value, _, names in RECORD.findall(text)
        ]
        assert found == [
            (
                record.offset,
                record.timestamp_ms,
                -1 if record.key is None else len(record.key),
                -1 if record.value is None else len(record.value),
                ",".join(name for name, _ in record.headers),
            )
            for record in expected
        ]
        index_entries = sum(
            parts[str(path)].count("offset:") for path in log_files(copy) if path.suffix == ".index"
        )
        assert index_entries > 30
        snapshots = [parts[str(path)] for path in log_files(copy) if path.suffix == ".snapshot"]
        assert any("producerId:" in text for text in snapshots)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Apache Kafka with small segments; not started."""
    settings = {"log.segment.bytes": str(SEGMENT_BYTES), "log.index.interval.bytes": str(INDEX_BYTES)}
    node = KafkaBroker(tmp_path_factory.mktemp("kafka"), heap="512m", settings=settings)
    yield node
    node.kill()


class Exchange:
    """Kafka's folders of a clean stop and of a kill, with what their consumers saw; and ours under Kafka."""

    def __init__(self, kafka: KafkaBroker, keep: Path, ours: BrokerProcess) -> None:
        self.keep = keep
        kafka.start()
        create_topic(kafka.bootstrap, "stopped")
        create_topic(kafka.bootstrap, "foreign")
        write_mixture(kafka.bootstrap, "stopped")
        self.stopped = read_everything(kafka.bootstrap, "stopped")
        kafka.stop()
        self._copy(kafka, "stopped")
        kafka.start()
        create_topic(kafka.bootstrap, "killed")
        write_mixture(kafka.bootstrap, "killed")
        self.killed = read_everything(kafka.bootstrap, "killed")
        kafka.kill()
        self._copy(kafka, "killed")
        # ours, stopped cleanly, takes the place of an empty log of Kafka's
        ours.start()
        create_topic(ours.bootstrap, "foreign")
        write_mixture(ours.bootstrap, "foreign")
        self.ours = read_everything(ours.bootstrap, "foreign")
        assert ours.stop() == 0
        replace_log(kafka.data / "foreign-0", ours.partition_folder("foreign"))
        kafka.start()
        self.ours_under_kafka = read_everything(kafka.bootstrap, "foreign")
        write_mixture(kafka.bootstrap, "foreign", with_idempotent=False)
        self.continued = read_everything(kafka.bootstrap, "foreign")
        kafka.stop()
        self.kafka_log = kafka.log_path.read_text()
        self._copy(kafka, "foreign")

    def _copy(self, kafka: KafkaBroker, topic: str) -> None:
        shutil.copytree(kafka.data / f"{topic}-0", self.keep / topic)
        for name in CHECKPOINTS:
            if (kafka.data / name).exists():
                shutil.copy(kafka.data / name, self.keep / f"{topic}.{name}")


def replace_log(target: Path, source: Path) -> None:
    """Put one broker's log where another's was; the folder keeps the id of the topic it belongs to."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.name != "partition.metadata":
            shutil.copy(path, target)


@pytest.fixture(scope="module")
def exchange(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exchange]:
    folder = tmp_path_factory.mktemp("exchange")
    options = {"log.segment.bytes": str(SEGMENT_BYTES), "log.index.interval.bytes": str(INDEX_BYTES)}
    ours = BrokerProcess(folder / "ours", options=options)
    try:
        yield Exchange(kafka, folder, ours)
    finally:
        ours.kill()


def serve_kafkas_log(
    broker: BrokerProcess, exchange: Exchange, topic: str, *, is_clean: bool
) -> list[Stored]:
    """What our broker serves after it was started on the log that Kafka wrote."""
    broker.start()
    create_topic(broker.bootstrap, topic)
    folder = broker.partition_folder(topic)
    until(folder.is_dir, 30, "the folder is there")
    broker.stop() if is_clean else broker.kill()
    replace_log(folder, exchange.keep / topic)
    if is_clean:
        for name in CHECKPOINTS:
            source = exchange.keep / f"{topic}.{name}"
            if source.exists():
                lines = [line for line in source.read_text().splitlines()[2:] if line.startswith(f"{topic} ")]
                (broker.data / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    broker.start()
    return read_everything(broker.bootstrap, topic)


@pytest.mark.parametrize("topic", ["stopped", "killed"])
def test_we_serve_what_kafka_wrote(
    exchange: Exchange, broker_process: Callable[..., BrokerProcess], topic: str
) -> None:
    """Record for record: after a clean stop, and after a kill, with the indexes Kafka preallocates."""
    expected = exchange.stopped if topic == "stopped" else exchange.killed
    segments = list((exchange.keep / topic).glob("*.log"))
    assert len(segments) >= 3
    if topic == "killed":
        assert max(path.stat().st_size for path in (exchange.keep / topic).glob("*.index")) >= 10 << 20
    broker = broker_process(log_segment_bytes=str(SEGMENT_BYTES))
    found = serve_kafkas_log(broker, exchange, topic, is_clean=topic == "stopped")
    assert len(found) > 2000
    assert found == expected
    # the producers' ids of another cluster are in this log: ours may be the same, so new ones are plain here
    write_mixture(broker.bootstrap, topic, with_idempotent=False)
    more = read_everything(broker.bootstrap, topic)
    assert more[: len(found)] == found
    assert [record.offset for record in more] == list(range(len(more)))
    assert broker.stop() == 0


def test_kafka_serves_what_we_wrote(exchange: Exchange) -> None:
    """Record for record, and it goes on from there without touching what it found."""
    assert len(exchange.ours) > 2000
    assert exchange.ours_under_kafka == exchange.ours
    assert exchange.continued[: len(exchange.ours)] == exchange.ours
    assert [record.offset for record in exchange.continued] == list(range(len(exchange.continued)))


def test_a_log_goes_back_and_forth(exchange: Exchange, broker_process: Callable[..., BrokerProcess]) -> None:
    """Begun by us, continued by Kafka, served by us again."""
    broker = broker_process(log_segment_bytes=str(SEGMENT_BYTES))
    assert serve_kafkas_log(broker, exchange, "foreign", is_clean=True) == exchange.continued
