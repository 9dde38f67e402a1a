"""What those are told whose turn does not come."""

from __future__ import annotations

import asyncio

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

    async def in_time() -> None:
        async with asyncio.timeout(30):
            await main()

    asyncio.run(in_time())
