"""Compaction as others see it: librdkafka reads the result, Kafka's dumper the files, Kafka does the same."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from bench.apache_kafka import KafkaBroker, run_tool
from confluent_kafka import Producer as RdProducer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from millstream.errors import NotLeaderOrFollower
from millstream.protocol.batch import BatchHeader, Record, decode_records, encode_batch
from millstream.protocol.fetched import whole_batches
from tests.compat.records import read_everything
from tests.compat.topics import create_topic
from tests.processes import BrokerProcess, until
from tests.storage.ledger import COMPACTED, Ledger, Producer
from tests.storage.logs import FaultyDisk
from tests.wire import Wire, produce

PATIENCE_S = 40.0
EAGER = {"log_cleaner_backoff_ms": "50", "log_segment_delete_delay_ms": "0"}
WRITTEN_MS = 1_700_000_000_000
DUMPER = "org.apache.kafka.tools.DumpLogSegments"
COMPLAINTS = re.compile(
    r"mismatch|out of order|invalid|non-?consecutive|isvalid: false|corrupt|exception", re.IGNORECASE
)


def cleaned_until(data: Path, topic: str) -> int:
    path = data / "cleaner-offset-checkpoint"
    rows = path.read_text().splitlines()[2:] if path.exists() else []
    return next((int(row.split()[2]) for row in rows if row.split()[0] == topic), 0)


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_librdkafka_finds_the_last_value_of_each_key(
    broker_process: Callable[..., BrokerProcess], codec: str
) -> None:
    broker = broker_process(**EAGER).start()
    create_topic(
        broker.bootstrap,
        "kept",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
        internal_segment_bytes="20000",
    )
    producer = RdProducer(
        {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "batch.num.messages": 50}
    )
    expected: dict[bytes, bytes | None] = {}
    for number in range(10_000):
        key, value = b"%d" % (number % 97), b"value %d" % number if number % 11 else None
        producer.produce("kept", value, key)
        expected[key] = value
        if number % 500 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0
    until(lambda: cleaned_until(broker.data, "kept") > 9000, PATIENCE_S, "the log is compacted")
    found = read_everything(broker.bootstrap, "kept")
    assert {record.key: record.value for record in found} == expected
    assert len(found) < 2000


@pytest.mark.java
@pytest.mark.usefixtures("quick_java")
def test_kafkas_dumper_reads_compacted_segments(tmp_path: Path) -> None:
    """Every kind of batch that compaction leaves: changed, empty, with a horizon, markers."""
    ledger = Ledger(FaultyDisk(), str(tmp_path), COMPACTED)
    sequenced, aborter, committer = Producer(1), Producer(2), Producer(3)
    for number in range(120):
        ledger.append((b"a%d" % (number % 7), b"%d" % number), (b"b", b"x" * 60), codec=number % 5)
        ledger.append((b"c%d" % (number % 40), None if number % 2 else b"y"), producer=sequenced)
        ledger.begin(aborter)
        ledger.append((b"b", b"never"), producer=aborter)
        ledger.end(aborter, is_commit=False)
        ledger.begin(committer)
        ledger.append((b"d%d" % (number % 2), b"%d" % number), producer=committer)
        ledger.end(committer, is_commit=True)
        ledger.clock.ms += 10
        if number == 80:
            ledger.clean()
    ledger.clean()
    expected = ledger.read(is_committed=False)
    ledger.log.close()
    files = sorted(path for path in Path(ledger.folder).iterdir() if path.suffix != ".snapshot")
    names = ",".join(map(str, (path for path in files if path.name != "leader-epoch-checkpoint")))
    done = run_tool(DUMPER, ["--files", names, "--deep-iteration"])
    printed = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    complaint = COMPLAINTS.search(printed)
    assert complaint is None, printed[max(complaint.start() - 500, 0) : complaint.start() + 500]
    found = re.findall(
        r"\| offset: (\d+) CreateTime: (-?\d+) keySize: (\d+) valueSize: (-?\d+)[^\n]*", printed
    )
    data = [
        (int(offset), int(time_ms), int(key), int(value))
        for (offset, time_ms, key, value), line in zip(
            found, re.findall(r"\| offset: \d+ [^\n]*", printed), strict=True
        )
        if "endTxnMarker" not in line
    ]
    assert data == [
        (one.offset, one.timestamp, len(one.key or b""), -1 if one.value is None else len(one.value))
        for one in expected
    ]
    assert "deleteHorizonMs: OptionalLong[" in printed
    assert re.search(r"count: 0 baseSequence: \d+", printed)
    assert "endTxnMarker: ABORT" in printed
    assert sum(path.suffix == ".index" and path.stat().st_size > 0 for path in files) > 0


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaBroker]:
    settings = {
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.retention.check.interval.ms": "1000",
    }
    with KafkaBroker(tmp_path / "kafka", heap="512m", settings=settings) as node:
        yield node


@pytest.mark.java
@pytest.mark.usefixtures("quick_java")
def test_kafka_keeps_the_same_batches_of_the_same_log(
    kafka: KafkaBroker, broker_process: Callable[..., BrokerProcess]
) -> None:
    """The same batches go to both; afterwards both logs have the same offsets, counts, producers, records."""
    broker = broker_process(log_cleaner_min_cleanable_ratio="0.01", **EAGER).start()
    batches = list(mixture())
    outcomes = []
    for bootstrap, data in ((kafka.bootstrap, kafka.data), (broker.bootstrap, broker.data)):
        create_topic(bootstrap, "same", segment_bytes=str(1 << 20), file_delete_delay_ms="0")
        with Wire(bootstrap) as wire:
            for sent in batches:
                send(wire, bytearray(sent))
        set_policy(bootstrap, "compact")  # now that all is written, so that both do it in one round
        outcomes.append(compacted(data))
    (theirs, their_records), (ours, our_records) = outcomes
    assert our_records == their_records
    assert ours == theirs
    assert any(not count for _, _, count, *_ in ours)
    assert len(our_records) < sum(len(decode_records(one)) for one in batches) / 3


@pytest.mark.java
@pytest.mark.usefixtures("quick_java")
def test_kafka_keeps_the_same_batches_of_the_same_transactions(
    kafka: KafkaBroker, broker_process: Callable[..., BrokerProcess]
) -> None:
    """Three rounds on both: records of aborted transactions go, then their markers get a horizon, then go."""
    broker = broker_process(log_cleaner_min_cleanable_ratio="0.01", **EAGER).start()
    outcomes = []
    for bootstrap, data in ((kafka.bootstrap, kafka.data), (broker.bootstrap, broker.data)):
        create_topic(
            bootstrap,
            "same",
            segment_bytes=str(1 << 20),
            file_delete_delay_ms="0",
            delete_retention_ms="0",
            retention_ms="-1",
        )
        transact(bootstrap, 40)
        rounds = []
        for number in range(3):
            fill_segment(bootstrap, number)
            set_policy(bootstrap, "compact")
            headers, records = compacted(data)
            rounds.append(([header[:4] + header[5:6] + header[9:] for header in headers], records))
            set_policy(bootstrap, "delete")
        outcomes.append(rounds)
    for theirs, ours in zip(*outcomes, strict=True):
        assert [(one.offset, one.key) for one in ours[1]] == [(one.offset, one.key) for one in theirs[1]]
        assert ours[0] == theirs[0]
    markers = [sum(header[-1] is True for header in headers) for headers, _ in outcomes[1]]
    assert markers[0] == markers[1] == 80
    assert 0 < markers[2] < 40


def transact(bootstrap: str, count: int) -> None:
    """Transactions of one producer and then of another, every third one aborted, on few keys."""
    for which in range(2):
        producer = RdProducer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1000, "transactional.id": f"same-{which}"}
        )
        producer.init_transactions(PATIENCE_S)
        for number in range(count):
            producer.begin_transaction()
            for key in range(number % 4 + 1):
                producer.produce("same", b"%d" % number, b"%d-%d" % (which, key), timestamp=WRITTEN_MS)
            assert producer.flush(PATIENCE_S) == 0
            if number % 3:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)


def send(wire: Wire, batch: bytearray) -> None:
    """Write a batch. Kafka shows a new topic before its leader knows that it leads."""
    codes = [NotLeaderOrFollower.code]

    def is_answered() -> bool:
        codes.append(produce(wire, "same", batch).error_code)
        return codes[-1] != NotLeaderOrFollower.code

    until(is_answered, PATIENCE_S, "the leader leads")
    assert codes[-1] == 0


def fill_segment(bootstrap: str, number: int) -> None:
    """Write until another segment is the active one."""
    with Wire(bootstrap) as wire:
        for part in range(3):
            record = Record(key=b"filler %d" % part, value=bytes([number]) * 700_000, timestamp=WRITTEN_MS)
            send(wire, encode_batch([record]))


def mixture() -> Iterator[bytes]:
    """Batches with all codecs, tombstones and sequences; the first ones of producers never seen again."""
    random = Random(8)
    sequences = dict.fromkeys(range(4), 0)
    now_ms = int(time.time() * 1000)
    for number in range(400):
        records = [
            Record(
                key=b"%d" % min(int(random.expovariate(0.01)), 600),
                value=None if random.random() < 0.1 else random.randbytes(random.randrange(400)),
                timestamp=now_ms + number,
                headers=(("n", b"%d" % number),),
            )
            for _ in range(random.randrange(1, 60))
        ]
        producer_id = base_sequence = producer_epoch = -1
        producer = random.randrange(8)
        if number < 20:
            producer_id, producer_epoch, base_sequence = 8000 + number, 0, 0
        elif producer in sequences:
            producer_id, producer_epoch, base_sequence = 9000 + producer, 0, sequences[producer]
            sequences[producer] += len(records)
        yield bytes(
            encode_batch(
                records,
                codec=random.choice([0, 0, 1, 2, 3, 4]),
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
            )
        )


def set_policy(bootstrap: str, policy: str) -> None:
    """Set it, and wait until the broker goes by it: Kafka's answers when its controller has written it."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, "same", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([topic]).values():
        done.result(PATIENCE_S)

    def is_seen() -> bool:
        (told,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "same")]).values()
        return bool(told.result(PATIENCE_S)["cleanup.policy"].value == policy)

    until(is_seen, PATIENCE_S, "the policy is seen")


def compacted(data: Path) -> tuple[list[tuple[object, ...]], list[Record]]:
    """The contents of a log, once everything before its active segment is compacted."""
    folder = data / "same-0"
    active = max(int(path.stem) for path in folder.glob("*.log"))
    assert active > 0
    until(lambda: cleaned_until(data, "same") >= active, PATIENCE_S, "it is compacted")
    until(lambda: not list(folder.glob("*.deleted")), PATIENCE_S, "old segments are gone")
    return contents(folder)


def contents(folder: Path) -> tuple[list[tuple[object, ...]], list[Record]]:
    """What a log's batches say of themselves, and its records."""
    headers: list[tuple[object, ...]] = []
    records: list[Record] = []
    for path in sorted(folder.glob("*.log")):
        data = memoryview(path.read_bytes())
        headers += [described(header) for header, _ in whole_batches(data, True)]
        records += decode_records(data)
    return headers, records


def described(header: BatchHeader) -> tuple[object, ...]:
    return (
        header.base_offset,
        header.last_offset,
        header.count,
        header.codec,
        header.max_timestamp,
        header.has_delete_horizon,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_control,
    )
