"""Work that is done one after another, in the order in which it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from millstream.errors import KafkaError

T = TypeVar("T")


class Turns:
    """One queue and one task. Work goes on when the one who asked for it has gone."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._refusal: KafkaError | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def stop(self, refusal: KafkaError) -> None:
        """Do nothing more; whoever waits for something, or asks for it later, is given `refusal`."""
        self._refusal = refusal
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while not self._queue.empty():
            _refuse(self._queue.get_nowait()[1], refusal.again())

    async def take(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work` when all before it is done."""
        if self._refusal is not None:
            raise self._refusal.again()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((work, future))
        return await future

    async def _work(self) -> None:
        while True:
            work, future = await self._queue.get()
            try:
                result = await work()
            except asyncio.CancelledError as error:
                _refuse(future, error if self._refusal is None else self._refusal.again())
                raise
            except Exception as error:
                _refuse(future, error)
            else:
                if not future.done():
                    future.set_result(result)


def _refuse(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen here, also if the one who asked has gone
