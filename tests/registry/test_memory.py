"""What only the memory registry can do: be cut off, reconnected, and shared between threads."""

from __future__ import annotations

import asyncio
import math
import threading

import pytest

from millstream.registry.contract import SessionLost, Unavailable
from millstream.registry.memory import MemoryRegistry, MemoryTree
from tests.registry.places import eventually


def test_a_session_that_is_cut_off_is_lost_after_the_time_out() -> None:
    async def story() -> None:
        tree = MemoryTree()
        a, b = MemoryRegistry(tree, 100), MemoryRegistry(tree)
        told: list[float] = []
        loop = asyncio.get_running_loop()
        a.on_session_lost = lambda: told.append(loop.time())
        await a.start()
        await b.start()
        await a.create("/mine", ephemeral=True)
        assert a.session_deadline() == math.inf
        begun = loop.time()
        a.cut_off()
        deadline = a.session_deadline()
        assert begun < deadline <= loop.time() + 0.1
        with pytest.raises(Unavailable):
            await a.get("/mine")
        assert await b.exists("/mine") == 0
        await eventually(lambda: len(told) == 1)
        assert loop.time() >= deadline
        assert await b.exists("/mine") is None
        a.reconnect()
        with pytest.raises(SessionLost):
            await a.get("/mine")
        await a.start()
        assert await a.exists("/mine") is None
        await a.close()
        await b.close()

    asyncio.run(story())


def test_a_session_that_reconnects_in_time_goes_on_and_hears_what_it_missed() -> None:
    async def story() -> None:
        tree = MemoryTree()
        a, b = MemoryRegistry(tree, 1000), MemoryRegistry(tree)
        await a.start()
        await b.start()
        await a.create("/mine", ephemeral=True)
        calls: list[str] = []
        a.watch("/news", calls.append)
        a.cut_off()
        await b.create("/news")
        await asyncio.sleep(0.02)
        assert calls == []
        a.reconnect()
        await eventually(lambda: calls == ["/news"])
        await asyncio.sleep(1.2)
        assert a.session_deadline() == math.inf
        assert await a.exists("/mine") == 0
        await a.close()
        await b.close()

    asyncio.run(story())


def test_sessions_on_the_loops_of_two_threads_see_each_other() -> None:
    tree = MemoryTree()
    created, seen = threading.Event(), threading.Event()

    async def other() -> None:
        registry = MemoryRegistry(tree)
        await registry.start()
        fired = asyncio.Event()
        registry.watch("/from-main", lambda _: fired.set())
        await registry.create("/from-thread", ephemeral=True)
        created.set()
        await asyncio.wait_for(fired.wait(), 30)
        assert (await registry.get("/from-main")).data == b"hello"
        await registry.close()
        seen.set()

    async def main() -> None:
        registry = MemoryRegistry(tree)
        await registry.start()
        thread = threading.Thread(target=lambda: asyncio.run(other()))
        thread.start()
        assert await asyncio.to_thread(created.wait, 30)
        assert await registry.exists("/from-thread") == 0
        await registry.create("/from-main", b"hello")
        assert await asyncio.to_thread(seen.wait, 30)
        await asyncio.to_thread(thread.join)
        assert await registry.exists("/from-thread") is None
        await registry.close()

    asyncio.run(main())
