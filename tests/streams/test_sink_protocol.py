"""The sink's protocol without Spark: drivers that stop at each place, that wake up again, and that follow;
on Millstream and on Apache Kafka.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from millstream import Admin
from millstream.client.cluster import Cluster
from millstream.client.offsets import LATEST, READ_COMMITTED, list_offsets
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import TopicPartition
from millstream.streams import sink_failpoints
from millstream.streams.sink import BatchWriter
from millstream.streams.sink_commit import Committer, open_attempts
from millstream.streams.sink_decisions import Decision, Owner, _last_value
from millstream.streams.sink_errors import (
    BadRow,
    CheckpointBehind,
    LostDecision,
    LostTransaction,
    TornBatch,
    WrittenTwice,
)
from millstream.streams.sink_message import Attempt
from millstream.streams.sink_names import Run, is_attempt_of, owner_of, topic_of
from millstream.streams.sink_options import sink_options
from millstream.streams.sink_reset import SinkState, reset_sink, settle_sink
from millstream.streams.sink_task import RowWriter, ask_max_timeout_ms, look_up, max_timeout_ms
from millstream.testing import Broker
from millstream.testing import Cluster as BrokerCluster
from millstream.testing.member import Member
from tests.client.conftest import either_bootstrap, kafka_bootstrap, own_bootstrap
from tests.client.logs import values_in
from tests.conftest import Name
from tests.processes import until

__all__ = ["either_bootstrap", "kafka_bootstrap", "own_bootstrap"]

TASKS = 3
TIMEOUT_MS = 30_000


class Query:
    """A streaming query as the sink sees it: its batches have the same rows whenever they come."""

    def __init__(self, bootstrap: str, topic: str, **options: str) -> None:
        self.bootstrap, self.topic, self.id = bootstrap, topic, str(uuid4())
        given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, **options}
        self.options = sink_options(given)
        with Admin(bootstrap) as admin:
            if topic not in admin.list_topics():
                admin.create_topic(topic, 1)

    def driver(self) -> Driver:
        return Driver(self, Run(self.id, uuid4().hex))

    def output(self) -> list[bytes | None]:
        """All that was committed. It ends only if no transaction is open."""
        return sorted(values_in(self.bootstrap, self.topic, isolation_level=READ_COMMITTED)[0])  # type: ignore[type-var]

    @property
    def last(self) -> tuple[int, bool] | None:
        found = look_up(self.options, self.id)
        return None if found is None else (found.batch, found.is_done)


class Driver:
    """One run of a query."""

    def __init__(self, query: Query, run: Run) -> None:
        self.query, self.run = query, run
        self.committer = Committer(query.bootstrap, run, TIMEOUT_MS)

    def task(self, batch: int, partition: int, attempt: int = 0) -> Attempt:
        last = look_up(self.query.options, self.query.id)
        if last is not None and last.batch == batch:
            return Attempt(self.run, batch, partition, attempt, None, was_decided=True)
        writer = RowWriter(self.query.options, self.run.transactional_id(partition, attempt))
        rows = pa.record_batch({"value": rows_of(batch)[partition::TASKS]})
        return Attempt(self.run, batch, partition, attempt, writer.write(iter([rows])))

    def tasks(self, batch: int) -> list[Attempt]:
        return [self.task(batch, partition) for partition in range(TASKS)]

    def commit(self, batch: int, attempts: list[Attempt]) -> None:
        asyncio.run(self.committer.commit(batch, attempts))

    def abort(self, batch: int) -> None:
        asyncio.run(self.committer.abort(batch))

    def do(self, batch: int) -> None:
        self.commit(batch, self.tasks(batch))


def rows_of(batch: int) -> list[bytes]:
    return [b"%d-%d" % (batch, number) for number in range(TASKS * 2)]


def answer(batches: int) -> list[bytes]:
    return sorted(row for batch in range(batches) for row in rows_of(batch))


@pytest.fixture
def query(either_bootstrap: str, new_name: Name) -> Query:
    return Query(either_bootstrap, new_name("out"))


@pytest.fixture
def own_query(own_bootstrap: str, new_name: Name) -> Query:
    return Query(own_bootstrap, new_name("out"))


class Failpoints:
    """Stops the sink in a thread; the thread goes on when the place is `left`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def stop_at(self, place: str, work: Callable[[], Any]) -> None:
        """Do some work in a thread, until it comes to a place."""

        def main() -> None:
            try:
                work()
            except BaseException as error:
                self.failure = error

        (self._folder / place).touch()
        self._thread = threading.Thread(target=main, daemon=True)
        self._thread.start()
        until(
            lambda: (self._folder / f"{place}.hit").exists() or self.failure, 30, f"the sink comes to {place}"
        )
        assert self.failure is None

    def go_on(self) -> None:
        """Let it go on, to its end."""
        for hit in self._folder.glob("*.hit"):
            hit.unlink()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive()
            self._thread = None


@pytest.fixture
def failpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Failpoints]:
    monkeypatch.setenv(sink_failpoints.FOLDER, str(tmp_path))
    found = Failpoints(tmp_path)
    yield found
    found.go_on()


PLACES = ["before-decision", "after-decision", "after-end-1", "after-end-2", "after-end-3", "before-return"]


def test_batches_one_after_the_other(query: Query) -> None:
    driver = query.driver()
    assert query.last is None
    for batch in range(3):
        driver.do(batch)
        assert query.last == (batch, True)
    assert query.output() == answer(3)


def test_rows_are_not_seen_before_the_commit(query: Query) -> None:
    driver = query.driver()
    attempts = driver.tasks(0)
    with Admin(query.bootstrap) as admin:
        states = [
            admin.describe_transaction(each.transaction.transactional_id)
            for each in attempts
            if each.transaction
        ]
    assert [(each.state, each.timeout_ms) for each in states] == [
        ("Ongoing", max_timeout_ms(query.options))
    ] * TASKS
    driver.commit(0, attempts)
    assert query.output() == answer(1)


@pytest.mark.parametrize("place", PLACES)
def test_a_driver_stops_and_the_next_one_goes_on(query: Query, failpoints: Failpoints, place: str) -> None:
    """The first one is not dead but slow: it wakes up when the other is two batches further."""
    first = query.driver()
    first.do(0)
    attempts = first.tasks(1)
    failpoints.stop_at(place, lambda: first.commit(1, attempts))
    second = query.driver()
    for batch in (1, 2):
        second.do(batch)
    third = second.tasks(3)
    failpoints.go_on()
    assert query.last == (2, True), "the first driver has decided nothing more"
    second.commit(3, third)
    assert query.output() == answer(4)
    if place in ("before-decision", "after-decision", "after-end-1", "after-end-2", "after-end-3"):
        assert isinstance(failpoints.failure, KafkaError), "it was shut out"


@pytest.mark.parametrize("place", PLACES)
def test_a_driver_wakes_up_while_the_next_one_replays_its_batch(
    query: Query, failpoints: Failpoints, place: str
) -> None:
    """The tasks of the second one have begun before the first one decides; each batch is decided once."""
    first = query.driver()
    attempts = first.tasks(0)
    failpoints.stop_at(place, lambda: first.commit(0, attempts))
    second = query.driver()
    again = second.tasks(0)
    failpoints.go_on()
    second.commit(0, again)
    second.do(1)
    assert query.output() == answer(2)


@pytest.mark.parametrize("place", PLACES)
def test_an_abort_after_the_decision_aborts_nothing(
    own_query: Query, failpoints: Failpoints, place: str
) -> None:
    """Spark calls abort when a commit failed, wherever it did."""
    driver = own_query.driver()
    attempts = driver.tasks(0)
    failpoints.stop_at(place, lambda: driver.commit(0, attempts))
    driver.abort(0)
    failpoints.go_on()
    if place == "before-decision":
        assert own_query.output() == []
        with pytest.raises(LostTransaction, match=r"batch 0 of query .* was not written"):
            driver.commit(0, attempts)
    own_query.driver().do(0)
    assert own_query.output() == answer(1)


def test_attempts_that_lost_are_aborted(query: Query) -> None:
    driver = query.driver()
    winners = [driver.task(0, partition, attempt=1) for partition in range(TASKS)]
    driver.task(0, 0, attempt=0)
    query.driver().tasks(0)  # left by a driver that died
    driver.commit(0, winners)
    assert query.output() == answer(1)


def test_what_a_task_begins_while_its_write_is_aborted_is_aborted_too(
    own_query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks beside the one that failed are killed some time later."""
    driver = own_query.driver()
    driver.task(0, 0)
    abort, begun = Committer._abort_losers, list[Attempt]()

    async def then_another_begins(self: Committer, *given: Any) -> None:
        await abort(self, *given)
        if not begun:
            begun.append(await asyncio.to_thread(driver.task, 0, 1))

    monkeypatch.setattr(Committer, "_abort_losers", then_another_begins)
    assert asyncio.run(driver.committer.abort(0, linger_s=0.01))
    assert begun
    assert own_query.output() == []


def test_batches_without_rows_cost_no_decision(own_query: Query) -> None:
    driver = own_query.driver()
    driver.commit(0, [Attempt(driver.run, 0, 0, 0, None)])
    assert own_query.last is None
    driver.do(1)
    driver.commit(2, [Attempt(driver.run, 2, 0, 0, None)])
    assert own_query.last == (1, True)


def test_a_batch_without_rows_ends_what_is_open(own_query: Query) -> None:
    """What a killed driver has left, though its batch has no rows any more, and an attempt that came late."""
    own_query.driver().tasks(0)
    driver = own_query.driver()
    driver.commit(0, [Attempt(driver.run, 0, 0, 0, None)])
    assert own_query.output() == []
    driver.task(1, 0, attempt=1)
    driver.commit(2, [Attempt(driver.run, 2, 0, 0, None)])
    assert own_query.output() == []
    following = own_query.driver()
    attempts = following.tasks(3)  # which are not for the driver before to end
    driver.commit(3, [Attempt(driver.run, 3, 0, 0, None)])
    following.commit(3, attempts)
    assert own_query.output() == sorted(rows_of(3))


def test_an_old_checkpoint_is_refused(own_query: Query) -> None:
    driver = own_query.driver()
    attempts = driver.tasks(1)
    own_query.driver().do(2)
    with pytest.raises(CheckpointBehind, match="comes with batch 1, but has written up to batch 2"):
        driver.commit(1, attempts)


def test_a_decided_transaction_that_timed_out_is_told(new_name: Name, failpoints: Failpoints) -> None:
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}) as broker:
        query = Query(broker.bootstrap, new_name("out"), **{"kafka.transaction.timeout.ms": "3000"})
        first = query.driver()
        attempts = first.tasks(0)
        failpoints.stop_at("after-end-1", lambda: first.commit(0, attempts))
        with Admin(broker.bootstrap) as admin:
            slow = attempts[2].transaction
            assert slow is not None
            until(
                lambda: admin.describe_transaction(slow.transactional_id).state == "CompleteAbort",
                30,
                "the time-out",
            )
        second = query.driver()
        with pytest.raises(TornBatch, match=r"batch 0 of query .* is torn: 2 of its 3 transactions"):
            second.do(0)
        second.abort(0)
        with pytest.raises(TornBatch):
            query.driver().do(0)
        state = reset_sink(broker.bootstrap, query.id)
        assert (state.last_batch, state.was_finished, state.is_torn) == (0, False, True)
        failpoints.go_on()
        query.driver().do(0)
        assert query.output() == sorted([*answer(1), *rows_of(0)[0::TASKS]]), (
            "as the error said: duplicates of a part"
        )


def test_a_transaction_that_timed_out_before_the_decision(new_name: Name) -> None:
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}) as broker:
        query = Query(broker.bootstrap, new_name("out"), **{"kafka.transaction.timeout.ms": "1000"})
        driver = query.driver()
        attempts = driver.tasks(0)
        with Admin(broker.bootstrap) as admin:
            until(lambda: not admin.list_transactions(states=["Ongoing"]), 30, "the time-outs")
        with pytest.raises(LostTransaction, match="Nothing of it was committed"):
            driver.commit(0, attempts)
        driver.do(0)
        assert query.output() == answer(1)


def test_settling_finishes_what_was_decided_and_aborts_the_rest(
    own_query: Query, failpoints: Failpoints
) -> None:
    first = own_query.driver()
    attempts = first.tasks(0)
    first.task(0, 0, attempt=1)
    failpoints.stop_at("after-end-1", lambda: first.commit(0, attempts))
    state = settle_sink(own_query.bootstrap, own_query.id)
    assert (state.last_batch, state.was_finished, state.is_torn, state.aborted) == (0, True, False, 1)
    assert own_query.output() == answer(1)
    failpoints.go_on()
    own_query.driver().do(1)
    assert own_query.output() == answer(2)


def test_a_sink_is_settled_from_a_notebook_too(own_query: Query) -> None:
    """Whose thread has an event loop that runs."""
    driver = own_query.driver()
    driver.do(0)
    driver.tasks(1)

    async def cell() -> SinkState:
        return settle_sink(own_query.bootstrap, own_query.id)

    assert asyncio.run(cell()).aborted == TASKS


def test_reset_forgets_the_decisions(own_query: Query) -> None:
    driver = own_query.driver()
    driver.do(5)
    driver.tasks(6)
    state = reset_sink(own_query.bootstrap, own_query.id)
    assert (state.last_batch, state.aborted) == (5, TASKS)
    assert own_query.output() == sorted(rows_of(5)), "what was written stays"
    with Admin(own_query.bootstrap) as admin:
        assert topic_of(own_query.id) not in admin.list_topics()
    again = own_query.driver()
    again.do(0)
    assert reset_sink(own_query.bootstrap, str(uuid4())).last_batch is None, "a query that never wrote"


def test_the_last_decision_is_found_among_many_aborted_ones(own_query: Query) -> None:
    """Only the end of the topic is read, further back only where it holds nothing committed."""
    from millstream import Producer

    driver = own_query.driver()
    driver.do(0)
    with Producer(own_query.bootstrap, transactional_id=owner_of(own_query.id)) as producer:
        for _ in range(50):
            producer.begin_transaction()
            producer.send(topic_of(own_query.id), b"{}", key=b"decision", partition=0).result(10)
            producer.abort_transaction()
    assert own_query.last == (0, True)
    driver.do(1)
    assert own_query.output() == answer(2)


def test_a_decision_for_very_many_tasks(query: Query) -> None:
    places = [(partition, 0, 1_000_000 + partition, 5, 2) for partition in range(60_000)]
    decision = Decision(0, uuid4().hex, is_done=False, transactions=places)

    async def written() -> Decision | None:
        async with Cluster(query.bootstrap) as cluster:
            deadline = Deadline(TIMEOUT_MS)
            async with Owner(cluster, query.bootstrap, query.id, deadline) as owner:
                await owner.write(decision)
            async with Owner(cluster, query.bootstrap, query.id, deadline) as follower:
                return follower.last

    assert asyncio.run(written()) == decision


def test_a_second_write_under_the_same_name_is_refused(own_query: Query) -> None:
    """In a function for foreachBatch; taken for the first one come again, its rows would be lost."""
    driver = own_query.driver()
    driver.do(0)
    with pytest.raises(WrittenTwice, match=r"batch 0 of .* needs an outputName of its own"):
        driver.do(0)
    own_query.driver().do(0)  # another run comes with the batch again
    driver.do(1)
    assert own_query.output() == answer(2)


def test_outputs_whose_names_begin_alike_leave_each_other_alone(own_query: Query, new_name: Name) -> None:
    other = Query(own_query.bootstrap, new_name("out"))
    other.id = f"{own_query.id}-dates-2"
    attempts, driver = other.driver(), own_query.driver()
    written = attempts.tasks(0)
    driver.do(0)
    assert settle_sink(own_query.bootstrap, own_query.id).aborted == 0
    attempts.commit(0, written)
    assert (own_query.output(), other.output()) == (answer(1), answer(1))


def test_ids_of_attempts_are_told_from_others() -> None:
    run = Run("q-a", str(uuid4()))
    assert is_attempt_of("q-a", run.transactional_id(3, 1))
    assert is_attempt_of("q-a", Run("q-a", "batch").transactional_id(0, 0))
    assert not is_attempt_of("q", run.transactional_id(3, 1))
    for name in ("q-a", "q-a-b", "q-a-2024-01-02"):
        assert not is_attempt_of("q-a", owner_of(name))


def test_a_transaction_that_a_list_left_out_is_asked_for(own_query: Query) -> None:
    """While coordinators move, a list of what is open may lack some."""
    driver = own_query.driver()
    attempts = driver.tasks(0)

    async def check(known: list[Attempt]) -> None:
        async with Cluster(own_query.bootstrap) as cluster:
            await driver.committer._check_open(cluster, 0, known, [], Deadline(TIMEOUT_MS))

    asyncio.run(check(attempts))
    driver.abort(0)
    with pytest.raises(LostTransaction, match="3 of its transactions"):
        asyncio.run(check(attempts))


def test_a_batch_write_that_is_committed_has_not_failed(new_name: Name) -> None:
    """Where brokers delete no topics, its decision stays; who is told of a failure writes again."""
    with Broker({"delete.topic.enable": "false"}) as broker:
        query = Query(broker.bootstrap, new_name("out"))
        options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": query.topic}
        writer = BatchWriter(options, StructType([StructField("value", StringType())]))
        query.id = writer._this_run.query
        writer.commit([*Driver(query, writer._this_run).tasks(0)])
        assert query.output() == answer(1)


async def _ask_while_it_dies(dying: Member, query: Query) -> None:
    """A broker falls silent, and is then gone: those that are left are asked soon, not at the deadline."""
    async with (
        Cluster(query.bootstrap, request_timeout_ms=200) as cluster,
        Cluster(query.bootstrap, request_timeout_ms=200) as reading,
    ):
        assert len(await open_attempts(cluster, query.id, Deadline(TIMEOUT_MS))) == TASKS
        decisions = TopicPartition(topic_of(query.id), 0)
        (end,) = (await list_offsets(reading, {decisions: LATEST}, Deadline(TIMEOUT_MS))).values()
        dying.pause()
        asyncio.get_running_loop().call_later(0.5, dying.kill)
        await asyncio.wait_for(
            asyncio.gather(
                open_attempts(cluster, query.id, Deadline(600_000)),
                ask_max_timeout_ms(query.options),
                _last_value(reading, decisions, 0, end.offset, Deadline(600_000)),
            ),
            30,
        )


def test_a_broker_dies_and_the_query_goes_on(new_name: Name) -> None:
    """Several brokers keep the decisions, whatever the default; one that is gone is not waited for."""
    with BrokerCluster(brokers=3) as cluster:
        topic = cluster.create_topic(new_name("out"), 1, replication_factor=3)
        query = Query(cluster.bootstrap, topic)
        driver = query.driver()
        driver.do(0)
        with Admin(cluster.bootstrap) as admin:
            (decisions,) = admin.describe_topic(topic_of(query.id)).partitions.values()
            assert len(decisions.replicas) == 3
        attempts = driver.tasks(1)
        dying = cluster[cluster.leader(topic_of(query.id))]
        asyncio.run(_ask_while_it_dies(dying, query))
        driver.commit(1, attempts)
        driver.do(2)
        assert query.output() == answer(3)


def test_a_decision_that_tasks_went_by_and_that_is_gone(own_query: Query) -> None:
    """The rest of the batch is not decided without the rows that they left out."""
    own_query.driver().do(0)
    driver = own_query.driver()
    left_out = driver.task(0, 0)
    reset_sink(own_query.bootstrap, own_query.id)
    written = [driver.task(0, partition) for partition in (1, 2)]
    with pytest.raises(LostDecision, match=r"batch 0 of query .* was decided when its tasks began"):
        driver.commit(0, [left_out, *written])
    driver.abort(0)
    assert own_query.output() == answer(1)


def test_a_record_that_is_too_large(own_query: Query) -> None:
    writer = RowWriter(own_query.options, "too-large")
    with pytest.raises(BadRow, match=r"a record of .* bytes is larger .*: raise kafka.max.request.size"):
        writer.write(iter([pa.record_batch({"value": [bytes(2 << 20)]})]))
    assert own_query.output() == []
