"""Running apps: from their first batch until Ctrl-C, an error or, with `once`, the end of what is there."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from millstream.streams.committing import GroupCommitter
from millstream.streams.failures import explain, explained
from millstream.streams.feeds import FORMAT
from millstream.streams.outputs import by_mode
from millstream.streams.problems import StreamsError
from millstream.streams.progress import OUT, Batch, ends
from millstream.streams.update_sink import MicroBatches

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.streams.app import App

POLL_SECONDS = 0.2
LINE_SECONDS = 1.0

Say = Callable[[str], None]


def say(line: str) -> None:
    """Progress goes to stderr, so that it never mixes with what a program prints."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _nothing(_: str) -> None:
    pass


def run(*apps: App, once: bool = False, every: str | None = None, quiet: bool = False) -> None:
    """Run apps in one Spark until Ctrl-C or SIGTERM, or until one of them fails.

    Each goes on where it was when it last ran under its name. `once` ends when all that is there now has been
    processed. `every` ("10 seconds") sets how often a batch begins; by default, when the last one is done.
    """
    with ExitStack() as stack:
        stopping = stack.enter_context(_signals())
        running = [stack.enter_context(Running(app, once=once, every=every, quiet=quiet)) for app in apps]
        while any(each.is_active for each in running) and not stopping.is_set():
            for each in running:
                each.watch()
            stopping.wait(POLL_SECONDS)
        for each in running:
            each.watch()


class Running:
    """An app's queries, from the start of the `with` block to its end."""

    def __init__(
        self, app: App, *, once: bool = False, every: str | None = None, quiet: bool = False
    ) -> None:
        self.app = app
        self.queries: list[StreamingQuery] = []
        self._once = once
        self._every = every
        self._say: Say = _nothing if quiet else say
        self._stack = ExitStack()
        self._seen: dict[str, int] = {}
        self._said = 0.0

    def __enter__(self) -> Self:
        with ExitStack() as starting, explained(self.app.folder.log):
            starting.enter_context(self.app.folder.locked())
            outputs = self.app.outputs()
            self._committer = GroupCommitter(self.app.bootstrap, self.app.name)
            starting.callback(self._committer.close)
            starting.callback(self._stop)
            for mode, frame in by_mode(outputs).items():
                self.queries.append(self._start(mode, frame))
            topics = ", ".join(dict.fromkeys(each.topic for each in outputs))
            read = ", ".join(dict.fromkeys(each.label for each in self.app.last_read))
            self._say(f"{self.app.name}: {read} → {topics}, state in {self.app.folder.path}")
            self._stack = starting.pop_all()
        return self

    def _start(self, mode: str, frame: Any) -> StreamingQuery:
        options = {"kafka.bootstrap.servers": self.app.bootstrap, **self.app.sink}
        writer = frame.observe(OUT, F.count(F.lit(1)).alias("rows")).writeStream
        if mode == "append":
            writer = writer.format(FORMAT).options(**options)
        else:
            writer = writer.foreachBatch(MicroBatches(self.app.spark, options))
        writer = (
            writer.queryName(self.app.name if mode == "append" else f"{self.app.name}-{mode}")
            .outputMode(mode)
            .option("checkpointLocation", self.app.folder.checkpoint(mode).as_uri())
        )
        if self._once:
            writer = writer.trigger(availableNow=True)
        elif self._every is not None:
            writer = writer.trigger(processingTime=self._every)
        query: StreamingQuery = writer.start()
        return query

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stack.close()
        if kind is None:
            last = max(self._seen.values(), default=None)
            where = "before its first batch" if last is None else f"after batch {last}"
            self._say(f"{self.app.name}: stopped {where}; run it again to go on from there")

    def _stop(self) -> None:
        for query in self.queries:
            with explained(self.app.folder.log):
                query.stop()

    @property
    def is_active(self) -> bool:
        """Whether a query still runs."""
        return any(query.isActive for query in self.queries)

    def watch(self) -> None:
        """Report what happened since the last call; raise if a query failed."""
        for query in self.queries:
            for progress in query.recentProgress:
                if progress["batchId"] > self._seen.get(query.id, -1):
                    self._note(query, progress)
            failed = query.exception()
            if failed is not None:
                raise StreamsError(f"app {self.app.name} failed: {explain(str(failed), self.app.folder.log)}")

    def _note(self, query: StreamingQuery, progress: Any) -> None:
        batch = Batch.of(progress)
        if "addBatch" not in progress["durationMs"]:
            return  # nothing came; the same number comes again with rows
        self._seen[query.id] = batch.number
        for end in ends(progress):
            self._committer.note(end)
        now = time.monotonic()
        if batch.rows_in and (now - self._said >= LINE_SECONDS or self._once):
            self._said = now
            self._say(batch.line)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Set when someone wants this to stop. Spark's own handler would cancel the batch and raise."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    wanted: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, lambda *_: stopping.set()) for each in wanted}
    try:
        yield stopping
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
