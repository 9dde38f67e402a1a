"""kafka-python: every codec, with fetch sessions and idempotence by default; topics and configs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    AlterConfigOp,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    OffsetSpec,
)
from kafka.errors import (
    InvalidTopicError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

from tests.compat.samples import CODECS, NOW_MS, Sample, samples
from tests.compat.stored import stored_batches
from tests.conftest import Name
from tests.processes import until

TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


def create(admin: KafkaAdminClient, name: str, partitions: int = 1, **config: str) -> str:
    configs = {key.replace("_", "."): value for key, value in config.items()}
    options = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
    admin.create_topics({name: options}, wait_for_metadata=True)
    return name


def send(bootstrap: str, topic: str, records: list[Sample], **settings: Any) -> list[int]:
    """Produce in order to the first partition; the offsets the broker gave."""
    with closing(KafkaProducer(bootstrap_servers=bootstrap, **settings)) as producer:
        futures = [
            producer.send(
                topic,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp_ms=record.timestamp_ms,
                partition=0,
            )
            for record in records
        ]
        return [future.get(TIMEOUT_S).offset for future in futures]


def read(bootstrap: str, topic: str, count: int, start: int = 0) -> list[Any]:
    """`count` records of the first partition, from an offset on."""
    place = TopicPartition(topic, 0)
    with closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, fetch_max_wait_ms=50)) as consumer:
        consumer.assign([place])
        consumer.seek(place, start)
        found: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records"
            found += consumer.poll(timeout_ms=500).get(place, [])
        return found


def sample_of(record: Any) -> Sample:
    return Sample(record.key, record.value, tuple(record.headers), record.timestamp)


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_pass_unchanged(
    bootstrap: str, admin: KafkaAdminClient, new_name: Name, codec: str, idempotent: bool
) -> None:
    topic = create(admin, new_name(f"python-{codec}"))
    # this client sends neither headers without a value nor records that have no key and no value
    shapes = samples(int(time.time() * 1000))
    sent = [shape for shape in shapes if (shape.key, shape.value) != (None, None)]
    sent = [shape for shape in sent if all(value is not None for _, value in shape.headers)]
    settings = {"compression_type": None if codec == "none" else codec, "enable_idempotence": idempotent}
    acks = "all" if idempotent else 1
    assert send(bootstrap, topic, sent, acks=acks, linger_ms=5, **settings) == list(range(len(sent)))
    found = read(bootstrap, topic, len(sent))
    assert [sample_of(record) for record in found] == sent
    assert [record.offset for record in found] == list(range(len(sent)))
    batches = stored_batches(bootstrap, topic)
    assert codec in {batch.codec for batch in batches} <= {codec, "none"}
    assert {batch.producer_id >= 0 for batch in batches} == {idempotent}


def test_many_partitions_in_one_fetch_session(
    bootstrap: str, admin: KafkaAdminClient, new_name: Name
) -> None:
    topics = [create(admin, new_name("session"), partitions=6) for _ in range(3)]
    places = [TopicPartition(topic, number) for topic in topics for number in range(6)]
    with (
        closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer,
        closing(KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, fetch_max_wait_ms=50)) as consumer,
    ):
        consumer.assign(places)
        consumer.seek_to_beginning()
        seen: list[int] = []
        for step in range(4):
            # each step writes to some partitions only: answers are incremental; the last drops a topic
            if step == 3:
                consumer.assign([place for place in places if place.topic != topics[0]])
            assigned = list(consumer.assignment())
            for place in sorted(assigned)[step::3]:
                producer.send(place.topic, b"%d" % step, partition=place.partition)
            producer.flush(TIMEOUT_S)
            expected = len(sorted(assigned)[step::3])
            deadline = time.monotonic() + TIMEOUT_S
            got = 0
            while got < expected:
                assert time.monotonic() < deadline, f"step {step}: {got} of {expected}"
                for records in consumer.poll(timeout_ms=200).values():
                    got += len(records)
                    seen += [int(record.value) for record in records]
        assert seen == sorted(seen)


def test_topics_by_name_and_by_id(bootstrap: str, admin: KafkaAdminClient, new_name: Name) -> None:
    topic = create(admin, new_name("ids"), partitions=2)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([topic])
    (by_name,) = admin.describe_topics([topic])
    topic_id = by_name["topic_id"]
    if not isinstance(topic_id, uuid.UUID):
        topic_id = uuid.UUID(str(topic_id))
    (by_id,) = admin.describe_topics([topic_id])
    assert by_id["name"] == topic
    assert len(by_id["partitions"]) == 2
    admin.create_partitions({topic: 3})
    until(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 3, TIMEOUT_S, "three partitions")
    pages = admin.describe_topic_partitions([topic], response_partition_limit=2)
    assert [p["partition_index"] for p in pages["topics"][0]["partitions"]] == [0, 1]
    assert pages["next_cursor"] == {"topic_name": topic, "partition_index": 2}
    rest = admin.describe_topic_partitions([topic], cursor=pages["next_cursor"])
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [2]
    assert rest["next_cursor"] is None
    with pytest.raises(UnknownTopicIdError):
        admin.delete_topics([uuid.uuid4()])
    admin.delete_topics([topic_id])
    until(lambda: topic not in admin.list_topics(), TIMEOUT_S, "deleted by id")
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([topic])
    (unknown,) = admin.describe_topics([topic_id])
    assert unknown["error_code"] == UnknownTopicIdError.errno


def test_defaults_for_partitions_and_replicas(admin: KafkaAdminClient, new_name: Name) -> None:
    topic = new_name("defaults")
    (created,) = admin.create_topics([topic])["topics"]
    assert (created["num_partitions"], created["replication_factor"], created["error_code"]) == (4, 1, 0)
    assert "retention.ms" in created["configs"]
    with pytest.raises(InvalidTopicError):
        admin.create_topics(["not/a/name"])


def test_assignments_by_hand(admin: KafkaAdminClient, new_name: Name) -> None:
    topic = new_name("assigned")
    broker_id = admin.describe_cluster()["brokers"][0]["broker_id"]
    admin.create_topics({topic: {"assignments": {0: [broker_id], 1: [broker_id]}}}, wait_for_metadata=True)
    (described,) = admin.describe_topics([topic])
    replicas = {p["partition_index"]: p["replica_nodes"] for p in described["partitions"]}
    assert replicas == {0: [broker_id], 1: [broker_id]}
    absent = {new_name("absent"): {"assignments": {0: [broker_id + 77]}}}
    (refused,) = admin.create_topics(absent, raise_errors=False)["topics"]
    assert refused["error_code"] == 39  # INVALID_REPLICA_ASSIGNMENT


def test_configs_by_old_and_new_request(admin: KafkaAdminClient, new_name: Name) -> None:
    topic = create(admin, new_name("configs"))

    def changed() -> dict[str, str]:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        entries = described["topic"][topic]
        return {
            key: entry["value"]
            for key, entry in entries.items()
            if entry["config_source"] == "DYNAMIC_TOPIC_CONFIG"
        }

    def alter(configs: dict[str, Any], incremental: bool) -> None:
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, configs)], incremental=incremental
        )

    def becomes(expected: dict[str, str]) -> None:
        until(lambda: changed() == expected, TIMEOUT_S, f"configs are {expected}")

    alter({"retention.ms": "7000", "segment.ms": "9000"}, incremental=True)
    becomes({"retention.ms": "7000", "segment.ms": "9000"})
    alter({"cleanup.policy": (AlterConfigOp.APPEND, "compact")}, incremental=True)
    becomes({"retention.ms": "7000", "segment.ms": "9000", "cleanup.policy": "delete,compact"})
    alter({"cleanup.policy": (AlterConfigOp.SUBTRACT, "delete")}, incremental=True)
    becomes({"retention.ms": "7000", "segment.ms": "9000", "cleanup.policy": "compact"})
    # the old request replaces all; the client completes it with the present values
    alter({"retention.ms": "8000"}, incremental=False)
    becomes({"retention.ms": "8000", "segment.ms": "9000", "cleanup.policy": "compact"})
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["retention.ms"])])
    becomes({"segment.ms": "9000", "cleanup.policy": "compact"})
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], incremental=False)
    becomes({})


def test_configs_with_synonyms(admin: KafkaAdminClient, new_name: Name) -> None:
    topic = create(admin, new_name("synonyms"), segment_bytes="2000000")
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource], include_synonyms=True, config_filter="all")["topic"][topic]
    found = {key: [(s["name"], s["value"]) for s in entries[key]["synonyms"]] for key in entries}
    assert found["segment.bytes"] == [("segment.bytes", "2000000"), ("log.segment.bytes", "1073741824")]
    assert found["index.interval.bytes"] == [("log.index.interval.bytes", "4096")]


def test_broker_config_at_run_time(admin: KafkaAdminClient, new_name: Name) -> None:
    """A broker's dynamic setting shows in topics that do not set the key themselves."""
    own = create(admin, new_name("own"), min_cleanable_dirty_ratio="0.7")
    plain = create(admin, new_name("plain"))
    broker_id = str(admin.describe_cluster()["brokers"][0]["broker_id"])

    def ratio(topic: str) -> tuple[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        entries = admin.describe_configs([resource], config_filter="all")["topic"][topic]
        entry = entries["min.cleanable.dirty.ratio"]
        return entry["value"], entry["config_source"]

    def alter(operation: AlterConfigOp, value: str | None) -> None:
        change = {"log.cleaner.min.cleanable.ratio": (operation, value)}
        admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, broker_id, change)], incremental=True)

    alter(AlterConfigOp.SET, "0.3")
    try:
        until(lambda: ratio(plain) == ("0.3", "DYNAMIC_BROKER_CONFIG"), TIMEOUT_S, "the broker's value")
        assert ratio(own) == ("0.7", "DYNAMIC_TOPIC_CONFIG")
    finally:
        alter(AlterConfigOp.DELETE, None)
    until(lambda: ratio(plain) == ("0.5", "DEFAULT_CONFIG"), TIMEOUT_S, "the default")


def test_offsets_by_time_and_deletion(bootstrap: str, admin: KafkaAdminClient, new_name: Name) -> None:
    topic = create(admin, new_name("offsets"))
    base_ms = NOW_MS - 60_000
    send(
        bootstrap,
        topic,
        [Sample(None, b"x", (), base_ms + 10 * n) for n in range(20)],
        compression_type="gzip",
    )
    place = TopicPartition(topic, 0)

    def listed(spec: Any) -> int:
        offset: int = admin.list_partition_offsets({place: spec})[place].offset
        return offset

    assert listed(OffsetSpec.EARLIEST) == 0
    assert listed(OffsetSpec.LATEST) == 20
    assert listed(OffsetSpec.MAX_TIMESTAMP) == 19
    assert listed(base_ms + 55) == 6
    assert listed(OffsetSpec.EARLIEST_LOCAL) == 0
    assert admin.delete_records({place: 5})[place]["low_watermark"] == 5
    assert listed(OffsetSpec.EARLIEST) == 5
    assert [record.offset for record in read(bootstrap, topic, 15, start=5)] == list(range(5, 20))
    with pytest.raises(OffsetOutOfRangeError):
        admin.delete_records({place: 99})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_partition_offsets({TopicPartition(topic, 9): OffsetSpec.LATEST})


def test_a_record_larger_than_the_topic_takes(
    bootstrap: str, admin: KafkaAdminClient, new_name: Name
) -> None:
    topic = create(admin, new_name("small"), max_message_bytes="5000")
    with pytest.raises(MessageSizeTooLargeError):
        send(bootstrap, topic, [Sample(None, bytes(6000))], retries=0)
    # a batch that is too large only because it holds many records is split by the client
    assert len(send(bootstrap, topic, [Sample(None, bytes(1000))] * 10, linger_ms=50)) == 10


def test_log_dirs_and_cluster(bootstrap: str, admin: KafkaAdminClient, new_name: Name) -> None:
    topic = create(admin, new_name("dirs"), partitions=2)
    send(bootstrap, topic, [Sample(None, bytes(4000))])
    cluster = admin.describe_cluster()
    assert [f"{b['host']}:{b['port']}" for b in cluster["brokers"]] == [bootstrap]
    assert cluster["controller_id"] == cluster["brokers"][0]["broker_id"]
    (broker,) = admin.describe_log_dirs()
    sizes = {
        (entry["name"], partition["partition_index"]): partition["partition_size"]
        for folder in broker["log_dirs"]
        for entry in folder["topics"]
        for partition in entry["partitions"]
    }
    assert sizes[topic, 0] > 4000
    assert sizes[topic, 1] == 0
