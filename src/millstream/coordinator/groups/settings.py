"""The broker's settings that groups go by, read when they are needed."""

from __future__ import annotations

from millstream.config.broker import BrokerConfig


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
