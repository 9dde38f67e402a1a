"""Work over all that a shard holds: what becomes of it when a part of it fails."""

from __future__ import annotations

import asyncio

from millstream.coordinator.rounds import Rounds
from millstream.coordinator.runtime import Runtime
from millstream.coordinator.shard import Entry
from millstream.errors import CoordinatorNotAvailable
from tests.coordinator.internal_log import ScriptedLog
from tests.coordinator.test_runtime import Notebook, play


def test_what_cannot_be_looked_at_stops_no_round() -> None:
    """Else one bad group would be the end of the expiry of all offsets."""
    ids = [f"{number:02}" for number in range(30)]
    bad = {"00", "13", "14", "29"}

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        shard = runtime.shard(0)
        assert shard is not None
        over = asyncio.Event()

        def look(each: str) -> tuple[list[Entry], int]:
            if each in bad:
                raise ZeroDivisionError
            return [Entry(each.encode(), b"")], 0

        Rounds("r", shard.timers, 8).begin(ids, look, over.set)
        await asyncio.wait_for(over.wait(), 10)
        assert [key.decode() for key in shard.values] == [each for each in ids if each not in bad]
        assert log.end_offset == len(ids) - len(bad)
        assert runtime.failures == len(bad)

    play(story)


def test_a_step_that_the_log_refuses_is_done_again() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        shard = runtime.shard(0)
        assert shard is not None
        over = asyncio.Event()
        log.refuses = CoordinatorNotAvailable()
        Rounds("r", shard.timers, 2).begin("abcde", lambda each: ([Entry(each.encode(), b"")], 0), over.set)
        await asyncio.sleep(0.01)
        assert not over.is_set()
        log.refuses = None
        await asyncio.wait_for(over.wait(), 10)
        assert list(shard.values) == [b"a", b"b", b"c", b"d", b"e"]
        assert runtime.failures == 0

    play(story)
