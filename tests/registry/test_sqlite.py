"""The SQLite registry between real processes: deaths, stops, stalls, restarts."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from operator import gt
from pathlib import Path
from typing import Any

import psutil
import pytest

from millstream.registry import outage
from millstream.registry.contract import Create, RegistryError, SessionLost, Unavailable
from millstream.registry.database import KEPT_WRITES, Database
from millstream.registry.sqlite import SqliteRegistry
from tests.registry.places import eventually, eventually_gone, settle

ROOT = Path(__file__).parents[2]
Member = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data" / "registry.db")


@pytest.fixture
def member(path: str) -> Iterator[Member]:
    """Starts a process of a role and waits until it is ready; all are killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(role: str, timeout_ms: int = 6000, wait: bool = True) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.registry.member", path, str(timeout_ms), role],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        if wait:
            assert line(process) == ["ready"]
        return process

    yield start
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def rest(process: subprocess.Popen[str]) -> list[list[str]]:
    assert process.stdout is not None
    return [text.split() for text in process.stdout]


async def until_stopped(process: subprocess.Popen[str]) -> None:
    """Wait until a process has stopped itself."""
    seen = psutil.Process(process.pid)
    await eventually(lambda: bool(seen.status() == psutil.STATUS_STOPPED))


async def started(path: str, timeout_ms: int = 6000) -> SqliteRegistry:
    registry = SqliteRegistry(path, timeout_ms)
    await registry.start()
    return registry


def test_nodes_survive_a_restart_and_sessions_do_not(path: str) -> None:
    async def story() -> None:
        first = await started(path)
        await first.create("/topics/t", b"kept", make_parents=True)
        await first.create("/ids", ephemeral=True)
        await first.close()
        second = await started(path)
        assert (await second.get("/topics/t")).data == b"kept"
        assert await second.exists("/ids") is None
        assert second.session_id > first.session_id
        await second.close()

    asyncio.run(story())


def test_a_killed_process_is_missed_at_once(path: str, member: Member) -> None:
    """The lock on its session file goes with it; nobody waits for the session time-out."""

    async def story() -> list[float]:
        registry = await started(path)
        took = []
        for _ in range(3):
            process = member("owner", timeout_ms=60_000)
            node = f"/members/{process.pid}"
            assert (await registry.get(node)).is_ephemeral
            fired = asyncio.Event()
            for watched in (node, "/members"):
                registry.watch(watched, lambda _, fired=fired: fired.set())  # type: ignore[misc]
            await settle()
            fired.clear()
            process.kill()
            killed = time.monotonic()
            await asyncio.wait_for(fired.wait(), 30)
            took.append(time.monotonic() - killed)
            assert await registry.exists(node) is None
            assert await registry.children("/members") == []
        await registry.close()
        return took

    took = asyncio.run(story())
    assert min(took) < 0.1, took


def test_who_starts_after_a_kill_does_not_meet_the_dead(path: str, member: Member) -> None:
    """A broker that was killed registers again under its number, at once."""

    async def story() -> None:
        for _ in range(5):
            process = member("owner", timeout_ms=60_000)
            node = f"/members/{process.pid}"
            process.kill()
            process.wait()
            registry = await started(path)
            await registry.create(node, ephemeral=True)
            await registry.close()

    asyncio.run(story())


def test_a_stopped_process_loses_its_session_after_the_time_out_and_knows(path: str, member: Member) -> None:
    """Rule: the owner's deadline comes before the others' verdict."""

    async def story() -> None:
        registry = await started(path, 1200)
        process = member("owner", timeout_ms=1200)
        node = f"/members/{process.pid}"
        await asyncio.sleep(0.4)
        process.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        took = await eventually_gone(registry, node)
        gone = time.monotonic()
        assert took > 0.8
        await registry.create("/successor")
        process.send_signal(signal.SIGCONT)
        lines = await asyncio.get_running_loop().run_in_executor(None, rest, process)
        deadlines = [float(words[1]) for words in lines if words[0] == "deadline" and words[1] != "-inf"]
        assert stopped < deadlines[-1] < gone
        assert lines[-2][0] == "lost"
        assert float(lines[-2][1]) > gone
        assert lines[-2][2] == "-inf"
        assert lines[-1] == ["refused"]
        assert await registry.exists("/successor") == 0
        await registry.close()

    asyncio.run(story())


def test_a_live_process_keeps_its_session_far_beyond_the_time_out(path: str, member: Member) -> None:
    async def story() -> None:
        registry = await started(path, 1000)
        lost: list[str] = []
        registry.on_session_lost = lambda: lost.append("here")
        process = member("owner", timeout_ms=1000)
        for _ in range(60):
            await asyncio.sleep(0.05)
            assert await registry.exists(f"/members/{process.pid}") == 0
        assert lost == []
        assert registry.session_deadline() > time.monotonic()
        await registry.close()

    asyncio.run(story())


def test_a_stopped_writer_stalls_writes_and_only_writes(path: str, member: Member) -> None:
    async def story() -> None:
        registry = await started(path, 500)
        await registry.create("/a", b"1")
        process = member("blocker")
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="write lock"):
            await registry.set("/a", b"2")
        assert time.monotonic() - begun > 0.4
        assert (await registry.get("/a")).data == b"1"
        assert registry.session_deadline() > time.monotonic()
        waiting = asyncio.create_task(registry.set("/a", b"3"))
        await asyncio.sleep(0.1)
        process.kill()
        assert await waiting == 1
        assert (await registry.get("/a")).data == b"3"
        await registry.close()

    asyncio.run(story())


def test_a_process_stopped_in_the_middle_of_a_write_has_lost_its_session_on_waking(
    path: str, member: Member
) -> None:
    """It holds the write lock, so nobody can take over; when it wakes, it knows before it acts."""

    async def story() -> None:
        registry = await started(path, 1200)
        process = member("stalled", timeout_ms=1200)
        await until_stopped(process)
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="write lock"):
            await registry.create("/successor")
        assert await registry.exists(f"/members/{process.pid}") == 0
        await asyncio.sleep(max(0.0, begun + 2 - time.monotonic()))
        assert registry.session_deadline() > time.monotonic()
        process.send_signal(signal.SIGCONT)
        words = await asyncio.get_running_loop().run_in_executor(None, line, process)
        assert words[0] in ("written", "SessionLost", "Unavailable")
        assert words[1] == "True", "its deadline had passed"
        assert await asyncio.get_running_loop().run_in_executor(None, line, process) == ["lost"]
        await eventually_gone(registry, f"/members/{process.pid}")
        await registry.create("/successor")
        if words[0] == "written":
            assert (await registry.get("/stalled")).data == b"1"
        await registry.close()

    asyncio.run(story())


def test_a_writer_that_is_killed_in_the_middle_of_a_write_leaves_no_trace(path: str, member: Member) -> None:
    async def story() -> None:
        registry = await started(path, 60_000)
        process = member("stalled", timeout_ms=60_000)
        await until_stopped(process)
        waiting = asyncio.create_task(registry.create("/successor"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        process.kill()
        killed = time.monotonic()
        await waiting
        await eventually_gone(registry, f"/members/{process.pid}")
        assert time.monotonic() - killed < 30, "that is no session's time-out"
        assert (await registry.get("/stalled")).data == b"0"
        await registry.close()

    asyncio.run(story())


def test_processes_that_write_at_once_all_make_progress(path: str, member: Member) -> None:
    """Sessions live on heartbeats outside the file: contention for the write lock costs none."""

    async def story() -> None:
        registry = await started(path, 2000)
        lost: list[str] = []
        registry.on_session_lost = lambda: lost.append("here")
        writers = [member("counter", timeout_ms=2000) for _ in range(3)]

        async def count(least: list[int]) -> list[int]:
            """What they have come to, once each has come further than that."""
            async with asyncio.timeout(60):
                while True:
                    found = [int((await registry.get(f"/counters/{one.pid}")).data) for one in writers]
                    if all(map(gt, found, least)):
                        return found
                    await asyncio.sleep(0.01)

        await asyncio.sleep(3)
        counts = await count([20] * 3)
        writers.pop(0).kill()
        await count(counts[1:])
        await asyncio.sleep(0.5)
        assert lost == []
        assert sorted(await registry.children("/members")) == sorted(str(p.pid) for p in writers)
        await registry.close()

    asyncio.run(story())


def test_close_does_not_wait_for_a_stopped_writer(path: str, member: Member) -> None:
    async def story() -> None:
        registry = await started(path, 10_000)
        await registry.create("/a", ephemeral=True)
        member("blocker")
        waiting = asyncio.create_task(registry.create("/b"))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await registry.close()
        assert time.monotonic() - begun < 3
        with pytest.raises((SessionLost, Unavailable)):
            await waiting

    asyncio.run(story())


def test_acknowledged_writes_survive_kill_minus_9(path: str, member: Member) -> None:
    async def story() -> None:
        for round_number in range(5):
            process = member("writer") if round_number == 0 else None
            if process is None:
                registry = await started(path)
                for name in await registry.children("/log"):
                    await registry.delete(f"/log/{name}")
                await registry.delete("/log")
                await registry.close()
                process = member("writer")
            for _ in range(20 + 7 * round_number):
                line(process)
            process.kill()
            acknowledged = 20 + 7 * round_number + sum(1 for words in rest(process) if words)
            registry = await started(path)
            names = {int(name) for name in await registry.children("/log")}
            assert names >= set(range(1, acknowledged + 1))
            assert len(names) <= acknowledged + 1
            await registry.close()

    asyncio.run(story())


def test_many_processes_may_begin_on_a_new_file_at_once(path: str, member: Member) -> None:
    processes = [member("starter", wait=False) for _ in range(4)]
    for process in processes:
        assert line(process) == ["ready"]
    database = Database(path)
    assert len(database.sessions()) == 4
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0
    assert database.sessions() == []
    database.close()
    assert os.listdir(path + "-sessions") == []


def test_the_name_of_a_new_file_is_durable_before_it_is_used(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = os.fsync
    flushed: list[tuple[bool, str]] = []

    def note(descriptor: int) -> None:
        flushed.append((os.path.exists(path), os.readlink(f"/proc/self/fd/{descriptor}")))
        flush(descriptor)

    async def story() -> None:
        registry = await started(path)
        await registry.close()

    monkeypatch.setattr(os, "fsync", note)
    asyncio.run(story())
    assert (True, os.path.dirname(path)) in flushed


def test_a_file_system_without_links_has_its_file_made_in_place(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)

    async def story() -> None:
        registry = await started(path)
        await registry.create("/a", b"1")
        await registry.close()
        registry = await started(path)
        assert (await registry.get("/a")).data == b"1"
        await registry.close()

    asyncio.run(story())
    assert sorted(os.listdir(os.path.dirname(path))) == ["registry.db", "registry.db-sessions"]


def test_opening_and_closing_leaves_nothing_behind(path: str) -> None:
    async def story() -> None:
        for _ in range(20):
            registry = await started(path)
            await registry.create("/a", ephemeral=True)
            await registry.close()

    asyncio.run(story())
    gc.collect()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    asyncio.run(story())
    gc.collect()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert os.listdir(path + "-sessions") == []


def test_a_session_begins_in_20_ms_also_on_a_new_file(tmp_path: Path) -> None:
    async def story() -> list[float]:
        took: list[float] = []
        deadline = time.monotonic() + 30
        while not (took and min(took) < 0.02) and time.monotonic() < deadline:  # others may need the time
            begun = time.perf_counter()
            registry = await started(str(tmp_path / str(len(took)) / "registry.db"))
            took.append(time.perf_counter() - begun)
            await registry.close()
        return took

    took = asyncio.run(story())
    assert min(took) < 0.02, took


def test_who_was_away_for_long_is_told_of_everything(path: str) -> None:
    """What changed is kept for some writes only; who slept through more re-reads all that it watches."""

    os.makedirs(os.path.dirname(path))
    writer, reader = Database(path), Database(path)
    try:
        writer.prepare()
        reader.prepare()
        session = writer.begin_session(1, lambda _: None)
        writer._db.execute("PRAGMA synchronous = OFF")
        assert reader.changed_paths() == []
        writer.multi([Create("/a")], session)
        assert sorted(reader.changed_paths() or ()) == ["/", "/a"]
        assert reader.changed_paths() == []
        for number in range(KEPT_WRITES):
            writer.multi([Create(f"/n{number}")], session)
        paths = reader.changed_paths()
        assert paths is not None
        assert len(paths) == KEPT_WRITES + 1
        for number in range(KEPT_WRITES + 1):
            writer.multi([Create(f"/m{number}")], session)
        assert reader.changed_paths() is None
        assert reader.changed_paths() == []
    finally:
        reader.close()
        writer.close()


def test_files_of_sessions_that_never_came_to_be_are_removed(path: str) -> None:
    async def story() -> None:
        registry = await started(path)
        stray = Path(path + "-sessions") / "999"
        stray.write_bytes(b"")
        other = await started(path)
        assert sorted(os.listdir(path + "-sessions")) == sorted(
            [str(registry.session_id), str(other.session_id)]
        )
        await settle()
        assert await registry.exists("/") == 0
        await other.close()
        await registry.close()

    asyncio.run(story())


def test_a_call_is_answered_after_which_the_file_cannot_be_read(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    multi, changed_paths = Database.multi, Database.changed_paths

    def fail(_: Database) -> None:
        monkeypatch.undo()
        raise sqlite3.OperationalError("disk I/O error")

    def multi_and_fail(self: Database, *arguments: Any) -> Any:
        result = multi(self, *arguments)
        monkeypatch.setattr(Database, "changed_paths", fail)
        return result

    async def main() -> None:
        registry, lost = SqliteRegistry(path), asyncio.Event()
        registry.on_session_lost = lost.set
        await registry.start()
        monkeypatch.setattr(Database, "multi", multi_and_fail)
        async with asyncio.timeout(10):
            await registry.create("/made")
            await lost.wait()
        await registry.close()
        await registry.start()
        assert await registry.exists("/made") is not None
        assert Database.changed_paths is changed_paths
        await registry.close()

    asyncio.run(main())


def test_a_removed_session_file_ends_the_session(path: str) -> None:
    async def story() -> None:
        a, b = await started(path), await started(path)
        told: list[str] = []
        a.on_session_lost = lambda: told.append("a")
        await a.create("/a", ephemeral=True)
        os.unlink(f"{path}-sessions/{a.session_id}")
        c = await started(path)
        await eventually(lambda: told == ["a"])
        assert await b.exists("/a") is None
        for registry in (a, b, c):
            await registry.close()

    asyncio.run(story())


def test_a_file_that_is_no_registry_is_refused(path: str) -> None:
    os.makedirs(os.path.dirname(path))
    Path(path).write_bytes(b"certainly not a database" * 100)

    async def story() -> None:
        with pytest.raises(Unavailable, match=r"not a database\. Put a copy of it back"):
            await started(path)

    before = threading.active_count()
    asyncio.run(story())
    assert threading.active_count() <= before


def test_a_newer_format_is_refused(path: str) -> None:
    async def story() -> None:
        await (await started(path)).close()
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version = 99")
        db.close()
        with pytest.raises(RegistryError, match="format 99"):
            await started(path)

    asyncio.run(story())


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def story() -> None:
        with pytest.raises(Unavailable, match="cannot be opened"):
            await started(str(tmp_path / "file" / "registry.db"))

    asyncio.run(story())


def test_a_cancelled_start_leaves_no_thread(path: str) -> None:
    async def story() -> None:
        registry = SqliteRegistry(path)
        task = asyncio.create_task(registry.start())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await registry.close()
        await registry.start()
        assert await registry.exists("/") == 0
        await registry.close()

    before = threading.active_count()
    asyncio.run(story())
    assert threading.active_count() <= before


def test_a_session_ends_though_its_file_cannot_be_removed(path: str) -> None:
    """As on a disk that failed."""

    async def story() -> None:
        registry = await started(path)
        file = Path(f"{path}-sessions", str(registry.session_id))
        file.unlink()
        file.mkdir()
        async with asyncio.timeout(10):
            await registry.close()

    asyncio.run(story())


@pytest.mark.parametrize("is_all", [True, False])
def test_who_is_not_found_any_more_has_lost_the_session_and_makes_no_new_registry(
    path: str, is_all: bool
) -> None:
    """The folder was taken away, or something removed the session's file."""

    async def story() -> None:
        registry = await started(path, timeout_ms=600)
        await registry.create("/kept")
        lost = asyncio.Event()
        registry.on_session_lost = lost.set
        folder, away = Path(path).parent, Path(path).parent.with_name("away")
        if is_all:
            folder.rename(away)
        else:
            Path(f"{path}-sessions", str(registry.session_id)).unlink()
        async with asyncio.timeout(10):
            await lost.wait()
        assert registry.session_deadline() == float("-inf")
        if is_all:
            for _ in range(2):
                with pytest.raises(Unavailable, match=r"No such file.*mounted"):
                    await registry.start()
            assert not folder.exists()
            away.rename(folder)
        await registry.start()
        assert await registry.exists("/kept") == 0
        await registry.close()

    asyncio.run(story())


def test_the_log_says_that_the_file_is_out_of_reach_and_that_it_is_back(
    path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage, "REPEAT_S", 0.0)

    async def story() -> None:
        registry = SqliteRegistry(path, 600)
        await registry.start()
        Path(path).rename(f"{path}-away")
        Path(f"{path}-sessions").rename(f"{path}-sessions-away")
        await eventually(lambda: registry.session_deadline() < 0)
        with pytest.raises(Unavailable):
            await registry.start()
        assert "the registry has been out of reach for" in caplog.text
        assert f"are led: the registry {path} cannot be opened" in caplog.text
        Path(f"{path}-away").rename(path)
        Path(f"{path}-sessions-away").rename(f"{path}-sessions")
        await registry.start()
        await eventually(lambda: "the registry is back, after" in caplog.text)
        await registry.close()

    asyncio.run(story())
