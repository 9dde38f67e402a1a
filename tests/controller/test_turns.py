"""What those are told whose turn does not come, and what becomes of a turn that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from millstream.controller.turns import Turns
from millstream.errors import NotController


def test_each_who_is_refused_is_given_an_error_of_its_own() -> None:
    """The one that is kept holds none of the frames that an error was raised through."""

    async def main() -> None:
        turns, refusal = Turns(), NotController("this broker is stopping")
        turns.start()
        asked = [asyncio.ensure_future(turns.take(asyncio.Event().wait)) for _ in range(3)]
        await asyncio.sleep(0.01)  # the first has its turn, the others wait for theirs
        await turns.stop(refusal)
        asked += [asyncio.ensure_future(turns.take(asyncio.Event().wait)) for _ in range(2)]
        refused = await asyncio.gather(*asked, return_exceptions=True)
        assert [(type(each), str(each)) for each in refused] == [(NotController, str(refusal))] * 5
        assert len({id(each) for each in (*refused, refusal)}) == 6
        assert refusal.__traceback__ is None

    _run(main())


def test_a_turn_goes_on_when_the_one_who_asked_has_gone_and_its_failure_is_not_told_as_a_loop_s() -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        turns, goes_on, done = Turns(), asyncio.Event(), asyncio.Event()

        async def work() -> None:
            await goes_on.wait()
            done.set()
            raise NotController("the session is over")

        turns.start()
        asked = asyncio.ensure_future(turns.take(work))
        await asyncio.sleep(0.01)  # it has its turn
        asked.cancel()
        await asyncio.wait([asked])
        goes_on.set()
        await done.wait()
        assert await turns.take(_next) == "next"
        await turns.stop(NotController("this broker is stopping"))
        assert asked.cancelled()
        assert told == []

    _run(main())


async def _next() -> str:
    return "next"


def _run(main: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(30):
            await main

    asyncio.run(in_time())
