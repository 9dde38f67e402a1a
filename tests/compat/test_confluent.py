"""confluent-kafka (librdkafka): records in every codec, topics, configs, offsets, and errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
    Uuid,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.compat.samples import CODECS, NOW_MS, Sample, samples
from tests.compat.stored import stored_batches, stored_codecs
from tests.conftest import Name
from tests.processes import until

TIMEOUT_S = 20.0


@pytest.fixture
def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


def new_consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused: partitions are assigned by hand",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
        }
    )


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[Consumer]:
    with closing(new_consumer(bootstrap)) as reader:
        yield reader


def result(futures: dict[Any, Any]) -> Any:
    """The result of the only future, or its error."""
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def error_of(futures: dict[Any, Any]) -> KafkaError:
    (future,) = futures.values()
    with pytest.raises(KafkaException) as caught:
        future.result(TIMEOUT_S)
    error: KafkaError = caught.value.args[0]
    return error


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> str:
    named = {key.replace("_", "."): value for key, value in config.items()}
    result(admin.create_topics([NewTopic(name, partitions, 1, config=named)]))
    until(lambda: name in admin.list_topics(timeout=TIMEOUT_S).topics, TIMEOUT_S, f"topic {name} is listed")
    return name


def send(producer: Producer, topic: str, records: list[Sample], partition: int = 0) -> list[int]:
    """Produce in order and wait; the offsets the broker gave."""
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            failures.append(error)
        else:
            offsets.append(message.offset())

    for record in records:
        producer.produce(
            topic,
            key=record.key,
            value=record.value,
            headers=list(record.headers),
            timestamp=record.timestamp_ms,
            partition=partition,
            on_delivery=delivered,
        )
    assert producer.flush(TIMEOUT_S) == 0
    if failures:
        raise KafkaException(failures[0])
    return offsets


def read(consumer: Consumer, topic: str, start: int = OFFSET_BEGINNING, partitions: int = 1) -> list[Any]:
    """All messages of the first partitions, from an offset to the end of each."""
    consumer.assign([TopicPartition(topic, number, start) for number in range(partitions)])
    found: list[Any] = []
    ended: set[int] = set()
    deadline = time.monotonic() + TIMEOUT_S
    while len(ended) < partitions:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the end of {topic} was not reached; {len(found)} messages so far")
        for message in consumer.consume(1000, timeout=0.02):
            if message.error() is None:
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif not message.error().retriable():
                raise KafkaException(message.error())
    return found


def sample_of(message: Any) -> Sample:
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Sample(message.key(), message.value(), headers, message.timestamp()[1])


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("codec", CODECS)
def test_records_pass_unchanged(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name, codec: str, idempotent: bool
) -> None:
    topic = create(admin, new_name(f"librdkafka-{codec}"))
    sent = samples(now_ms=int(time.time() * 1000))
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "linger.ms": 5,
        }
    )
    assert send(producer, topic, sent) == list(range(len(sent)))
    messages = read(consumer, topic)
    assert [sample_of(message) for message in messages] == sent
    assert [message.offset() for message in messages] == list(range(len(sent)))
    batches = stored_batches(bootstrap, topic)
    # librdkafka leaves a batch uncompressed when compression would make it larger
    assert codec in {batch.codec for batch in batches} <= {codec, "none"}
    assert {batch.producer_id >= 0 for batch in batches} == {idempotent}


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name, acks: str
) -> None:
    topic = create(admin, new_name(f"acks-{acks}"))
    sent = [Sample(None, b"%d" % n, (), int(time.time() * 1000)) for n in range(500)]
    send(Producer({"bootstrap.servers": bootstrap, "acks": acks}), topic, sent)
    until(
        lambda: consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)[1] == 500,
        TIMEOUT_S,
        "all records written",
    )
    assert [message.value() for message in read(consumer, topic)] == [record.value for record in sent]


def test_reading_from_the_middle_of_a_batch(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("middle"))
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 200, "compression.type": "lz4"})
    send(producer, topic, [Sample(None, b"%d" % n, (), NOW_MS + n) for n in range(1000)])
    for start in (1, 499, 998, 999):
        assert [message.offset() for message in read(consumer, topic, start)] == list(range(start, 1000))


def test_a_consumer_at_the_end_sees_what_comes_next(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("tail"))
    producer = Producer({"bootstrap.servers": bootstrap})
    send(producer, topic, [Sample(None, b"before")])
    assert read(consumer, topic, OFFSET_END) == []
    send(producer, topic, [Sample(None, b"after")])
    seen = until(
        lambda: [m for m in consumer.consume(1, timeout=1) if m.error() is None], TIMEOUT_S, "a record"
    )
    assert [(message.value(), message.offset()) for message in seen] == [(b"after", 1)]


def test_an_offset_past_the_end_is_out_of_range(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("range"))
    send(Producer({"bootstrap.servers": bootstrap}), topic, [Sample(None, b"only")])
    consumer.assign([TopicPartition(topic, 0, 17)])
    (message,) = until(lambda: consumer.consume(1, timeout=1), TIMEOUT_S, "an error")
    assert message.error().code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)


def test_a_record_larger_than_the_topic_takes(bootstrap: str, admin: AdminClient, new_name: Name) -> None:
    topic = create(admin, new_name("small"), max_message_bytes="10000")
    producer = Producer({"bootstrap.servers": bootstrap, "retries": 0})
    with pytest.raises(KafkaException) as caught:
        send(producer, topic, [Sample(None, bytes(20_000))])
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert send(producer, topic, [Sample(None, bytes(9_000))]) == [0]


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
def test_a_compacted_topic_takes_only_records_with_keys(
    bootstrap: str, admin: AdminClient, new_name: Name, idempotent: bool
) -> None:
    topic = create(admin, new_name("compacted"), cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": bootstrap, "retries": 0, "enable.idempotence": False})
    with pytest.raises(KafkaException) as caught:
        send(producer, topic, [Sample(None, b"keyless")])
    assert caught.value.args[0].code() == KafkaError.INVALID_RECORD
    keyed = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": idempotent})
    assert send(keyed, topic, [Sample(b"key", b"value"), Sample(b"key", None)]) == [0, 1]


def test_a_topic_with_append_time(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("append-time"), message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        send(producer, topic, [Sample(b"k", b"aaaaaaaaaaaaaaaaaaaaaaaaaaaa", (), NOW_MS - 60_000)] * 3)
    after_ms = int(time.time() * 1000)
    messages = read(consumer, topic)
    assert len(messages) == 15
    for message in messages:
        kind, timestamp_ms = message.timestamp()
        assert kind == 2  # log append time
        assert before_ms <= timestamp_ms <= after_ms


def test_timestamps_far_from_the_brokers_clock(bootstrap: str, admin: AdminClient, new_name: Name) -> None:
    topic = create(
        admin,
        new_name("clock"),
        message_timestamp_before_max_ms="60000",
        message_timestamp_after_max_ms="60000",
    )
    producer = Producer({"bootstrap.servers": bootstrap, "retries": 0})
    now_ms = int(time.time() * 1000)
    for wrong_ms in (now_ms - 600_000, now_ms + 600_000):
        with pytest.raises(KafkaException) as caught:
            send(producer, topic, [Sample(b"k", b"v", (), wrong_ms)])
        assert caught.value.args[0].code() == KafkaError.INVALID_TIMESTAMP
    assert send(producer, topic, [Sample(b"k", b"v", (), now_ms)]) == [0]


@pytest.mark.parametrize("codec", ["gzip", "zstd", "uncompressed"])
def test_a_topic_that_recompresses(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name, codec: str
) -> None:
    topic = create(admin, new_name("recompress"), compression_type=codec)
    sent = samples(now_ms=int(time.time() * 1000))
    offsets = []
    for client_codec in ("none", "lz4", "gzip"):
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": client_codec, "linger.ms": 5}
        )
        offsets += send(producer, topic, sent)
    assert offsets == list(range(3 * len(sent)))
    assert stored_codecs(bootstrap, topic) == {"none" if codec == "uncompressed" else codec}
    assert [sample_of(message) for message in read(consumer, topic)] == sent * 3


def test_offsets_by_time_and_place(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("times"))
    base_ms = NOW_MS - 60_000
    order = [0, 1000, 5000, 3000, 2000]  # the largest time stands in the middle
    producer = Producer({"bootstrap.servers": bootstrap})
    for delta in order:
        send(producer, topic, [Sample(None, b"x", (), base_ms + delta)])
    place = TopicPartition(topic, 0)

    def listed(spec: OffsetSpec) -> tuple[int, int]:
        found = result(admin.list_offsets({place: spec}))
        return found.offset, found.timestamp

    assert listed(OffsetSpec.earliest())[0] == 0
    assert listed(OffsetSpec.latest())[0] == 5
    assert listed(OffsetSpec.max_timestamp()) == (2, base_ms + 5000)
    assert listed(OffsetSpec.for_timestamp(base_ms)) == (0, base_ms)
    assert listed(OffsetSpec.for_timestamp(base_ms + 500)) == (1, base_ms + 1000)
    assert listed(OffsetSpec.for_timestamp(base_ms + 1001)) == (2, base_ms + 5000)
    assert listed(OffsetSpec.for_timestamp(base_ms + 5001))[0] == -1
    wanted = TopicPartition(topic, 0, base_ms + 999)
    assert consumer.offsets_for_times([wanted], timeout=TIMEOUT_S)[0].offset == 1
    assert consumer.get_watermark_offsets(place, timeout=TIMEOUT_S) == (0, 5)


def test_times_are_found_inside_compressed_batches(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("times-in-batches"))
    base_ms = NOW_MS - 60_000
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 100})
    send(producer, topic, [Sample(None, b"x", (), base_ms + n) for n in range(1000)])
    for n in (0, 1, 500, 999):
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, base_ms + n)], timeout=TIMEOUT_S)
        assert found.offset == n


def test_topics_are_created_described_grown_and_deleted(admin: AdminClient, new_name: Name) -> None:
    topic = new_name("life")
    result(admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "3600000"})]))
    until(lambda: topic in admin.list_topics(timeout=TIMEOUT_S).topics, TIMEOUT_S, "listed")
    description = result(admin.describe_topics(TopicCollection([topic])))
    assert (description.name, description.is_internal, len(description.partitions)) == (topic, False, 3)
    assert isinstance(description.topic_id, Uuid)
    broker_ids = set(admin.list_topics(timeout=TIMEOUT_S).brokers)
    for number, partition in enumerate(description.partitions):
        assert partition.id == number
        assert partition.leader.id in broker_ids
        assert [node.id for node in partition.replicas] == [node.id for node in partition.isr]

    assert error_of(admin.create_topics([NewTopic(topic, 1, 1)])).code() == KafkaError.TOPIC_ALREADY_EXISTS

    result(admin.create_partitions([NewPartitions(topic, 5)]))
    until(
        lambda: len(admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions) == 5, TIMEOUT_S, "5"
    )
    again = result(admin.describe_topics(TopicCollection([topic])))
    assert str(again.topic_id) == str(description.topic_id)
    shrink = error_of(admin.create_partitions([NewPartitions(topic, 2)]))
    assert shrink.code() == KafkaError.INVALID_PARTITIONS
    missing = error_of(admin.create_partitions([NewPartitions(topic + "-missing", 2)]))
    assert missing.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    result(admin.delete_topics([topic]))
    until(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics, TIMEOUT_S, "deleted")
    assert error_of(admin.delete_topics([topic])).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert (
        error_of(admin.describe_topics(TopicCollection([topic]))).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    )


def test_a_name_used_again_is_a_new_topic(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("reborn"))
    first = result(admin.describe_topics(TopicCollection([topic])))
    send(Producer({"bootstrap.servers": bootstrap}), topic, [Sample(None, b"old life")])
    result(admin.delete_topics([topic]))
    until(lambda: topic not in admin.list_topics(timeout=TIMEOUT_S).topics, TIMEOUT_S, "deleted")
    create(admin, topic)
    second = result(admin.describe_topics(TopicCollection([topic])))
    assert str(first.topic_id) != str(second.topic_id)
    assert send(Producer({"bootstrap.servers": bootstrap}), topic, [Sample(None, b"new life")]) == [0]
    assert [message.value() for message in read(consumer, topic)] == [b"new life"]


def test_creations_are_judged_one_by_one(admin: AdminClient, new_name: Name) -> None:
    good, bad_config, bad_value, bad_name = (new_name(word) for word in ("good", "config", "value", "name"))
    bad_name += "/with/slashes"
    no_partitions, many_replicas = new_name("none"), new_name("many")
    futures = admin.create_topics(
        [
            NewTopic(good, 1, 1, config={"retention.ms": "1000"}),
            NewTopic(bad_config, 1, 1, config={"no.such.key": "1"}),
            NewTopic(bad_value, 1, 1, config={"retention.ms": "soon"}),
            NewTopic(bad_name, 1, 1),
            NewTopic(no_partitions, 0, 1),
            NewTopic(many_replicas, 1, 3),
        ]
    )
    codes = {}
    for name, future in futures.items():
        try:
            future.result(TIMEOUT_S)
            codes[name] = 0
        except KafkaException as failure:
            codes[name] = failure.args[0].code()
    assert codes == {
        good: 0,
        bad_config: KafkaError.INVALID_CONFIG,
        bad_value: KafkaError.INVALID_CONFIG,
        bad_name: KafkaError.TOPIC_EXCEPTION,
        no_partitions: KafkaError.INVALID_PARTITIONS,
        many_replicas: KafkaError.INVALID_REPLICATION_FACTOR,
    }
    until(lambda: good in admin.list_topics(timeout=TIMEOUT_S).topics, TIMEOUT_S, "listed")
    assert not {bad_config, bad_value, bad_name, no_partitions, many_replicas} & set(
        admin.list_topics(timeout=TIMEOUT_S).topics
    )


def test_validation_alone_creates_nothing(admin: AdminClient, new_name: Name) -> None:
    topic = new_name("validated")
    result(admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True))
    bad = admin.create_topics([NewTopic(topic, 1, 1, config={"cleanup.policy": "burn"})], validate_only=True)
    assert error_of(bad).code() == KafkaError.INVALID_CONFIG
    existing = create(admin, new_name("grown"))
    result(admin.create_partitions([NewPartitions(existing, 4)], validate_only=True))
    listed = admin.list_topics(timeout=TIMEOUT_S).topics
    assert topic not in listed
    assert len(listed[existing].partitions) == 1


@pytest.mark.parametrize("name", [".", "..", "a" * 250, "with space", "sla/sh", "ümlaut"])
def test_invalid_names_are_refused_also_on_creation_by_use(
    bootstrap: str, admin: AdminClient, name: str
) -> None:
    assert error_of(admin.create_topics([NewTopic(name, 1, 1)])).code() == KafkaError.TOPIC_EXCEPTION
    producer = Producer({"bootstrap.servers": bootstrap, "allow.auto.create.topics": True})
    described = producer.list_topics(name, timeout=TIMEOUT_S).topics[name]
    assert described.error.code() == KafkaError.TOPIC_EXCEPTION
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_topics_come_into_being_by_use(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = new_name("by-use")
    producer = Producer({"bootstrap.servers": bootstrap, "allow.auto.create.topics": True})
    sent = [Sample(b"k", b"v", (), NOW_MS)]
    assert send(producer, topic, sent) == [0]
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics[topic].partitions) == 4
    assert [sample_of(message) for message in read(consumer, topic)] == sent


def test_configs_are_listed_with_default_source_and_documentation(admin: AdminClient, new_name: Name) -> None:
    topic = create(admin, new_name("configs"), retention_ms="123456", cleanup_policy="compact,delete")
    configs = result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    expected_defaults = {
        "compression.type": "producer",
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "index.interval.bytes": "4096",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "preallocate": "false",
        "retention.bytes": "-1",
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
        "segment.jitter.ms": "0",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.after.max.ms": "3600000",
    }
    # set by this test's own start (deletion delay) or by Kafka's feature level (in-sync replicas)
    may_be_set = {"file.delete.delay.ms", "min.insync.replicas"}
    for name, default in expected_defaults.items():
        entry = configs[name]
        assert not entry.is_sensitive
        assert not entry.is_read_only
        if not entry.is_default:
            assert name in may_be_set
        elif entry.value != default:
            raise AssertionError(f"{name} is {entry.value} by default, not {default}")
    assert (configs["retention.ms"].value, configs["retention.ms"].is_default) == ("123456", False)
    assert configs["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert configs["cleanup.policy"].value == "compact,delete"
    missing = error_of(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic + "-missing")]))
    assert missing.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_broker_configs_are_listed(admin: AdminClient) -> None:
    broker_id = next(iter(admin.list_topics(timeout=TIMEOUT_S).brokers))
    configs = result(admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker_id))]))
    for name in (
        "advertised.listeners",
        "log.dirs",
        "num.partitions",
        "log.retention.ms",
        "message.max.bytes",
    ):
        assert name in configs
    assert configs["num.partitions"].value == "4"
    assert configs["num.partitions"].source == ConfigSource.STATIC_BROKER_CONFIG.value
    assert configs["message.max.bytes"].value == "1048588"


def alter(
    admin: AdminClient, topic: str, *changes: tuple[str, str | None, AlterConfigOpType]
) -> dict[Any, Any]:
    entries = [ConfigEntry(key, value, incremental_operation=kind) for key, value, kind in changes]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    futures: dict[Any, Any] = admin.incremental_alter_configs([resource])
    return futures


def test_configs_change_by_steps(admin: AdminClient, new_name: Name) -> None:
    topic = create(admin, new_name("altered"))
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def value(key: str) -> tuple[str, bool]:
        entry = result(admin.describe_configs([resource]))[key]
        return entry.value, entry.is_default

    def becomes(key: str, expected: tuple[str, bool]) -> None:
        until(lambda: value(key) == expected, TIMEOUT_S, f"{key} is {expected}")

    set_, append = AlterConfigOpType.SET, AlterConfigOpType.APPEND
    subtract, delete = AlterConfigOpType.SUBTRACT, AlterConfigOpType.DELETE
    result(alter(admin, topic, ("retention.ms", "5000", set_), ("segment.bytes", "2000000", set_)))
    becomes("retention.ms", ("5000", False))
    result(alter(admin, topic, ("cleanup.policy", "compact", append)))
    becomes("cleanup.policy", ("delete,compact", False))
    assert value("segment.bytes") == ("2000000", False)
    result(alter(admin, topic, ("cleanup.policy", "delete", subtract)))
    becomes("cleanup.policy", ("compact", False))
    result(alter(admin, topic, ("retention.ms", None, delete)))
    becomes("retention.ms", ("604800000", True))
    wrong = error_of(alter(admin, topic, ("retention.ms", "5000", append)))
    assert wrong.code() == KafkaError.INVALID_CONFIG
    unknown = error_of(alter(admin, topic, ("no.such.key", "1", set_)))
    assert unknown.code() == KafkaError.INVALID_CONFIG
    invalid = error_of(alter(admin, topic, ("max.message.bytes", "-5", set_)))
    assert invalid.code() == KafkaError.INVALID_CONFIG
    missing = error_of(alter(admin, topic + "-missing", ("retention.ms", "1", set_)))
    assert missing.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert value("cleanup.policy") == ("compact", False)


def test_a_changed_limit_holds_for_the_next_record(
    bootstrap: str, admin: AdminClient, new_name: Name
) -> None:
    topic = create(admin, new_name("limit"))
    producer = Producer({"bootstrap.servers": bootstrap, "retries": 0})
    assert send(producer, topic, [Sample(None, bytes(50_000))]) == [0]
    result(alter(admin, topic, ("max.message.bytes", "20000", AlterConfigOpType.SET)))

    def refused() -> bool:
        try:
            send(producer, topic, [Sample(None, bytes(50_000))])
        except KafkaException as failure:
            return bool(failure.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE)
        return False

    until(refused, TIMEOUT_S, "the new limit holds")


def test_records_are_deleted_up_to_an_offset(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("cut"))
    producer = Producer({"bootstrap.servers": bootstrap})
    send(producer, topic, [Sample(None, b"%d" % n, (), NOW_MS + n) for n in range(10)])
    deleted = result(admin.delete_records([TopicPartition(topic, 0, 4)]))
    assert deleted.low_watermark == 4
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S) == (4, 10)
    assert [message.offset() for message in read(consumer, topic)] == list(range(4, 10))
    past = error_of(admin.delete_records([TopicPartition(topic, 0, 11)]))
    assert past.code() == KafkaError.OFFSET_OUT_OF_RANGE
    assert result(admin.delete_records([TopicPartition(topic, 0, OFFSET_END)])).low_watermark == 10
    with closing(new_consumer(bootstrap)) as late:
        assert read(late, topic) == []
        assert send(producer, topic, [Sample(None, b"next")]) == [10]
        assert [message.offset() for message in read(late, topic)] == [10]


def test_the_cluster_describes_itself(admin: AdminClient, bootstrap: str) -> None:
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [bootstrap]
    assert cluster.controller.id == cluster.nodes[0].id


def test_many_partitions_and_producers_at_once(
    bootstrap: str, admin: AdminClient, consumer: Consumer, new_name: Name
) -> None:
    topic = create(admin, new_name("wide"), partitions=12)
    producers = [
        Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "enable.idempotence": True})
        for codec in CODECS
    ]
    for number in range(6000):
        producers[number % len(producers)].produce(topic, b"%d" % number, partition=number % 12)
    for producer in producers:
        assert producer.flush(TIMEOUT_S) == 0
    messages = read(consumer, topic, partitions=12)
    for partition in range(12):
        here = [message for message in messages if message.partition() == partition]
        assert [message.offset() for message in here] == list(range(500))
        for stream in range(len(producers)):
            values = [int(m.value()) for m in here if int(m.value()) % len(producers) == stream]
            assert values == sorted(values)
    assert sorted(int(message.value()) for message in messages) == list(range(6000))
