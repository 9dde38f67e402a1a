"""The broker's settings that transactions go by, read when they are needed."""

from __future__ import annotations

from millstream.config.broker import BrokerConfig


class Settings:
    """The `transaction.*` keys of a broker."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config

    @property
    def max_timeout_ms(self) -> int:
        value: int = self._config["transaction.max.timeout.ms"]
        return value

    @property
    def timeout_check_ms(self) -> int:
        value: int = self._config["transaction.abort.timed.out.transaction.cleanup.interval.ms"]
        return value

    @property
    def expiration_ms(self) -> int:
        value: int = self._config["transactional.id.expiration.ms"]
        return value

    @property
    def expiration_check_ms(self) -> int:
        value: int = self._config["transaction.remove.expired.transaction.cleanup.interval.ms"]
        return value
