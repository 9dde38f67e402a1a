"""Ephemeral nodes that only one session may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from millstream.registry.contract import NodeExists

FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 0.5


async def claim(path: str, create: Callable[[], Awaitable[None]], patience_s: float) -> None:
    """Create the ephemeral node `path`.

    Where one stands that an earlier session of the same broker left, it goes within the session
    time-out: `create` is tried again until then. NodeExists if it is still there after `patience_s`.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            await create()
            return
        except NodeExists as error:
            if error.path != path or loop.time() >= deadline:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, MAX_PAUSE_S)
