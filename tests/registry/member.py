"""A process with a session of its own, which a test stops, kills and looks at: `member PATH TIMEOUT_MS ROLE`.

It prints what it does, a line at a time. Roles: `owner` holds the ephemeral node /members/PID and prints its
deadlines; `writer` creates /log/1, /log/2, ... and prints each number once it is acknowledged; `blocker`
stops itself in the middle of a write; `stalled` does so within its session, and says what it finds
on waking; `counter` sets /counters/PID again and again; `starter` begins a session, says so and ends when
its input is closed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
import threading
import time
from typing import Any

from millstream.registry.contract import SessionLost, Unavailable
from millstream.registry.database import Database
from millstream.registry.sqlite import SqliteRegistry


def say(*words: object) -> None:
    print(*words, flush=True)


def stop() -> None:
    """Stop this process here: of a signal to all of it another thread hears first, and this one runs on."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


async def owner(registry: SqliteRegistry) -> None:
    lost = asyncio.Event()
    registry.on_session_lost = lost.set
    await registry.create(f"/members/{os.getpid()}", ephemeral=True, make_parents=True)
    say("ready")
    while not lost.is_set():
        say("deadline", registry.session_deadline())
        try:
            await asyncio.wait_for(lost.wait(), 0.02)
        except TimeoutError:
            pass
    say("lost", time.monotonic(), registry.session_deadline())
    try:
        await registry.get("/")
    except SessionLost:
        say("refused")


async def writer(registry: SqliteRegistry) -> None:
    await registry.create("/log", make_parents=True)
    say("ready")
    for number in range(1, 1_000_000):
        await registry.create(f"/log/{number}", b"x" * 100)
        say(number)


async def counter(registry: SqliteRegistry) -> None:
    path = f"/counters/{os.getpid()}"
    await registry.create(path, b"0", make_parents=True)
    await registry.create(f"/members/{os.getpid()}", ephemeral=True, make_parents=True)
    say("ready")
    for number in range(1, 1_000_000):
        await registry.set(path, b"%d" % number)


async def stalled(registry: SqliteRegistry) -> None:
    lost = asyncio.Event()
    registry.on_session_lost = lost.set
    await registry.create("/stalled", b"0", make_parents=True)
    await registry.create(f"/members/{os.getpid()}", ephemeral=True, make_parents=True)
    apply = Database._apply

    def stop_within(self: Database, operations: Any, session: int) -> list[int]:
        versions = apply(self, operations, session)
        Database._apply = apply  # type: ignore[method-assign]
        stop()
        return versions

    Database._apply = stop_within  # type: ignore[method-assign]
    say("ready")
    try:
        await registry.set("/stalled", b"1")
        say("written", registry.session_deadline() < time.monotonic())
    except (SessionLost, Unavailable) as error:
        say(type(error).__name__, registry.session_deadline() < time.monotonic())
    await asyncio.wait_for(lost.wait(), 10)
    say("lost")


async def starter(registry: SqliteRegistry) -> None:
    say("ready")
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def blocker(path: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE counter SET write = write + 1")
    say("ready")
    stop()
    db.execute("ROLLBACK")
    db.close()
    say("done")


async def main(path: str, timeout_ms: int, role: str) -> None:
    if role == "blocker":
        blocker(path)
        return
    registry = SqliteRegistry(path, timeout_ms)
    await registry.start()
    roles = {"owner": owner, "writer": writer, "starter": starter, "stalled": stalled, "counter": counter}
    try:
        await roles[role](registry)
    finally:
        await registry.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
