"""Records whose time is up say what they waited for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.errors import (
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotEnoughReplicas,
    RequestTimedOut,
)
from millstream.net.listener import close_servers
from tests.client.test_producer_epochs import TOPIC, Leader, producing_to

QUICK: Any = {"delivery_timeout_ms": 600, "request_timeout_ms": 500, "max_block_ms": 60_000}


def refusal(leader: Leader) -> RequestTimedOut:
    """The error of a record for a broker that does not take it in time."""

    async def main() -> RequestTimedOut:
        async with producing_to(leader, **QUICK) as producer:
            with pytest.raises(RequestTimedOut) as refused:
                await producer.send(TOPIC, b"x", partition=0)
            return refused.value

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_that_there_is_no_leader() -> None:
    error = refusal(Leader(leader_id=-1))
    assert str(error) == (
        "1 record for t-0 not written in 600 ms (unsent); "
        "the last error was: partition t-0 has no leader at the moment"
    )
    assert isinstance(error.__cause__, LeaderNotAvailable)


def test_that_nobody_gives_a_producer_id() -> None:
    error = refusal(Leader(init_error=CoordinatorNotAvailable.code))
    assert "(unsent); the last error was: a producer id" in str(error)
    assert isinstance(error.__cause__, CoordinatorNotAvailable)


def test_that_the_leader_refused_it() -> None:
    error = refusal(Leader(judge=lambda _: NotEnoughReplicas.code))
    assert "tries); the last error was: partition t-0: " in str(error)
    assert isinstance(error.__cause__, NotEnoughReplicas)


def test_that_the_leader_cannot_be_reached() -> None:
    """It is another broker than the one that says so."""

    async def main() -> None:
        nobody = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = nobody.sockets[0].getsockname()[1]
        await close_servers([nobody])
        await nobody.wait_closed()
        leader = Leader(leader_id=2, other_port=port)
        async with producing_to(leader, **QUICK) as producer:
            with pytest.raises(RequestTimedOut, match=rf"the last error was: .*127\.0\.0\.1:{port}"):
                await producer.send(TOPIC, b"x", partition=0)

    asyncio.run(asyncio.wait_for(main(), 20))


def test_that_nothing_is_known() -> None:
    """A broker that takes the request and is silent until the time is up."""
    never = asyncio.Event()

    async def main() -> None:
        leader = Leader(hold=never.wait)
        async with producing_to(leader, **{**QUICK, "request_timeout_ms": 5000}) as producer:
            with pytest.raises(RequestTimedOut, match=r"\(after 1 tries\)$"):
                await producer.send(TOPIC, b"x", partition=0)

    asyncio.run(asyncio.wait_for(main(), 20))
