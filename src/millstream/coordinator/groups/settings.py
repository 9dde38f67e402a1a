"""The broker's settings that groups go by, read when they are needed."""

from __future__ import annotations

from millstream.config.broker import BrokerConfig
from millstream.config.group import (
    ASSIGNMENT_INTERVAL_MS,
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
    GroupConfig,
)


class Settings:
    """The `group.*` and `offsets.*` keys of a broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    @property
    def initial_rebalance_delay_ms(self) -> int:
        value: int = self._config["group.initial.rebalance.delay.ms"]
        return value

    @property
    def max_size(self) -> int:
        value: int = self._config["group.max.size"]
        return value

    @property
    def min_session_timeout_ms(self) -> int:
        value: int = self._config["group.min.session.timeout.ms"]
        return value

    @property
    def max_session_timeout_ms(self) -> int:
        value: int = self._config["group.max.session.timeout.ms"]
        return value

    @property
    def max_metadata_bytes(self) -> int:
        value: int = self._config["offset.metadata.max.bytes"]
        return value

    @property
    def retention_ms(self) -> int:
        minutes: int = self._config["offsets.retention.minutes"]
        return minutes * 60_000

    @property
    def retention_check_ms(self) -> int:
        value: int = self._config["offsets.retention.check.interval.ms"]
        return value

    # Consumer groups (KIP-848); `own` is what a group sets for itself

    @property
    def serves_consumer_protocol(self) -> bool:
        return "consumer" in self._config["group.coordinator.rebalance.protocols"]

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """The assignors that members may ask for; the first is the default."""
        return tuple(self._config["group.consumer.assignors"]) or ("uniform",)

    def consumer_assignment_interval_ms(self, own: GroupConfig) -> int:
        value: int = own.get(ASSIGNMENT_INTERVAL_MS, self._config["group.consumer.assignment.interval.ms"])
        return value

    def consumer_heartbeat_interval_ms(self, own: GroupConfig) -> int:
        value: int = own.get(HEARTBEAT_INTERVAL_MS, self._config["group.consumer.heartbeat.interval.ms"])
        return value

    def consumer_session_timeout_ms(self, own: GroupConfig) -> int:
        value: int = own.get(SESSION_TIMEOUT_MS, self._config["group.consumer.session.timeout.ms"])
        return value

    @property
    def consumer_max_size(self) -> int:
        value: int = self._config["group.consumer.max.size"]
        return value

    @property
    def allows_upgrade(self) -> bool:
        """Whether a live classic group may become a consumer group."""
        return self._migration_policy in ("upgrade", "bidirectional")

    @property
    def allows_downgrade(self) -> bool:
        """Whether a live consumer group whose last members are classic ones may become a classic group."""
        return self._migration_policy in ("downgrade", "bidirectional")

    @property
    def _migration_policy(self) -> str:
        policy: str = self._config["group.consumer.migration.policy"]
        return policy.lower()
