"""What a topic may set."""

from __future__ import annotations

import pytest

from millstream.config.broker import BrokerConfig
from millstream.config.log import LogConfig, check_topic_overrides, log_config
from millstream.errors import InvalidConfig


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "compact"),
        ("cleanup.policy", "delete, compact"),
        ("cleanup.policy", ""),
        ("compression.type", " gzip "),
        ("compression.gzip.level", "-1"),
        ("retention.ms", "-1"),
        ("retention.ms", "0"),
        ("retention.bytes", "-7"),
        ("segment.bytes", "1048576"),
        ("internal.segment.bytes", "100"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,1:2"),
        ("min.cleanable.dirty.ratio", "1"),
        ("remote.storage.enable", "false"),
        ("flush.before.ack", "true"),
        ("unclean.leader.election.enable", "TRUE"),
    ],
)
def test_what_kafka_takes_is_taken(name: str, text: str) -> None:
    check_topic_overrides({name: text})
    log_config({name: text}, BrokerConfig())


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("cleanup.policy", "Compact", "compact, delete"),
        ("compression.type", "none", "uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "-1, or 1 to 9"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.ms", "", "whole number"),
        ("segment.bytes", "1000", "at least 1048576"),
        ("segment.bytes", "2147483648", "32 bits"),
        ("message.timestamp.type", "createtime", "CreateTime, LogAppendTime"),
        ("leader.replication.throttled.replicas", "0:1,*", "partition:broker"),
        ("min.cleanable.dirty.ratio", "1.5", "0 to 1"),
        ("min.insync.replicas", "0", "at least 1"),
        ("preallocate", "yes", "true or false"),
        ("remote.storage.enable", "true", "false only"),
        ("message.timestamp.difference.max.ms", "1", "use message.timestamp.before.max.ms"),
        ("message.format.version", "2.0", "format v2"),
        ("retention.msec", "1", "did you mean retention.ms?"),
        ("nonsense", "1", "unknown topic config nonsense"),
    ],
)
def test_the_rest_is_refused_with_a_hint(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidConfig) as error:
        check_topic_overrides({name: text})
    assert name in str(error.value)
    assert says in str(error.value)


def test_compaction_lags_must_leave_room() -> None:
    check_topic_overrides({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms \(5\)"):
        check_topic_overrides({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})
    broker = BrokerConfig({"log.cleaner.max.compaction.lag.ms": "4"})
    check_topic_overrides({"min.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfig):
        check_topic_overrides({"min.compaction.lag.ms": "5"}, broker)
    assert log_config({"min.compaction.lag.ms": "5"}, broker).min_compaction_lag_ms == 5


def test_the_default_log_config_is_that_of_a_default_broker() -> None:
    assert BrokerConfig().log_config == LogConfig()
    assert log_config({}, BrokerConfig()) == LogConfig()


def test_a_topics_own_value_wins_over_the_brokers() -> None:
    broker = BrokerConfig(
        {"log.retention.hours": "24", "log.cleanup.policy": "compact", "message.max.bytes": "5"}
    )
    config = log_config({"retention.ms": "1000", "internal.segment.bytes": "100"}, broker)
    assert config.retention_ms == 1000
    assert config.cleanup_policy == {"compact"}
    assert config.is_compacted
    assert not config.deletes_old
    assert config.max_message_bytes == 5
    assert config.segment_bytes == 100
    assert broker.log_config.retention_ms == 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1", "log.retention.hours": "2"}, -1),
    ],
)
def test_the_finer_unit_wins(given: dict[str, str], retention_ms: int) -> None:
    assert BrokerConfig(given).log_config.retention_ms == retention_ms


def test_other_units_too() -> None:
    config = BrokerConfig(
        {"log.roll.hours": "2", "log.roll.jitter.hours": "1", "log.flush.scheduler.interval.ms": "7"}
    ).log_config
    assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (7_200_000, 3_600_000, 7)
    config = BrokerConfig(
        {"log.roll.ms": "5", "log.roll.hours": "2", "log.flush.interval.ms": "6"}
    ).log_config
    assert (config.segment_ms, config.flush_ms) == (5, 6)
