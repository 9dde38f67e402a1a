"""Log dirs without which their broker has worked: they are taken for what they are when they come back."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.broker.editions import Editions
from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.registry.contract import Node, Unavailable
from millstream.registry.memory import MemoryRegistry
from millstream.storage.log_dir import LogDir
from millstream.storage.meta_properties import encode_uuid
from millstream.storage.store import Store
from tests.cluster.brokers import Brokers, run, until


async def registered(brokers: Brokers, number: int) -> tree.BrokerIdNode:
    node = await brokers.registries[number].get(f"{tree.BROKERS}/{number}")
    return msgspec.json.decode(node.data, type=tree.BrokerIdNode)


async def editions(brokers: Brokers, number: int) -> Node:
    return await brokers.registries[number].get(f"{tree.EDITIONS}/{number}")


async def known_editions(brokers: Brokers, number: int) -> tree.EditionsNode:
    return msgspec.json.decode((await editions(brokers, number)).data, type=tree.EditionsNode)


async def lose_session(brokers: Brokers) -> None:
    """Of the first broker, until it has another."""
    before = brokers[1].broker_epoch
    brokers.registries[1].lose()
    await until(lambda: brokers[1].broker_epoch > before)


async def until_in_sync(brokers: Brokers) -> None:
    await until(lambda: brokers.isr_of("t") == [1, 2, 3], 30)


async def check_all_there(brokers: Brokers, count: int) -> None:
    await until_in_sync(brokers)
    for number in brokers.ids:
        await brokers.until_committed(number, "t", count)
        assert brokers.replica(number, "t").log.end_offset == count


async def check_first_is_not_trusted(brokers: Brokers, count: int) -> None:
    """It starts before the others, who have what it lacks."""
    await brokers.start(1)
    assert not (await registered(brokers, 1)).was_clean
    await brokers.start(2, 3)
    await check_all_there(brokers, count)


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_old_machine_of_a_number_that_another_had_since_does_not_lead(
    tmp_path: Path, is_killed: bool
) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", *[b"early"] * 10)
        await until_in_sync(brokers)
        await brokers.stop(1)
        if is_killed:
            (tmp_path / "1" / ".kafka_cleanshutdown").unlink()
        await brokers.start(1, log_dirs=str(tmp_path / "another machine's"))
        await until_in_sync(brokers)
        await brokers.send("t", *[b"late"] * 100)
        await brokers.stop(2, 3, 1)  # the last of them is the one in sync
        await brokers.start(1)
        assert not (await registered(brokers, 1)).was_clean
        assert brokers.leader_of("t") == -1
        await brokers.start(2, 3)
        await check_all_there(brokers, 110)
        for _ in range(3):
            await brokers.stop(1)
            await brokers.start(1)
            assert (await registered(brokers, 1)).was_clean
        await check_all_there(brokers, 110)

    run(test, tmp_path)


def test_a_broker_that_was_cut_off_while_another_machine_had_its_number_does_not_lead(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", *[b"early"] * 10)
        await until_in_sync(brokers)
        old, registry = brokers.running.pop(1), brokers.registries[1]
        try:
            mended = cut_off(registry)
            await brokers.start(1, log_dirs=str(tmp_path / "another machine's"))
            await until_in_sync(brokers)
            await brokers.send("t", *[b"late"] * 100)
            await brokers.stop(2, 3, 1)
        finally:
            brokers.running[1], brokers.registries[1] = old, registry
        mended.set()
        await until(lambda: old.broker_epoch >= 0)
        assert not (await registered(brokers, 1)).was_clean
        await brokers.start(2, 3)
        await check_all_there(brokers, 110)
        node = await known_editions(brokers, 1)
        assert len(node.dirs) == 2
        assert [node.dirs[each] for each in node.last] == [old.store.dirs[0].edition]
        await lose_session(brokers)  # once more, and nobody else came
        assert (await registered(brokers, 1)).was_clean
        assert (tmp_path / "1" / ".millstream_boot").exists()

    run(test, tmp_path)


def directory_id(broker: Broker) -> str:
    meta = broker.store.dirs[0].meta
    assert meta is not None
    return encode_uuid(meta.directory_id)


def cut_off(registry: MemoryRegistry) -> asyncio.Event:
    """Take a session away, and let the next begin only after what is returned is set."""
    mended, start = asyncio.Event(), registry.start

    async def start_when_mended() -> None:
        await mended.wait()
        await start()

    registry.start = start_when_mended  # type: ignore[method-assign]
    registry.lose()
    return mended


def test_a_stop_before_the_cluster_has_heard_of_that_does_not_hide_it(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path, 1)
        await brokers.start()
        old, registry = brokers.running.pop(1), brokers.registries[1]
        mended = cut_off(registry)
        await brokers.start(1, log_dirs=str(tmp_path / "another machine's"))
        await brokers.stop()
        await old.cluster_state.stop()  # it hears nothing more
        mended.set()
        await until(lambda: old.broker_epoch >= 0)
        await old.stop()
        await brokers.start()
        assert not brokers[1].store.dirs[0].is_outdated
        assert not (await registered(brokers, 1)).was_clean
        await brokers.stop()
        await brokers.start()
        assert (await registered(brokers, 1)).was_clean
        await brokers.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_dir_that_is_put_back_with_what_nobody_copied_is_not_led_from(tmp_path: Path) -> None:
    """Its log of the partition is longer, and of an earlier leader than the one that was copied meanwhile."""

    async def test(brokers: Brokers) -> None:
        one, both = str(tmp_path / "1"), f"{tmp_path / '1'},{tmp_path / 'put back'}"
        await brokers.stop(1)
        await brokers.start(1, log_dirs=both)
        await brokers.place("other", {0: [1]}, {})
        await brokers.place("t", {0: [1, 2, 3]}, {"min.insync.replicas": "2"})
        assert brokers.replica(1, "t").log.dir_path == str(tmp_path / "put back")
        await brokers.send("t", *[b"early"] * 10)
        await until_in_sync(brokers)
        for number in (2, 3):
            fetchers = brokers[number].replicas._fetchers
            assert fetchers is not None
            await fetchers.stop()
        for _ in range(20):
            await brokers.produce(1, "t", *[b"to one"] * 10, acks=1)
        await brokers.stop(2, 3, 1)
        await brokers.start(2, 3)
        await until(lambda: brokers.isr_of("t") == [2, 3])
        await brokers.start(1, log_dirs=one)
        await until_in_sync(brokers)
        assert brokers.replica(1, "t").log.dir_path == one
        await brokers.send("t", *[b"late"] * 100)
        await brokers.stop(2, 3, 1)
        await brokers.start(1, log_dirs=both)
        assert not (await registered(brokers, 1)).was_clean
        assert brokers.replica(1, "t").log.dir_path == one
        assert brokers.replica(1, "t").log.end_offset == 110
        await brokers.start(2, 3)
        await check_all_there(brokers, 110)

    run(test, tmp_path)


def test_a_session_that_is_lost_and_regained_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        before = await editions(brokers, 1)
        with monkeypatch.context() as patch:
            patch.setattr(LogDir, "write_edition", None)
            patch.setattr(LogDir, "mark_boot", None)
            for _ in range(5):
                await lose_session(brokers)
                assert (await registered(brokers, 1)).was_clean
        assert (await editions(brokers, 1)) == before
        await until_in_sync(brokers)

    run(test, tmp_path)


def test_editions_that_the_registry_lost_are_written_again_with_the_next_session(tmp_path: Path) -> None:
    async def test(brokers: Brokers) -> None:
        path = f"{tree.EDITIONS}/1"
        for content in (b"what nobody can read", b""):
            if content:
                await brokers.registries[1].set(path, content)
            else:
                await brokers.registries[1].delete(path)
            await lose_session(brokers)
            assert (await registered(brokers, 1)).was_clean
            node = await known_editions(brokers, 1)
            assert node.dirs == {node.last[0]: brokers[1].store.dirs[0].edition}

    run(test, tmp_path, count=1)


def test_a_broker_with_a_registry_of_its_own_is_started_again_and_again(tmp_path: Path) -> None:
    async def start(*dirs: str) -> list[bool]:
        """Which of its dirs are taken for outdated ones."""
        settings = {
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": ",".join(str(tmp_path / each) for each in dirs),
        }
        async with Broker(BrokerConfig(settings)) as broker:
            assert broker.membership is not None
            assert broker.membership.was_clean
            return [folder.is_outdated for folder in broker.store.dirs]

    async def main() -> None:
        for dirs in ("a", "a", "ab", "ab", "ba", "acb", "cab", "bca"):
            assert not any(await start(*dirs)), dirs
        assert await start("a", "b") == [False, False]
        assert await start("a", "b", "c") == [False, False, True]
        assert await start("a", "b", "c") == [False, False, False]

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("failures", [1, 2])
def test_a_broker_takes_part_only_if_the_registry_knows_in_which_dirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Else its old machine would be trusted."""

    async def test(brokers: Brokers) -> None:
        left = [Unavailable("the connection broke")] * failures
        set_node = MemoryRegistry.set

        async def fail(registry: MemoryRegistry, path: str, *rest: Any) -> int:
            if path.startswith(tree.EDITIONS) and left:
                raise left.pop()
            return await set_node(registry, path, *rest)

        await brokers.stop(1)
        monkeypatch.setattr(MemoryRegistry, "set", fail)
        if failures > 1:
            with pytest.raises(Unavailable):
                await brokers.start(1, log_dirs=str(tmp_path / "another machine's"))
        await brokers.start(1, log_dirs=str(tmp_path / "another machine's"))
        assert (await known_editions(brokers, 1)).last == [directory_id(brokers[1])]

    run(test, tmp_path)


def test_what_another_process_did_until_the_registration_was_free_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(brokers: Brokers) -> None:
        answers = [True]  # as it was before the other one ended

        async def compare(_: Editions, __: Store) -> bool:
            return answers.pop() if answers else False

        await brokers.stop(1)
        monkeypatch.setattr(Editions, "compare", compare)
        await brokers.start(1)
        assert not (await registered(brokers, 1)).was_clean

    run(test, tmp_path)


def test_a_copy_of_the_dirs_that_waits_until_the_registration_is_free_begins_a_later_edition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what it copied ended just when it was about to register: else that would be trusted later."""

    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", *[b"early"] * 10)
        await until_in_sync(brokers)
        await brokers.stop(1)
        shutil.copytree(tmp_path / "1", tmp_path / "copy")
        await brokers.start(1)
        await until_in_sync(brokers)
        original = [brokers.running.pop(1)]
        create_node = MemoryRegistry.create

        async def create(registry: MemoryRegistry, path: str, *rest: Any, **options: Any) -> None:
            if path == f"{tree.BROKERS}/1" and original:
                await original.pop().stop()
            await create_node(registry, path, *rest, **options)

        monkeypatch.setattr(MemoryRegistry, "create", create)
        await brokers.start(1, log_dirs=str(tmp_path / "copy"))
        await until_in_sync(brokers)
        await brokers.send("t", *[b"late"] * 100)
        await brokers.stop(2, 3)
        with monkeypatch.context() as killed:
            killed.setattr(Editions, "end", lambda *_: asyncio.sleep(0))
            await brokers.stop(1)
        await check_first_is_not_trusted(brokers, 110)

    run(test, tmp_path)


def test_a_stop_that_outlasts_its_session_does_not_speak_for_another_machine_of_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(brokers: Brokers) -> None:
        await brokers.create("t", min_insync_replicas="2")
        await brokers.send("t", *[b"early"] * 10)
        await until_in_sync(brokers)
        old, registry = brokers.running.pop(1), brokers.registries[1]
        hangs, works = threading.Event(), threading.Event()
        write_edition = LogDir.write_edition

        def write(folder: LogDir, number: int) -> None:
            if folder is old.store.dirs[0]:
                hangs.set()
                works.wait(30)
            write_edition(folder, number)

        monkeypatch.setattr(LogDir, "write_edition", write)
        stopping = asyncio.ensure_future(old.stop())
        assert await asyncio.to_thread(hangs.wait, 30)
        mended = cut_off(registry)
        await brokers.start(1, log_dirs=str(tmp_path / "another machine's"))
        await until_in_sync(brokers)
        mended.set()
        await asyncio.sleep(0.3)  # time enough to begin another session
        works.set()
        await stopping
        assert (await known_editions(brokers, 1)).last == [directory_id(brokers[1])]
        await brokers.send("t", *[b"late"] * 100)
        await brokers.stop(2, 3, 1)
        await check_first_is_not_trusted(brokers, 110)

    run(test, tmp_path)
