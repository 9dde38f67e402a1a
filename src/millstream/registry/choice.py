"""Which store the `registry` configuration key names."""

from __future__ import annotations

import os

from millstream.clock import Clock
from millstream.config.keys import ConfigError
from millstream.registry.contract import Registry, RegistryError

FILE_NAME = "registry.db"

START_TIMEOUTS = 3
"""For how many session time-outs a start tries to reach ZooKeeper."""


def make_registry(text: str, folder: str, session_timeout_ms: int, clock: Clock | None = None) -> Registry:
    """The registry that `text` names: memory, sqlite (in `folder`), sqlite:FOLDER, zookeeper://..."""
    kind, _, place = text.partition(":")
    if kind == "memory":
        from millstream.registry.memory import MemoryRegistry

        return MemoryRegistry(session_timeout_ms=session_timeout_ms)
    if kind == "sqlite":
        from millstream.registry.sqlite import SqliteRegistry

        return SqliteRegistry(os.path.join(place or folder, FILE_NAME), session_timeout_ms, clock)
    if kind == "zookeeper":
        try:
            from millstream.registry.zookeeper import ZookeeperRegistry
        except ImportError as error:
            raise ConfigError(
                f"registry={text} needs ZooKeeper's client: pip install 'millstream[zookeeper]' ({error})"
            ) from error
        try:
            patience_s = START_TIMEOUTS * session_timeout_ms / 1000
            return ZookeeperRegistry(text, session_timeout_ms, clock, patience_s=patience_s)
        except RegistryError as error:
            raise ConfigError(f"registry: {error}") from error
    raise ConfigError(f"registry={text} is not memory, sqlite, sqlite:FOLDER or zookeeper://HOSTS/PATH")
