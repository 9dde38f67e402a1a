"""A DataFrame written to topics, batch and streaming: what Spark calls, in tasks and on the driver.

Streaming writes are exactly once: each attempt of a task writes in a transaction of its own and leaves it
open; the driver makes one durable decision for the batch and then commits its transactions.
docs/spark-sink.md says what holds when something dies in between. Spark makes a new writer for each batch,
so that a writer keeps nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from millstream.client.cluster import Cluster
from millstream.client.producer_identity import HandedOver
from millstream.deadline import Deadline
from millstream.errors import MillstreamError
from millstream.streams import sink_failpoints
from millstream.streams.loaded import keep_loaded
from millstream.streams.options import BadOption
from millstream.streams.sink_columns import check_schema
from millstream.streams.sink_commit import Committer, check_order, end_all, transactions_of
from millstream.streams.sink_message import Attempt
from millstream.streams.sink_names import Run, topic_of
from millstream.streams.sink_options import SinkOptions, sink_options
from millstream.streams.sink_task import RowWriter, first_rows, look_up, run

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

log = logging.getLogger("millstream.streams")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"
"""Spark's names of what a task of a streaming query may know; a run is a job group."""

ONLY_BATCH = 0

KILL_S = 3.0
"""How long the other tasks of a write that failed may go on: Spark kills a task's Python after two seconds.
Nobody comes with this write again, who would abort what they leave open."""


class Sink:
    """What a streaming write and a batch write have in common."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = sink_options(options)
        check_schema(schema, self._options.topic)
        keep_loaded("sink")

    def _write(self, run_and_batch: tuple[Run, int], iterator: Iterator[pa.RecordBatch]) -> Attempt:
        """In a task: write its rows, unless the batch is decided already."""
        keep_loaded("sink")
        task = _task()
        this_run, batch = run_and_batch
        rows = first_rows(iterator)
        transaction = None
        was_decided = rows is not None and self._is_decided(this_run.query, batch)
        if rows is not None and not was_decided:
            transaction = self._write_rows(
                this_run.transactional_id(task.partitionId(), task.attemptNumber()), rows
            )
            if task.attemptNumber() == 0:
                sink_failpoints.reached(sink_failpoints.WRITTEN)
        for _ in iterator:
            pass  # a decided batch comes again: its rows are written
        return Attempt(this_run, batch, task.partitionId(), task.attemptNumber(), transaction, was_decided)

    def _is_decided(self, query: str, batch: int) -> bool:
        if not self._options.is_exactly_once or sink_failpoints.is_without_decision():
            return False
        last = look_up(self._options, query)
        check_order(query, batch, last)
        return last is not None and last.batch == batch

    def _write_rows(self, transactional_id: str, rows: Iterator[pa.RecordBatch]) -> HandedOver | None:
        is_exactly_once = self._options.is_exactly_once
        return RowWriter(self._options, transactional_id if is_exactly_once else None).write(rows)

    def _commit(self, attempts: Sequence[Attempt]) -> None:
        """On the driver: decide for the batch, then commit its transactions."""
        if not attempts or not self._options.is_exactly_once:
            return
        if sink_failpoints.is_without_decision():
            run(_commit_all(self._options, attempts))
            sink_failpoints.reached(sink_failpoints.BEFORE_RETURN)
        else:
            run(self._committer(attempts[0].run).commit(attempts[0].batch, attempts))

    def _abort(self, this_run: Run, batch: int, *, linger_s: float = 0.0) -> bool:
        """On the driver: tasks failed, or the commit did. After a decision nothing is aborted."""
        if not self._options.is_exactly_once or sink_failpoints.is_without_decision():
            return False
        return run(self._committer(this_run).abort(batch, linger_s=linger_s))

    def _committer(self, this_run: Run) -> Committer:
        return Committer(self._options.bootstrap, this_run, self._options.timeout_ms)


class StreamWriter(Sink, DataSourceStreamArrowWriter):
    """The sink of a streaming query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write(_streaming(_task()), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._commit(attempts_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for attempt in attempts_of(messages)[:1]:
            self._abort(attempt.run, batchId)


class BatchWriter(Sink, DataSourceArrowWriter):
    """The sink of a batch write: the same protocol, with the write in the place of a query's only batch.

    With option `outputName`, in a function for foreachBatch, it is a streaming write of the query that calls
    the function: recognised when the batch comes again.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        self._this_run = Run(str(uuid4()), "batch")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        name = self._options.output_name
        if name is None:
            return self._write((self._this_run, ONLY_BATCH), iterator)
        (query, run_id), batch = _streaming(_task())
        return self._write((Run(f"{query}-{name}", run_id), batch), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        attempts = attempts_of(messages)
        if self._options.output_name is not None:
            self._commit(attempts)
        elif transactions_of(attempts):
            self._commit(attempts)
            self._forget()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.output_name is not None:
            for attempt in attempts_of(messages)[:1]:
                self._abort(attempt.run, attempt.batch)
        elif self._abort(self._this_run, ONLY_BATCH, linger_s=KILL_S):
            self._forget()

    def _forget(self) -> None:
        """Nobody comes with this batch again. What is committed must not fail by tidying up."""
        try:
            run(self._committer(self._this_run).forget())
        except MillstreamError as error:
            log.warning(
                "the decisions of a batch write stay in %s: %s", topic_of(self._this_run.query), error
            )


def _streaming(task: TaskContext) -> tuple[Run, int]:
    """The run and the batch of a streaming query that a task works for."""
    return Run(_property(task, QUERY_ID), _property(task, RUN_ID)), int(_property(task, BATCH_ID))


def attempts_of(messages: Sequence[WriterCommitMessage | None]) -> list[Attempt]:
    """What the tasks said; those that failed said nothing."""
    return [each for each in messages if isinstance(each, Attempt)]


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are written by Spark's tasks")
    return task


def _property(task: TaskContext, name: str) -> str:
    value = task.getLocalProperty(name)
    if value is None:
        raise BadOption(
            f"this is no task of a streaming query (Spark does not tell it {name}): leave outputName out"
        )
    return value


async def _commit_all(options: SinkOptions, attempts: Sequence[Attempt]) -> None:
    async with Cluster(options.bootstrap) as cluster:
        await end_all(cluster, transactions_of(attempts), Deadline(options.timeout_ms), is_commit=True)
