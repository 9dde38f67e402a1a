"""Batches that wait to be appended: for their own check in a thread, or for those before them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from millstream.clock import Clock
from millstream.errors import KafkaError, MessageTooLarge, kept
from millstream.model import TopicPartition
from millstream.protocol.types import Buffer
from millstream.protocol.validation import Checked, ProduceRules, check_produced
from millstream.storage.log import Appended

Write = Callable[[Checked, int, str | None], Appended | asyncio.Future[Appended]]
"""Appends a checked batch; the version of Produce and the transactional id are given."""
Refuse = Callable[[Buffer, KafkaError], None]
"""Notes that a batch was not written, and may be sent again."""


class _Queued:
    """One batch, with a copy of its bytes."""

    __slots__ = ("appended", "check", "data", "produce_version", "transactional_id")

    def __init__(self, data: memoryview, produce_version: int, transactional_id: str | None) -> None:
        self.data = data
        self.produce_version = produce_version
        self.transactional_id = transactional_id
        self.check: asyncio.Future[Checked] | None = None
        self.appended: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()


class AppendQueue:
    """The batches of one partition that wait, in the order in which they came."""

    def __init__(
        self, name: TopicPartition, clock: Clock, threads: Executor | None, write: Write, refuse: Refuse
    ) -> None:
        self._name = name
        self._threads = threads
        self._clock = clock
        self._write = write
        self._refuse = refuse
        self._queue: deque[_Queued] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(
        self, data: Buffer, rules: ProduceRules, produce_version: int, transactional_id: str | None
    ) -> asyncio.Future[Appended]:
        """Copy a batch and have it checked in a thread."""
        if len(data) > rules.max_message_bytes:
            raise MessageTooLarge(
                f"{len(data)} bytes are more than max.message.bytes of {self._name.topic!r}"
            )
        entry = _Queued(memoryview(bytearray(data)), produce_version, transactional_id)
        entry.check = asyncio.get_running_loop().run_in_executor(
            self._threads, check_produced, entry.data, rules, entry.produce_version, self._clock.now_ms()
        )
        self._queue.append(entry)  # not before: if no thread can be started, all would wait for it
        entry.check.add_done_callback(self._drain)
        return entry.appended

    def _drain(self, _: object) -> None:
        queue = self._queue
        while queue and queue[0].check is not None and queue[0].check.done():
            entry = queue.popleft()
            assert entry.check is not None
            try:
                appended = self._write(entry.check.result(), entry.produce_version, entry.transactional_id)
            except Exception as error:
                if isinstance(error, KafkaError) and error.retriable:
                    self._refuse(entry.data, error)
                if not entry.appended.done():  # with its frames it would keep what the batch unfolded to
                    entry.appended.set_exception(kept(error))
                continue
            if isinstance(appended, asyncio.Future):
                appended.add_done_callback(partial(_pass_on, entry.appended))
            elif not entry.appended.done():
                entry.appended.set_result(appended)


def _pass_on(to: asyncio.Future[Appended], done: asyncio.Future[Appended]) -> None:
    """Let one append's outcome be another's."""
    if to.done() or done.cancelled():
        return
    error = done.exception()
    if error is None:
        to.set_result(done.result())
    else:
        to.set_exception(error)
