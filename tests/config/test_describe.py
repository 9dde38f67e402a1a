"""What DescribeConfigs tells."""

from __future__ import annotations

from millstream.config.broker import BrokerConfig, Source
from millstream.config.broker_keys import BROKER_KEYS
from millstream.config.describe import Described, DescribedSynonym, describe_broker, describe_topic
from millstream.config.topic import TOPIC_KEYS


def by_name(described: list[Described]) -> dict[str, Described]:
    assert len({each.name for each in described}) == len(described)
    return {each.name: each for each in described}


def test_a_topic_tells_every_key_but_internal_ones() -> None:
    described = by_name(describe_topic({}, BrokerConfig()))
    assert described.keys() == {name for name, key in TOPIC_KEYS.items() if not key.is_internal}
    for each in described.values():
        assert each.source == Source.DEFAULT
        assert not each.is_read_only
        assert not each.is_sensitive
        assert each.documentation
        assert each.kind_code in range(1, 10)
    assert described["retention.ms"].value == "604800000"
    assert described["cleanup.policy"].value == "delete"
    assert described["min.cleanable.dirty.ratio"].value == "0.5"
    assert described["preallocate"].value == "false"
    assert described["leader.replication.throttled.replicas"].value == ""


def test_sources_are_told_from_the_strongest_to_the_weakest() -> None:
    broker = BrokerConfig({"log.segment.bytes": "2000000"})
    broker.set_dynamic(broker={"log.segment.bytes": "4000000"}, default={"log.segment.bytes": "3000000"})
    described = by_name(describe_topic({"segment.bytes": "5000000"}, broker))["segment.bytes"]
    assert (described.value, described.source, described.kind_code) == ("5000000", Source.TOPIC, 3)
    assert described.synonyms == [
        DescribedSynonym("segment.bytes", "5000000", Source.TOPIC),
        DescribedSynonym("log.segment.bytes", "4000000", Source.DYNAMIC_BROKER),
        DescribedSynonym("log.segment.bytes", "3000000", Source.DYNAMIC_DEFAULT),
        DescribedSynonym("log.segment.bytes", "2000000", Source.STATIC),
        DescribedSynonym("log.segment.bytes", "1073741824", Source.DEFAULT),
    ]
    described = by_name(describe_topic({}, broker))["segment.bytes"]
    assert (described.value, described.source) == ("4000000", Source.DYNAMIC_BROKER)


def test_a_coarser_unit_is_told_as_the_source() -> None:
    broker = BrokerConfig({"log.retention.hours": "24"})
    described = by_name(describe_topic({}, broker))["retention.ms"]
    assert (described.value, described.source) == ("86400000", Source.STATIC)
    assert described.synonyms[0] == DescribedSynonym("log.retention.hours", "24", Source.STATIC)


def test_an_internal_key_is_told_if_it_is_set() -> None:
    described = by_name(describe_topic({"internal.segment.bytes": "100"}, BrokerConfig()))
    assert described["internal.segment.bytes"].value == "100"


def test_a_broker_tells_every_key_and_hides_secrets() -> None:
    broker = BrokerConfig(
        {
            "num.partitions": "3",
            "ssl.keystore.password": "hidden!",
            "listener.name.plaintext.ssl.key.password": "hidden!",
            "listener.name.plaintext.max.connections": "5",
        }
    )
    described = by_name(describe_broker(broker))
    assert described.keys() >= BROKER_KEYS.keys()
    assert described["num.partitions"][1:4] == ("3", True, Source.STATIC)
    assert described["num.partitions"].synonyms == [
        DescribedSynonym("num.partitions", "3", Source.STATIC),
        DescribedSynonym("num.partitions", "1", Source.DEFAULT),
    ]
    assert described["log.retention.ms"][1:4] == (None, False, Source.DEFAULT)
    assert described["listener.name.plaintext.max.connections"][1:4] == ("5", False, Source.STATIC)
    for name in ("ssl.keystore.password", "listener.name.plaintext.ssl.key.password"):
        assert described[name].is_sensitive
        assert described[name].value is None
        assert [synonym.value for synonym in described[name].synonyms] == [None]
        assert described[name].kind_code == 9
    assert "hidden!" not in repr(described)


def test_all_brokers_tell_what_is_set_for_all() -> None:
    broker = BrokerConfig({"log.retention.ms": "1"})
    assert describe_broker(broker, is_default=True) == []
    broker.set_dynamic(broker={"log.retention.ms": "2"}, default={"log.retention.ms": "3"})
    (described,) = describe_broker(broker, is_default=True)
    assert (described.name, described.value, described.source) == (
        "log.retention.ms",
        "3",
        Source.DYNAMIC_DEFAULT,
    )
    assert described.synonyms == [DescribedSynonym("log.retention.ms", "3", Source.DYNAMIC_DEFAULT)]
