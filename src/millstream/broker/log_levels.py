"""What this process logs, as configs of the resource BROKER_LOGGER: a level for each logger (KIP-412)."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from millstream.config.alter import AlterOp, Op
from millstream.config.broker import Source
from millstream.config.describe import Described
from millstream.config.keys import KIND_CODES, nearest
from millstream.errors import InvalidConfig, InvalidRequest

ROOT = "root"
LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_PYTHONS_NAMES = {"WARNING": "WARN", "CRITICAL": "FATAL"}


def log_levels() -> list[Described]:
    """The level that holds for each logger of this process, its packages and the root among them."""
    return [
        Described(
            name=name,
            value=_level_name(_logger(name).getEffectiveLevel()),
            is_read_only=False,
            source=Source.BROKER_LOGGER,
            is_sensitive=False,
            synonyms=[],
            kind_code=KIND_CODES["string"],
            documentation="",
        )
        for name in _names()
    ]


def alter_log_levels(ops: Iterable[AlterOp], *, validate_only: bool) -> None:
    """Set levels, or let them be those of the loggers above; all or none. They hold until the process ends.

    KafkaError if one cannot be set.
    """
    known = set(_names())
    levels: dict[str, int] = {}
    for name, op, value in ops:
        if name in levels:
            raise InvalidRequest(f"{name} is altered twice in one request")
        if op not in (Op.SET, Op.DELETE):
            raise InvalidRequest(f"the level of {name} can be set or deleted, and nothing else")
        if name not in known:
            raise InvalidConfig(f"there is no logger {name!r}{nearest(name, known)}")
        if op == Op.DELETE and name == ROOT:
            raise InvalidRequest(f"the level of {ROOT} cannot be deleted; set it instead")
        levels[name] = logging.NOTSET if op == Op.DELETE else _level(name, value)
    if validate_only:
        return
    for name, level in levels.items():
        _logger(name).setLevel(level)


def _names() -> list[str]:
    return [ROOT, *sorted(logging.root.manager.loggerDict)]


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _level(name: str, text: str | None) -> int:
    level = (text or "").upper()
    if (known := LEVELS.get(_PYTHONS_NAMES.get(level, level))) is None:
        raise InvalidConfig(f"{text!r} is no level for {name}; levels are {', '.join(LEVELS)}")
    return known


def _level_name(level: int) -> str:
    """The name of a level, or of the next one below it."""
    return max((number, name) for name, number in LEVELS.items() if number <= max(level, 5))[1]
