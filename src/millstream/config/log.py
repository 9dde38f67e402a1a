"""What storage and a partition need to know of a topic's configuration, typed and resolved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from millstream.config.keys import MAX_LONG
from millstream.config.topic import TOPIC_KEYS, parse_topic_overrides
from millstream.errors import InvalidConfig

if TYPE_CHECKING:
    from millstream.config.broker import BrokerConfig


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's configuration. A field is the topic key of the same name with its dots as underscores."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_before_ack: bool = False
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = MAX_LONG
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    unclean_leader_election_enable: bool = False

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes_old(self) -> bool:
        """Whether retention by age and size applies."""
        return "delete" in self.cleanup_policy


_FIELDS = {field.name.replace("_", "."): field.name for field in fields(LogConfig)}


def _arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {_FIELDS[name]: value for name, value in values.items() if name in _FIELDS}
    if "cleanup_policy" in arguments:
        arguments["cleanup_policy"] = frozenset(arguments["cleanup_policy"])
    if values.get("internal.segment.bytes") is not None:
        arguments["segment_bytes"] = values["internal.segment.bytes"]
    return arguments


def broker_log_config(broker: BrokerConfig) -> LogConfig:
    """The configuration of a topic that sets nothing."""
    return LogConfig(**_arguments({name: broker.topic_default(name)[0] for name in TOPIC_KEYS}))


def log_config(overrides: Mapping[str, str], broker: BrokerConfig) -> LogConfig:
    """What holds for a topic that sets `overrides`, on this broker; InvalidConfig if they are not valid."""
    base = broker.log_config
    if not overrides:
        return base
    return replace(base, **_arguments(parse_topic_overrides(overrides)))


def check_topic_overrides(overrides: Mapping[str, str], broker: BrokerConfig | None = None) -> None:
    """Raise InvalidConfig, naming the key and what it takes, unless a topic may set `overrides`."""
    config = log_config(overrides, broker) if broker is not None else _without_broker(overrides)
    low, high = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if low > high:
        raise InvalidConfig(
            f"min.compaction.lag.ms ({low}) must not be greater than max.compaction.lag.ms ({high})"
        )


def _without_broker(overrides: Mapping[str, str]) -> LogConfig:
    return LogConfig(**_arguments(parse_topic_overrides(overrides)))
