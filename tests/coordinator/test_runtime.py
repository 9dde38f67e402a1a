"""The coordinators' runtime: what it writes, replays, answers, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from time import sleep
from typing import Any

import pytest

from millstream.coordinator import host as host_module
from millstream.coordinator import runtime as runtime_module
from millstream.coordinator.host import PIECE_BYTES
from millstream.coordinator.promise import Promise
from millstream.coordinator.runtime import Runtime
from millstream.coordinator.shard import Entry, Producer, Result, Timers
from millstream.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    KafkaError,
    KafkaStorageError,
    NotCoordinator,
    NotLeaderOrFollower,
    ProducerFenced,
)
from tests.coordinator.internal_log import ScriptedLog


class Notebook:
    """The smallest shard: it remembers the last value of every key."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.values: dict[bytes, bytes] = {}
        self.ends: list[tuple[Producer, bool]] = []
        self.is_prepared = False
        self.is_loaded = False
        self.waiting: list[Promise[bytes]] = []

    def put(self, key: bytes, value: bytes | None) -> Result[bytes]:
        return Result(key, [Entry(key, value)])

    def wait_for_value(self) -> Result[bytes]:
        promise: Promise[bytes] = Promise()
        self.waiting.append(promise)
        return Result(promise)

    def replay(self, entry: Entry, producer: Producer | None, offset: int) -> None:
        if entry.value is None:
            self.values.pop(entry.key, None)
        else:
            self.values[entry.key] = entry.value
            if self.is_loaded:
                waiting, self.waiting = self.waiting, []
                for promise in waiting:
                    promise.keep(entry.value)

    def replay_end(self, producer: Producer, is_commit: bool) -> None:
        self.ends.append((producer, is_commit))

    def prepare(self) -> Iterator[None]:
        yield
        self.is_prepared = True

    def loaded(self) -> None:
        assert self.is_prepared
        self.is_loaded = True

    def unloaded(self, error: Exception) -> None:
        for promise in self.waiting:
            promise.break_(error)


Story = Callable[[Runtime[Notebook], ScriptedLog], Coroutine[Any, Any, None]]


def play(story: Story, log: ScriptedLog | None = None, commit_timeout_ms: int | None = None) -> None:
    """Run a story with partition 0 in service."""

    async def main() -> None:
        runtime: Runtime[Notebook] = Runtime("topic", lambda _, timers: Notebook(timers), commit_timeout_ms)
        used = log or ScriptedLog()
        runtime.lead(0, used)
        while not runtime.is_active(0):
            await asyncio.sleep(0.001)
        try:
            await story(runtime, used)
        finally:
            runtime.stop()

    asyncio.run(main())


def put(key: bytes, value: bytes | None = b"v") -> Callable[[Notebook], Result[bytes]]:
    return lambda shard: shard.put(key, value)


def values(runtime: Runtime[Notebook]) -> dict[bytes, bytes]:
    shard = runtime.shard(0)
    assert shard is not None
    return shard.values


def test_what_is_written_is_replayed_before_the_answer() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        assert runtime.write_now(0, put(b"a", b"1")) == b"a"
        assert values(runtime) == {b"a": b"1"}
        assert await runtime.write(0, put(b"a", None)) == b"a"
        assert values(runtime) == {}
        assert log.end_offset == 2

    play(story)


def test_answers_wait_until_all_is_committed_that_they_may_have_seen() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.commits_at_once = False
        writing = asyncio.ensure_future(runtime.write(0, put(b"a")))
        reading = asyncio.ensure_future(runtime.read(0, lambda shard: dict(shard.values)))
        idle = asyncio.ensure_future(runtime.write(0, lambda _: Result(b"nothing")))
        listing = asyncio.ensure_future(runtime.read_all(lambda shard: len(shard.values)))
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in (writing, reading, idle, listing))
        log.commit()
        assert (await writing, await reading, await idle) == (b"a", {b"a": b"v"}, b"nothing")
        assert await listing == [1]

    play(story)


def test_a_promise_is_answered_when_what_kept_it_is_committed() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        waiting = asyncio.ensure_future(runtime.write(0, lambda shard: shard.wait_for_value()))
        await asyncio.sleep(0.01)
        log.commits_at_once = False
        writing = asyncio.ensure_future(runtime.write(0, put(b"a", b"kept")))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        log.commit()
        assert await waiting == b"kept"
        await writing

    play(story)


def test_what_the_log_refuses_changes_nothing() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.refuses = CoordinatorNotAvailable()
        with pytest.raises(CoordinatorNotAvailable):
            runtime.write_now(0, put(b"a"))
        assert values(runtime) == {}

    play(story)


def test_waiting_for_a_commit_has_an_end() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.commits_at_once = False
        with pytest.raises(CoordinatorNotAvailable):
            await runtime.write(0, put(b"a"))
        log.commit()
        assert await runtime.read(0, lambda shard: len(shard.values)) == 1  # it was committed after all

    play(story, commit_timeout_ms=20)


def test_a_log_that_fails_is_another_broker_s_by_now() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.commits_at_once = False
        writing = asyncio.ensure_future(runtime.write(0, put(b"a")))
        await asyncio.sleep(0)
        log.fail(KafkaStorageError())
        with pytest.raises(NotCoordinator):
            await writing

    play(story)


def test_resigning_tells_everybody_who_waits() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        waiting = asyncio.ensure_future(runtime.write(0, lambda shard: shard.wait_for_value()))
        await asyncio.sleep(0.01)
        log.commits_at_once = False
        writing = asyncio.ensure_future(runtime.write(0, put(b"a")))
        await asyncio.sleep(0.01)
        runtime.resign(0)
        log.commit()  # too late: another coordinator may have answered differently
        for each in (waiting, writing):
            with pytest.raises(NotCoordinator):
                await each
        with pytest.raises(NotCoordinator):
            await runtime.read(0, len)  # type: ignore[arg-type]
        assert runtime.shard(0) is None
        assert list(runtime) == []

    play(story)


def test_the_state_is_what_the_log_gives() -> None:
    log = ScriptedLog()
    for number in range(1000):
        log.append([Entry(b"%d" % (number % 7), b"%d" % number)], None)
    log.append_marker(Producer(9, 1), is_commit=True)

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        shard = runtime.shard(0)
        assert shard is not None
        assert shard.is_loaded
        assert shard.values == {b"%d" % (number % 7): b"%d" % number for number in range(993, 1000)}
        assert shard.ends == [(Producer(9, 1), True)]

    play(story, log)


def test_nobody_is_answered_while_it_loads() -> None:
    async def main() -> None:
        runtime: Runtime[Notebook] = Runtime("topic", lambda _, timers: Notebook(timers))
        runtime.lead(0, ScriptedLog())
        with pytest.raises(CoordinatorLoadInProgress):
            await runtime.read(0, lambda _: None)
        with pytest.raises(CoordinatorLoadInProgress):
            await runtime.read_all(lambda _: None)
        with pytest.raises(NotCoordinator):
            await runtime.read(1, lambda _: None)
        runtime.stop()

    asyncio.run(main())


def test_loading_that_fails_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "RETRY_MS", 1)
    log = ScriptedLog()
    log.append([Entry(b"a", b"1")], None)
    log.read_failures = [KafkaStorageError(), OSError("a bad disk")]

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        assert runtime.failures == 2
        assert values(runtime) == {b"a": b"1"}

    play(story, log)


def test_timers() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        shard = runtime.shard(0)
        assert shard is not None
        shard.timers.set("moved", 0, lambda: shard.put(b"too early", b""))
        shard.timers.set("moved", 5, lambda: shard.put(b"moved", b""))
        shard.timers.set("cancelled", 1, lambda: shard.put(b"cancelled", b""))
        shard.timers.cancel("cancelled")
        shard.timers.cancel("unknown")
        await asyncio.sleep(0.03)
        assert list(shard.values) == [b"moved"]
        shard.timers.set("late", 1, lambda: shard.put(b"late", b""))
        runtime.resign(0)
        await asyncio.sleep(0.01)
        assert log.end_offset == 1

    play(story)


def test_a_timer_whose_entries_are_refused_is_served_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "RETRY_MS", 5)

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        shard = runtime.shard(0)
        assert shard is not None
        log.refuses = CoordinatorNotAvailable()
        shard.timers.set("t", 0, lambda: shard.put(b"a", b"1"))
        await asyncio.sleep(0.02)
        assert shard.values == {}
        log.refuses = None
        await asyncio.sleep(0.05)
        assert shard.values == {b"a": b"1"}

    play(story)


def test_a_timer_that_fails_is_served_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "FAILED_RETRY_MS", 20)

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        shard = runtime.shard(0)
        assert shard is not None
        failures: list[Exception] = [ZeroDivisionError(), KeyError()]

        def work() -> Result[bytes]:
            if failures:
                raise failures.pop()
            return shard.put(b"a", b"1")

        shard.timers.set_idle("t", work)
        await asyncio.sleep(0.01)
        assert runtime.failures == 1
        while not shard.values:
            await asyncio.sleep(0.005)
        assert runtime.failures == 2

    play(story)


def test_a_timer_that_was_set_again_before_it_failed_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "FAILED_RETRY_MS", 0)

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        shard = runtime.shard(0)
        assert shard is not None

        def work() -> Result[bytes]:
            shard.timers.set("t", 60_000, work)
            raise ZeroDivisionError

        shard.timers.set("t", 0, work)
        await asyncio.sleep(0.02)
        assert runtime.failures == 1

    play(story)


def test_what_is_to_be_done_now_is_done_before_anything_else() -> None:
    """Also before what waits to be written together with others, but after what came before it."""

    async def main() -> None:
        runtime: Runtime[Notebook] = Runtime("topic", lambda _, timers: Notebook(timers))
        runtime.lead(0, ScriptedLog())
        runtime.do_now(0, "x", put(b"a"))
        runtime.do_now(7, "x", put(b"elsewhere"))
        while not runtime.is_active(0):
            await asyncio.sleep(0)
        assert list(values(runtime)) == [b"a"]
        together(runtime, b"b")
        runtime.do_now(0, "x", put(b"c"))
        assert list(values(runtime)) == [b"a", b"b", b"c"]
        runtime.stop()

    asyncio.run(main())


def test_entries_that_need_not_be_together_are_written_in_pieces() -> None:
    count = 10_000

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        entries = [Entry(b"%06d" % number, bytes(100)) for number in range(count)]
        await runtime.write(0, lambda _: Result(None, entries, is_atomic=False))
        assert len(values(runtime)) == count
        sizes = [sum(len(entry.key) + 100 for _, entry in batch.entries) for batch in log.batches]
        assert len(sizes) > 10
        assert max(sizes) <= PIECE_BYTES
        assert [at for batch in log.batches for at, _ in batch.entries] == list(range(count))
        await runtime.write(0, lambda _: Result(None, entries))
        assert len(log.batches[-1].entries) == count

    play(story)


def test_the_end_of_a_transaction_is_waited_for() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.append_marker(Producer(1, 0), is_commit=False)
        log.committed = 0
        runtime.end_transaction(0, Producer(1, 0), False)
        reading = asyncio.ensure_future(runtime.read(0, lambda shard: list(shard.ends)))
        await asyncio.sleep(0.01)
        assert not reading.done()
        log.commit()
        assert await reading == [(Producer(1, 0), False)]

    play(story)


class Slow(Notebook):
    """Takes its time to get ready."""

    steps = 50

    def prepare(self) -> Iterator[None]:
        for _ in range(self.steps):
            sleep(0.001)
            yield
        self.is_prepared = True


def test_getting_ready_holds_nobody_up_and_misses_no_end_of_a_transaction() -> None:
    async def main() -> None:
        runtime: Runtime[Slow] = Runtime("topic", lambda _, timers: Slow(timers))
        log = ScriptedLog()
        log.append([Entry(b"a", b"1")], None)
        runtime.lead(0, log)
        turns = 0
        while not runtime.is_active(0):
            await asyncio.sleep(0)
            turns += 1
            if turns == 4:
                log.append_marker(Producer(1, 0), is_commit=True)
                runtime.end_transaction(0, Producer(1, 0), is_commit=True)
        assert turns > 4
        shard = runtime.shard(0)
        assert shard is not None
        assert shard.ends == [(Producer(1, 0), True)]
        runtime.stop()

    asyncio.run(main())


def test_what_is_to_be_done_soon_waits_for_the_shard_and_is_tried_again() -> None:
    async def main() -> None:
        runtime: Runtime[Notebook] = Runtime("topic", lambda _, timers: Notebook(timers))
        log = ScriptedLog()
        log.refuses = NotCoordinator()
        runtime.lead(0, log)
        runtime.do_soon(0, "x", put(b"a"))
        runtime.do_soon(0, "x", put(b"b"))
        runtime.do_soon(7, "x", put(b"elsewhere"))
        while not runtime.is_active(0):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert values(runtime) == {}
        log.refuses = None
        runtime.do_soon(0, "y", put(b"c"))
        await asyncio.sleep(host_module.RETRY_MS / 1000 + 0.05)
        assert values(runtime) == {b"b": b"v", b"c": b"v"}
        runtime.stop()

    asyncio.run(main())


# Small writes that are done together


def refused(error: KafkaError) -> bytes:
    return b"refused: %d" % error.code


def together(runtime: Runtime[Notebook], key: bytes, value: bytes = b"v") -> Promise[bytes]:
    return runtime.write_with_others(0, put(key, value), refused)


def test_small_writes_that_come_at_once_are_one_batch() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        writes = [together(runtime, b"%d" % number) for number in range(20)]
        assert not any(each.is_done for each in writes)
        await asyncio.sleep(0)
        assert [each.result() for each in writes] == [b"%d" % number for number in range(20)]
        assert len(log.batches) == 1
        assert len(values(runtime)) == log.end_offset == 20

    play(story)


def test_small_writes_come_before_whatever_else_is_asked_later() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        first = together(runtime, b"a", b"1")
        runtime.write_now(0, put(b"a", b"2"))
        assert first.result() == b"a"
        second = together(runtime, b"a", b"3")
        assert await runtime.read(0, lambda shard: shard.values[b"a"]) == b"3"
        assert second.is_done
        together(runtime, b"a", b"4")
        assert await runtime.read_all(lambda shard: shard.values[b"a"]) == [b"4"]
        shard = runtime.shard(0)
        assert shard is not None
        shard.timers.set("late", 0, lambda: Result(None, [Entry(b"a", b"6")]))
        await asyncio.sleep(0)
        together(runtime, b"a", b"5")
        await asyncio.sleep(0.02)
        written = [entry.value for batch in log.batches for _, entry in batch.entries]
        assert set(written[4:]) == {b"5", b"6"}

    play(story)


def test_a_small_write_that_is_refused_does_not_refuse_others() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        append = log.append

        def choosy(entries: Sequence[Entry], producer: Producer | None) -> int:
            if any(entry.key == b"bad" for entry in entries):
                raise NotCoordinator
            return append(entries, producer)

        def forbidden(shard: Notebook) -> Result[bytes]:
            raise CoordinatorNotAvailable

        def broken(shard: Notebook) -> Result[bytes]:
            raise ZeroDivisionError

        log.append = choosy  # type: ignore[method-assign]
        good, bad, best = (together(runtime, key) for key in (b"good", b"bad", b"best"))
        never = runtime.write_with_others(0, forbidden, refused)
        wrong = runtime.write_with_others(0, broken, refused)
        await asyncio.sleep(0)
        assert [each.result() for each in (good, bad, best, never)] == [
            b"good",
            b"refused: 16",
            b"best",
            b"refused: 15",
        ]
        with pytest.raises(ZeroDivisionError):
            wrong.result()
        assert sorted(values(runtime)) == [b"best", b"good"]

    play(story)


def test_small_writes_are_answered_when_they_are_committed() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.commits_at_once = False
        writes = [together(runtime, key) for key in (b"a", b"b")]
        await asyncio.sleep(0.01)
        assert not any(each.is_done for each in writes)
        log.commit()
        await asyncio.sleep(0.01)
        assert [each.result() for each in writes] == [b"a", b"b"]
        lost = together(runtime, b"c")
        await asyncio.sleep(0.01)
        log.fail(KafkaStorageError())
        await asyncio.sleep(0.01)
        assert lost.result() == b"refused: 16"

    play(story)


def test_small_writes_of_a_coordinator_that_moves_are_refused() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.commits_at_once = False
        written = together(runtime, b"a")
        await asyncio.sleep(0)
        log.refuses = NotCoordinator()
        waiting = together(runtime, b"b")
        runtime.resign(0)
        assert waiting.result() == b"refused: 16"
        log.commit()
        await asyncio.sleep(0.01)
        assert written.result() == b"refused: 16"
        with pytest.raises(NotCoordinator):
            together(runtime, b"c")

    play(story)


def test_many_small_writes_are_several_batches() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        writes = [together(runtime, b"%d" % number, bytes(PIECE_BYTES // 4)) for number in range(8)]
        await asyncio.sleep(0)
        assert all(each.is_done for each in writes)
        assert [len(batch.entries) for batch in log.batches] == [3, 3, 2]

    play(story)


def test_idle_work_of_many_shards_has_turns_of_its_own() -> None:
    """All shards of a broker look at their offsets at the same moment: together that takes long."""

    async def main() -> None:
        runtime: Runtime[Notebook] = Runtime("topic", lambda _, timers: Notebook(timers))
        logs = [ScriptedLog() for _ in range(5)]
        for index, log in enumerate(logs):
            runtime.lead(index, log)
        while len(runtime.active) < 5:
            await asyncio.sleep(0.001)
        done: list[tuple[int, int]] = []
        turn = 0

        def work(index: int, left: int) -> Result[None]:
            done.append((turn, index))
            shard = runtime.shard(index)
            assert shard is not None
            if left:
                shard.timers.set_idle("x", partial(work, index, left - 1))
            return Result(None, [Entry(b"%d" % left, b"")])

        for index, shard in enumerate(runtime):
            shard.timers.set_idle("x", partial(work, index, 1))
            shard.timers.set_idle("y", partial(work, index, 0))
            shard.timers.cancel("y")
        runtime.resign(4)
        for turn in range(12):  # noqa: B007
            await asyncio.sleep(0)
        assert [index for _, index in done] == [0, 1, 2, 3] * 2
        assert len({at for at, _ in done}) == 8
        assert [log.end_offset for log in logs] == [2, 2, 2, 2, 0]
        runtime.stop()

    asyncio.run(main())


def test_a_shard_that_moves_while_all_are_looked_at_is_left_out() -> None:
    async def main() -> None:
        runtime: Runtime[Notebook] = Runtime("topic", lambda _, timers: Notebook(timers))
        for index in range(3):
            runtime.lead(index, ScriptedLog())
        while len(runtime.active) < 3:
            await asyncio.sleep(0.001)
        for index in range(3):
            runtime.write_now(index, put(b"%d" % index))
        turns = 0

        def look(shard: Notebook) -> list[bytes]:
            nonlocal turns
            turns += 1
            if turns == 2:
                asyncio.get_running_loop().call_soon(runtime.resign, 2)
                asyncio.get_running_loop().call_soon(runtime.resign, 0)
            return list(shard.values)

        assert await runtime.read_all(look) == [[b"1"]]
        assert turns == 2
        runtime.stop()

    asyncio.run(main())


def test_a_shard_that_moves_while_it_is_waited_for_is_left_out() -> None:
    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        runtime.lead(1, ScriptedLog())
        while not runtime.is_active(1):
            await asyncio.sleep(0.001)
        log.commits_at_once = False
        writing = asyncio.ensure_future(runtime.write(0, put(b"a")))
        listing = asyncio.ensure_future(runtime.read_all(lambda shard: len(shard.values)))
        await asyncio.sleep(0.01)
        assert not listing.done()
        log.fail(NotLeaderOrFollower())
        runtime.resign(0)
        with pytest.raises(NotCoordinator):
            await writing
        assert await listing == [0]

    play(story)


@pytest.mark.parametrize("is_led", [False, True])
def test_who_looks_at_all_asks_again_while_a_shard_may_have_moved_or_may_lose_what_it_holds(
    is_led: bool,
) -> None:
    """Java's admin clients try again upon this alone, where they list transactions."""

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.commits_at_once = False
        writing = asyncio.ensure_future(runtime.write(0, put(b"a")))
        await asyncio.sleep(0)
        log.is_led = is_led
        with pytest.raises(CoordinatorLoadInProgress):
            await runtime.read_all(lambda shard: len(shard.values))
        log.is_led = True
        log.commit()
        await asyncio.gather(writing, return_exceptions=True)
        assert await runtime.read_all(lambda shard: len(shard.values)) == [1]

    play(story, commit_timeout_ms=20)


def test_shards_are_listed_while_one_goes() -> None:
    """Metrics are read in a thread of their own."""
    runtime: Runtime[Notebook] = Runtime("topic", lambda _, timers: Notebook(timers))

    class Going:
        shard = "shard"

        @property
        def is_active(self) -> bool:
            runtime._hosts.pop(1, None)
            return True

    runtime._hosts = {0: Going(), 1: Going()}  # type: ignore[dict-item]
    assert len(list(runtime)) == 2


def _refused(_: Notebook) -> Any:
    raise ProducerFenced


def _refusals(runtime: Runtime[Notebook]) -> list[asyncio.Future[Any]]:
    """Whoever asks is refused: in an operation, in one with others, and where it only looks."""

    async def ask_now() -> None:
        answer = runtime.write_now(0, _refused)
        assert isinstance(answer, Awaitable)
        await answer

    async def ask_with_others() -> None:
        errors: list[KafkaError] = []
        promise = runtime.write_with_others(0, _refused, errors.append)
        while not promise.is_done:
            await asyncio.sleep(0)
        raise errors[-1]

    return [asyncio.ensure_future(each) for each in (ask_now(), ask_with_others(), runtime.read(0, _refused))]


def test_a_refusal_waits_until_what_it_rests_on_is_committed() -> None:
    """It may be lost with this coordinator, and some clients give up for good."""

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.commits_at_once = False
        written = runtime.write_now(0, put(b"a"))
        assert isinstance(written, Awaitable)
        asked = _refusals(runtime)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(each.done() for each in asked)
        log.commit()
        await written
        for each in asked:
            with pytest.raises(ProducerFenced):
                await each

    play(story)


def test_a_coordinator_that_may_have_been_replaced_refuses_nobody_for_what_it_knew() -> None:
    """As one that was stopped for a while: its members are with another one, and in later epochs."""

    async def story(runtime: Runtime[Notebook], log: ScriptedLog) -> None:
        log.is_led = False
        for each in _refusals(runtime):
            with pytest.raises(NotCoordinator):
                await each

    play(story)
