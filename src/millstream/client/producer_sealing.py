"""Closes a producer's batches: compresses them, the slow ones in threads, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.client.batch_builder import Batch
from millstream.client.producer_answers import Answers
from millstream.client.producer_buffer import RecordBuffer
from millstream.client.producer_line import Line
from millstream.client.producer_settings import ProducerSettings
from millstream.errors import MillstreamError
from millstream.protocol.compression import Codec

SLOW_BYTES = {Codec.GZIP: 8 * 1024, Codec.LZ4: 16 * 1024, Codec.ZSTD: 128 * 1024}
"""From where on a batch would hold up the loop for longer than a thread costs."""
SLOW_BYTES_AT_A_LEVEL = 16 * 1024
AHEAD = 5
"""How many batches of a line are compressed before they may leave."""


class Sealing:
    """Batches leave in order, so those behind are compressed while those before them are on their way."""

    def __init__(
        self,
        buffer: RecordBuffer,
        settings: ProducerSettings,
        answers: Answers,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        self._buffer = buffer
        self._answers = answers
        self._loop = loop
        self._wake = wake
        self._codec, self._level = settings.codec, settings.compression_level
        self._slow_bytes = SLOW_BYTES.get(self._codec, 1 << 62)
        if self._level is not None:
            self._slow_bytes = min(self._slow_bytes, SLOW_BYTES_AT_A_LEVEL)
        self._under_way: dict[Batch, asyncio.Future[bytearray]] = {}

    def may_leave(self, batch: Batch) -> bool:
        """Whether a batch is sealed, or will be in no time."""
        return batch.data is not None or batch.builder.size < self._slow_bytes

    def look_ahead(self, line: Line, *, is_due: bool) -> None:
        """Begin with what will leave soon: full batches, and the open one once it is the first and due."""
        if self._slow_bytes >= 1 << 62:
            return
        for place, batch in enumerate(list(line.queue)[:AHEAD]):
            if batch.data is not None or batch in self._under_way or batch.is_done:
                continue
            with self._buffer.lock:
                if batch is line.open:
                    if place > 0 or not is_due or self.may_leave(batch):
                        return
                    line.open = None
            if not self.may_leave(batch):
                self._begin(line, batch)

    def _begin(self, line: Line, batch: Batch) -> None:
        work = self._loop.run_in_executor(None, batch.packed, self._codec, self._level)
        self._under_way[batch] = work
        work.add_done_callback(lambda done: self._end(line, batch, done))

    def _end(self, line: Line, batch: Batch, done: asyncio.Future[bytearray]) -> None:
        self._under_way.pop(batch, None)
        if done.cancelled():
            return
        error = done.exception()
        if not batch.is_done:
            if error is None:
                batch.data = done.result()
                self._buffer.recharge(batch, len(batch.data))
            else:
                with self._buffer.lock:
                    line.queue.remove(batch)
                self._refuse(line, batch, error)
        self._wake()

    def seal(self, line: Line, batch: Batch) -> bool:
        """Seal a batch now, if it is not; false if that failed, and the batch with it."""
        if batch.data is None:
            try:
                batch.data = batch.packed(self._codec, self._level)
            except Exception as error:
                self._refuse(line, batch, error)
                return False
            self._buffer.recharge(batch, len(batch.data))
        return True

    def _refuse(self, line: Line, batch: Batch, error: BaseException) -> None:
        reason = MillstreamError(f"records for {line.name} could not be compressed: {error}")
        reason.__cause__ = error
        self._answers.refuse(batch, reason)

    async def close(self) -> None:
        """Wait for the threads: they are at the last batches."""
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)
