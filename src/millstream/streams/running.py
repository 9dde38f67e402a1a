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

from millstream.errors import MillstreamError
from millstream.streams.committing import GroupCommitter
from millstream.streams.failures import TRIES, explain, explained, passes
from millstream.streams.feeds import FORMAT
from millstream.streams.loading import current
from millstream.streams.options import BOOTSTRAP
from millstream.streams.outputs import Mode
from millstream.streams.problems import StreamsError
from millstream.streams.progress import OUT, Batch, ends, reports
from millstream.streams.queries import Queries, as_before, queries, records_of, two_decisions
from millstream.streams.sink_reset import settle_sink
from millstream.streams.state_folder import spark_path
from millstream.streams.update_sink import MicroBatches, sink_query

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from millstream.streams.app import App

POLL_SECONDS = 0.2
LINE_SECONDS = 1.0
SETTLE_SECONDS = 5.0
"""How long an app that stops tries to reach the brokers once more."""

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
    if current() is not None:
        return  # whoever loads the file will run them
    for app in apps:
        app.spark  # noqa: B018 - Spark starts, and takes the signals for itself, before we take them
    with ExitStack() as stack:
        stopping = stack.enter_context(stop_signals())
        running = [stack.enter_context(Running(app, once=once, every=every, quiet=quiet)) for app in apps]
        is_active = True
        while not stopping.is_set():
            was_active, is_active = is_active, False
            for each in running:
                each.watch()
                is_active = is_active or each.is_active
            if not was_active and not is_active:
                break  # and what was reported last has been seen
            stopping.wait(POLL_SECONDS)


class Running:
    """An app's queries, from the start of the `with` block to its end."""

    def __init__(
        self, app: App, *, once: bool = False, every: str | None = None, quiet: bool = False
    ) -> None:
        self.app = app
        self.queries: list[StreamingQuery] = []
        self._wanted: Queries = {}
        self._once = once
        self._every = every
        self._say: Say = _nothing if quiet else say
        self._stack = ExitStack()
        self._seen: dict[str, int] = {}
        self._said = 0.0
        self._tries_left = TRIES

    def __enter__(self) -> Self:
        with ExitStack() as starting, explained(self.app.folder.log):
            starting.enter_context(self.app.folder.locked())
            if self.app.folder.is_half_reset:
                raise StreamsError(f"a reset of app {self.app.name} has not come to its end: reset it again")
            outputs = self.app.outputs()
            found = queries(outputs, self.app.folder.query_ids())
            self._wanted = as_before(found, self.app.folder, self.app.name)
            self.app.folder.keep_starts()
            self.app.folder.keep_outputs(
                {mode: [(each.topic, each.detail) for each in those] for mode, those in self._wanted.items()}
            )
            self._committer = GroupCommitter(self.app.bootstrap, self.app.name)
            starting.callback(self._committer.close, SETTLE_SECONDS)
            starting.callback(self._stop)
            for mode in self._wanted:
                self.queries.append(self._start(mode))
            topics = ", ".join(dict.fromkeys(each.topic for each in outputs))
            read = ", ".join(dict.fromkeys(each.label for each in self.app.last_read))
            self._say(f"{self.app.name}: {read} → {topics}, state in {self.app.folder.path}")
            if (known := two_decisions(self._wanted)) is not None:
                self._say(f"{self.app.name}: {known}")
            self._stack = starting.pop_all()
        return self

    def _start(self, mode: Mode) -> StreamingQuery:
        options = {BOOTSTRAP: self.app.bootstrap, **self.app.sink}
        observed = records_of(self._wanted[mode]).observe(OUT, F.count(F.lit(1)).alias("rows"))
        writer: Any = observed.writeStream
        if mode == "append":
            writer = writer.format(FORMAT).options(**options)
        else:
            writer = writer.foreachBatch(MicroBatches(options))
        is_second = len(self._wanted) > 1 and mode == "update"
        writer = (
            writer.queryName(f"{self.app.name}-{mode}" if is_second else self.app.name)
            .outputMode(mode)
            .option("checkpointLocation", spark_path(self.app.folder.checkpoint(mode)))
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
        with ExitStack() as ending:  # one that cannot be stopped does not keep the others
            for mode, query in zip(self._wanted, self.queries, strict=False):
                ending.callback(self._end, query, mode)

    def _end(self, query: StreamingQuery, mode: Mode) -> None:
        """Stop a query, and end the transactions of a batch that it was at: readers would wait for them."""
        with explained(self.app.folder.log):
            query.stop()
        if not self.app.folder.is_within_batch(mode):
            return
        try:
            settle_sink(self.app.sink_bootstrap, sink_query(query.id, mode), SETTLE_SECONDS)
        except MillstreamError as error:
            self._say(
                f"{self.app.name}: the transactions of its last batch may be open still, and readers of "
                f"committed records wait for them until it runs again ({error})"
            )

    @property
    def is_active(self) -> bool:
        """Whether a query still runs."""
        return any(query.isActive for query in self.queries)

    def watch(self) -> None:
        """Report what happened since the last call; raise if a query failed."""
        for number, (mode, query) in enumerate(zip(self._wanted, list(self.queries), strict=True)):
            for progress in reports(query, self._seen.get(query.id, -1)):
                self._note(query, progress)
            failed = query.exception()
            if failed is None:
                continue
            if passes(failed) and self._tries_left:
                self._tries_left -= 1
                self._say(f"{self.app.name}: Spark had no worker in time; starting again from the checkpoint")
                self.queries[number] = self._start(mode)
            else:
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
def stop_signals() -> Iterator[threading.Event]:
    """Set when someone wants this to stop. Spark's own handler would cancel the batch and raise, wherever the
    program is just then; it is taken over from once Spark has started.

    Who asks again does not want to wait for a clean end.
    """
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return
    wanted: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, stop) for each in wanted}
    try:
        yield stopping
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
