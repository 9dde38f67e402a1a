"""Chunks of a file descriptor, read by a thread, so that the event loop never waits for a keyboard."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator

CHUNK_BYTES = 256 * 1024
CHUNKS_AHEAD = 4


class InputStream:
    """Reads ahead a few chunks. `is_idle` says that nothing more has come yet.

    The thread is a daemon: a read from a terminal cannot be interrupted, and must not keep the
    process from ending.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_AHEAD)
        threading.Thread(target=self._read, name="millstream-input", daemon=True).start()

    @property
    def is_idle(self) -> bool:
        return self._chunks.empty()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            chunk = await self._chunks.get()
            if isinstance(chunk, OSError):
                raise chunk
            if not chunk:
                return
            self._room.release()
            yield chunk

    def _read(self) -> None:
        chunk: bytes | OSError = b"-"
        while chunk and not isinstance(chunk, OSError):
            self._room.acquire()
            try:
                chunk = os.read(self._descriptor, CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                return  # the loop has ended before the input
