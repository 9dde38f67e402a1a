"""The stores that the contract is tested against, each with a place for one tree and many sessions."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from kazoo.client import KazooClient

from millstream.registry.contract import Registry
from millstream.registry.database import Database
from millstream.registry.memory import MemoryRegistry, MemoryTree
from millstream.registry.sqlite import SqliteRegistry
from millstream.registry.zookeeper import ZookeeperRegistry


class Place(Protocol):
    def registry(self, timeout_ms: int = 6000) -> Registry:
        """A session that has not begun."""
        ...

    def lose(self, registry: Registry) -> None:
        """Have the others declare its session lost."""
        ...


class MemoryPlace:
    def __init__(self, folder: Path) -> None:
        self.tree = MemoryTree()

    def registry(self, timeout_ms: int = 6000) -> MemoryRegistry:
        return MemoryRegistry(self.tree, timeout_ms)

    def lose(self, registry: Registry) -> None:
        assert isinstance(registry, MemoryRegistry)
        registry.lose()


class SqlitePlace:
    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "registry.db")

    def registry(self, timeout_ms: int = 6000) -> SqliteRegistry:
        return SqliteRegistry(self.path, timeout_ms)

    def lose(self, registry: Registry) -> None:
        database = Database(self.path)
        assert database.end_session(registry.session_id)
        database.close()


class ZookeeperPlace:
    """A tree of its own on a server that many tests share."""

    numbers = itertools.count(1)

    def __init__(self, server: str) -> None:
        self._server = server
        self.address = f"zookeeper://{server}/places/{os.getpid()}-{next(self.numbers)}"

    def registry(self, timeout_ms: int = 6000) -> ZookeeperRegistry:
        return ZookeeperRegistry(self.address, timeout_ms)

    def lose(self, registry: Registry) -> None:
        """Another client takes the session over, by its number and password, and ends it."""
        assert isinstance(registry, ZookeeperRegistry)
        ensemble = registry._ensemble
        assert ensemble is not None
        thief = KazooClient(self._server, client_id=ensemble.client.client_id)
        thief.start(timeout=10)
        thief.stop()
        thief.close()


KINDS = ["memory", "sqlite", "zookeeper"]


def make_place(kind: str, folder: Path, server: Callable[[], str]) -> Place:
    """A new tree of a kind; `server` gives the address of a ZooKeeper server."""
    if kind == "zookeeper":
        return ZookeeperPlace(server())
    return MemoryPlace(folder) if kind == "memory" else SqlitePlace(folder)


@asynccontextmanager
async def sessions(place: Place, count: int) -> AsyncIterator[list[Registry]]:
    """Sessions that have begun, and are closed at the end."""
    registries = [place.registry() for _ in range(count)]
    try:
        for registry in registries:
            await registry.start()
        yield registries
    finally:
        for registry in registries:
            await registry.close()


def with_sessions(count: int) -> Callable[[Callable[..., Awaitable[None]]], Callable[[Place], None]]:
    """Runs a test on an event loop, with that many sessions on one tree."""

    def decorate(story: Callable[..., Awaitable[None]]) -> Callable[[Place], None]:
        @functools.wraps(story)
        def test(place: Place) -> None:
            async def run() -> None:
                async with sessions(place, count) as registries:
                    await story(place, *registries)

            asyncio.run(run())

        del test.__wrapped__
        return test

    return decorate


async def eventually(claim: Callable[[], bool], timeout_s: float = 30.0) -> float:
    """Wait until the claim holds, letting the loop run; answers how long it took."""
    start = time.monotonic()
    while not claim():
        if time.monotonic() - start > timeout_s:
            raise AssertionError(f"not so within {timeout_s} s")
        await asyncio.sleep(0.001)
    return time.monotonic() - start


async def eventually_gone(registry: Registry, path: str, timeout_s: float = 30.0) -> float:
    """Wait until a node does not exist; answers how long it took."""
    start = time.monotonic()
    while await registry.exists(path) is not None:
        if time.monotonic() - start > timeout_s:
            raise AssertionError(f"{path} is still there after {timeout_s} s")
        await asyncio.sleep(0.002)
    return time.monotonic() - start


async def settle() -> None:
    """Long enough for every watch that is due to have fired."""
    await asyncio.sleep(0.06)
