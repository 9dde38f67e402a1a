"""Making a partition's records durable while it is in use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from millstream.cluster.waiters import OffsetWaiters
from millstream.errors import KafkaError, KafkaStorageError
from millstream.storage.log import Log

log = logging.getLogger(__name__)


class Flushing:
    """The flushes of one log, in a thread, one at a time. Appends that come meanwhile share the next one.

    Whoever waits is told of a flush that is under way or follows at once, never of one that may not come.
    """

    def __init__(
        self,
        flushed: Log,
        threads: Executor | None,
        on_flushed: Callable[[], None],
        on_refusal: Callable[[KafkaError], None],
        on_failure: Callable[[KafkaError], None],
    ) -> None:
        """`on_refusal` is told of a flush that may be tried again, `on_failure` of one that ends the log."""
        self._log = flushed
        self._threads = threads
        self._on_flushed = on_flushed
        self._on_refusal = on_refusal
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self.waiters = OffsetWaiters()
        self.configure()

    def configure(self) -> None:
        config = self._log.config
        self.comes_first = config.flush_before_ack
        """Whether nothing may be shown or acknowledged before it is flushed."""
        self._messages = config.flush_messages

    @property
    def is_due(self) -> bool:
        log = self._log
        return self.comes_first or log.end_offset - log.recovery_point >= self._messages

    @property
    def is_owed(self) -> bool:
        """Whether records wait for a flush before they may be shown, and none is under way."""
        return self.comes_first and self._task is None and self._log.recovery_point < self._log.end_offset

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._flush())

    async def settle(self) -> None:
        """Wait until no flush is under way."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _flush(self) -> None:
        loop, flushed_log = asyncio.get_running_loop(), self._log
        try:
            while flushed_log.recovery_point < flushed_log.end_offset:
                flushed = await loop.run_in_executor(self._threads, flushed_log.flush)
                self.waiters.passed(flushed)
                if self.comes_first:
                    self._on_flushed()
                elif not self.is_due and not self.waiters:
                    break
        except KafkaError as error:
            if flushed_log.failure is not None:
                self._on_failure(error)
            else:  # a full disk: those who wait are told, and the next flush may succeed
                log.warning("flushing %s has to wait: %s", flushed_log.partition, error.message)
                self.waiters.fail(error)
                self._on_refusal(error)
        except OSError as error:
            log.error("flushing %s failed: %s", flushed_log.partition, error)
            self._on_failure(KafkaStorageError(f"flushing {flushed_log.partition} failed: {error}"))
        finally:
            self._task = None
