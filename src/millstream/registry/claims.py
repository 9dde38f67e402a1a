"""Ephemeral nodes that only one session may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from millstream.registry.contract import NodeExists

FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 0.5
LONG_S = 1.0
"""A wait that is worth a word: a node whose process has just ended goes sooner."""


async def claim(
    path: str,
    create: Callable[[], Awaitable[None]],
    patience_s: float,
    on_long_wait: Callable[[], Awaitable[None]],
) -> None:
    """Create the ephemeral node `path`.

    Where one stands that an earlier session of the same broker left, it goes within the session
    time-out: `create` is tried again until then. NodeExists if it is still there after `patience_s`;
    `on_long_wait` is called once, if it takes so long that somebody may wonder.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    has_waited_long = False
    pause_s = FIRST_PAUSE_S
    while True:
        try:
            await create()
            return
        except NodeExists as error:
            waited_s = loop.time() - begun
            if error.path != path or waited_s >= patience_s:
                raise
        if waited_s >= LONG_S and not has_waited_long:
            has_waited_long = True
            await on_long_wait()
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, MAX_PAUSE_S)
