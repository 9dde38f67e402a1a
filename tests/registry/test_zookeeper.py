"""The registry on real ZooKeeper servers: what its own tools show, limits, servers that stop and die."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, GetData, Sync
from kazoo.security import make_acl

from millstream.registry import outage
from millstream.registry.contract import (
    Create,
    NodeExists,
    RegistryError,
    SessionLost,
    Set,
    TooLarge,
    Unavailable,
)
from millstream.registry.zookeeper import MAX_REQUEST_BYTES, ZookeeperRegistry
from tests.registry.places import ZookeeperPlace, eventually, settle
from tests.registry.relay import Relay
from tests.zookeeper import ZookeeperEnsemble, ZookeeperServer, command_line


@pytest.fixture
def place(zookeeper: str) -> ZookeeperPlace:
    return ZookeeperPlace(zookeeper)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZookeeperServer]:
    """A server of the test's own, to be stopped and killed."""
    with ZookeeperServer(tmp_path / "zookeeper") as own:
        yield own
        own.signal(signal.SIGCONT)


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZookeeperEnsemble]:
    with ZookeeperEnsemble(tmp_path) as own:
        yield own


async def started(address: str, timeout_ms: int = 6000) -> ZookeeperRegistry:
    registry = ZookeeperRegistry(address, timeout_ms)
    await registry.start()
    return registry


def test_the_tree_is_readable_with_zookeepers_own_tool(zookeeper: str, place: ZookeeperPlace) -> None:
    async def story() -> tuple[str, str, str]:
        registry = await started(place.address)
        state = json.dumps({"leader": 1, "isr": [1, 2]}).encode()
        await registry.create("/brokers/topics/t/partitions/0/state", state, make_parents=True)
        await registry.create("/controller", b'{"brokerid":1}', ephemeral=True)
        root = place.address.removeprefix(f"zookeeper://{zookeeper}")
        loop = asyncio.get_running_loop()
        shown = [
            await loop.run_in_executor(None, command_line, zookeeper, *words)
            for words in (
                ("ls", "-R", root),
                ("get", f"{root}/brokers/topics/t/partitions/0/state"),
                ("stat", f"{root}/controller"),
            )
        ]
        await registry.close()
        return shown[0], shown[1], shown[2]

    listed, shown, stat = asyncio.run(story())
    assert "/brokers/topics/t/partitions/0/state" in listed
    assert '{"leader": 1, "isr": [1, 2]}' in shown
    assert "ephemeralOwner = 0x0\n" not in stat


def test_what_the_tool_writes_is_seen_and_fires(zookeeper: str, place: ZookeeperPlace) -> None:
    async def story() -> None:
        registry = await started(place.address)
        await registry.create("/n", b"0")
        calls: list[str] = []
        registry.watch("/n", calls.append)
        root = place.address.removeprefix(f"zookeeper://{zookeeper}")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, command_line, zookeeper, "set", f"{root}/n", "by hand")
        await eventually(lambda: "/n" in calls)
        assert (await registry.get("/n")).data == b"by hand"
        await registry.close()

    asyncio.run(story())


def test_without_a_root_zookeepers_own_nodes_are_hidden(zookeeper: str) -> None:
    async def story() -> None:
        registry = await started(f"zookeeper://{zookeeper}")
        assert "zookeeper" not in await registry.children("/")
        with pytest.raises(NodeExists):
            await registry.create("/")
        with pytest.raises(RegistryError):
            await registry.delete("/")
        await registry.close()

    asyncio.run(story())


def test_what_zookeeper_does_not_take_at_once_is_refused(place: ZookeeperPlace) -> None:
    async def story() -> None:
        registry = await started(place.address, 30_000)
        with pytest.raises(TooLarge, match="more than ZooKeeper takes"):
            await registry.create("/big", b"x" * (MAX_REQUEST_BYTES + 1))
        with pytest.raises(TooLarge, match="more than ZooKeeper takes"):
            await registry.multi([Create(f"/n{number}", b"x" * 1000) for number in range(1000)])
        assert await registry.children("/") == []
        await registry.create("/large", b"x" * (MAX_REQUEST_BYTES - 1000))
        assert len((await registry.get("/large")).data) == MAX_REQUEST_BYTES - 1000
        await registry.multi([Create(f"/n{number}", b"x" * 100) for number in range(4000)])
        assert len(await registry.children("/")) == 4001
        await registry.close()

    asyncio.run(story())


def test_many_nodes_are_read_at_once_and_more_in_parts(place: ZookeeperPlace) -> None:
    async def story() -> None:
        registry = await started(place.address, 30_000)
        names = [f"/{'long' * 20}{number}" for number in range(5000)]
        for start in range(0, len(names), 2500):
            await registry.multi([Create(name, name.encode()) for name in names[start : start + 2500]])
        asked = [*names, "/none", *names, *names]
        found = await registry.get_many(asked)
        assert [None if node is None else node.data.decode() for node in found] == [
            None if name == "/none" else name for name in asked
        ]
        await registry.close()

    asyncio.run(story())


def test_several_are_read_as_they_are_at_one_moment(place: ZookeeperPlace) -> None:
    async def story() -> None:
        reader, writer = await started(place.address), await started(place.address)
        paths = [f"/n{number}" for number in range(20)]
        await writer.multi([Create(path, b"0") for path in paths])

        async def write() -> None:
            for number in range(1, 200):
                await writer.multi([Set(path, b"%d" % number) for path in paths])

        writing = asyncio.create_task(write())
        seen = set()
        while not writing.done():
            values = {node.data for node in await reader.get_many(paths) if node is not None}
            assert len(values) == 1
            seen |= values
        await writing
        assert len(seen) > 5
        await reader.close()
        await writer.close()

    asyncio.run(story())


def test_many_calls_at_once_are_answered_in_order(place: ZookeeperPlace) -> None:
    async def story() -> None:
        registry = await started(place.address)
        await registry.create("/n", b"")
        versions = await asyncio.gather(*(registry.set("/n", b"%d" % number) for number in range(2000)))
        assert versions == list(range(1, 2001))
        assert (await registry.get("/n")).data == b"1999"
        await registry.close()

    asyncio.run(story())


def test_the_lease_follows_the_time_out_that_the_server_grants(server: ZookeeperServer) -> None:
    """Asked for an hour, the server grants 80 of its ticks: counting on more would not be safe."""

    async def story() -> None:
        begun = time.monotonic()
        registry = await started(f"zookeeper://{server.address}/t", 3_600_000)
        assert begun + 30 < registry.session_deadline() < time.monotonic() + 40
        assert registry.session_timeout_s == 40
        await registry.close()

    asyncio.run(story())


def test_a_stopped_server_lets_the_deadline_pass_and_a_waking_one_gives_it_back(
    server: ZookeeperServer,
) -> None:
    async def story() -> None:
        registry = await started(f"zookeeper://{server.address}/t", 3000)
        lost: list[str] = []
        registry.on_session_lost = lambda: lost.append("lost")
        await registry.create("/mine", ephemeral=True)
        await asyncio.sleep(1)
        assert registry.session_deadline() > time.monotonic() + 1
        server.signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(Unavailable):
            await registry.set("/mine", b"1")
        with pytest.raises(Unavailable):
            await registry.get("/mine")
        assert 2 < time.monotonic() - begun < 8
        assert registry.session_deadline() < time.monotonic()
        server.signal(signal.SIGCONT)
        await eventually(lambda: registry.session_deadline() > time.monotonic() or bool(lost), 10)
        if lost:
            await registry.start()
        assert (await registry.exists("/mine") is None) == bool(lost)
        await registry.close()

    asyncio.run(story())


def test_a_silent_way_to_the_server_costs_the_session_and_the_owner_knows_first(zookeeper: str) -> None:
    """Rule: the deadline passes before the others may see the ephemeral nodes go."""

    async def story() -> None:
        host, _, port = zookeeper.partition(":")
        async with Relay(host, int(port)) as relay:
            other = await started(f"zookeeper://{zookeeper}/silent", 6000)
            registry = await started(f"zookeeper://127.0.0.1:{relay.port}/silent", 2000)
            told: list[str] = []
            registry.on_session_lost = lambda: told.append("lost")
            await registry.create("/mine", ephemeral=True)
            await asyncio.sleep(1.5)
            assert registry.session_deadline() > time.monotonic()
            relay.block()
            certain: list[float] = []
            while await other.exists("/mine") is not None:
                certain.append(registry.session_deadline())
                await asyncio.sleep(0.01)
            assert max(certain) < time.monotonic()
            assert told == []
            relay.unblock()
            await eventually(lambda: told == ["lost"], 10)
            assert registry.session_deadline() == float("-inf")
            with pytest.raises(SessionLost):
                await registry.get("/")
            await registry.start()
            await registry.create("/mine", ephemeral=True)
            await registry.close()
            await other.close()

    asyncio.run(story())


def test_another_server_is_tried_when_one_is_silent(ensemble: ZookeeperEnsemble) -> None:
    """A connection that nobody answers, without an end to be seen; the session goes on through another."""

    async def story() -> None:
        async with AsyncExitStack() as stack:
            relays = [
                await stack.enter_async_context(Relay("127.0.0.1", server.port))
                for server in ensemble.servers
            ]
            servers = ",".join(f"127.0.0.1:{relay.port}" for relay in relays)
            registry = await started(f"zookeeper://{servers}/t", 6000)
            session = registry.session_id
            await registry.create("/mine", ephemeral=True)
            for relay in relays:
                relay.block()
                begun = time.monotonic()
                assert (await registry.get("/mine")).is_ephemeral
                assert time.monotonic() - begun < 5
                relay.unblock()
            async with asyncio.timeout(30):
                while (await registry.get("/mine")).data != b"1":
                    with suppress(Unavailable):  # on a busy machine a server may seem silent once more
                        await registry.set("/mine", b"1")
            assert registry.session_id == session
            await registry.close()

    asyncio.run(story())


def test_sessions_outlive_a_server_of_the_ensemble(ensemble: ZookeeperEnsemble) -> None:
    """Any one server is killed: sessions, ephemeral nodes and watches go on; the killed one comes back."""

    async def story() -> None:
        address = f"zookeeper://{ensemble.address}/millstream"
        registries = [await started(address, 8000) for _ in range(3)]
        lost: list[int] = []
        await registries[0].create("/ids", b"")
        for number, registry in enumerate(registries):
            registry.on_session_lost = lambda number=number: lost.append(number)
            await registry.create(f"/ids/{number}", ephemeral=True)
        calls: list[str] = []
        registries[1].watch("/n", calls.append)
        for round_number, victim in enumerate((ensemble.leader(), ensemble.follower(), ensemble.leader())):
            if not victim.is_running:
                continue
            victim.kill()
            begun = time.monotonic()
            while True:
                try:
                    await registries[0].create(f"/round{round_number}", make_parents=True)
                    break
                except NodeExists:
                    break
                except Unavailable:
                    assert time.monotonic() - begun < 20
            calls.clear()
            writer = registries[2]
            while True:
                try:
                    if await writer.exists("/n") is None:
                        await writer.create("/n")
                    else:
                        await writer.set("/n", b"%d" % round_number)
                    break
                except (Unavailable, NodeExists):
                    assert time.monotonic() - begun < 20
            await eventually(lambda: "/n" in calls, 20)
            assert lost == []
            assert await registries[1].children("/ids") == ["0", "1", "2"]
            assert all(registry.session_deadline() > time.monotonic() for registry in registries)
            victim.start()
        for registry in registries:
            await registry.close()

    asyncio.run(story())


def test_a_read_through_another_server_comes_after_a_write_that_was_under_way(
    ensemble: ZookeeperEnsemble,
) -> None:
    """Disks that hang keep a write from being committed; the server counts as silent and another is tried,
    which answers reads from its memory. Whoever reads to see whether the write was made must not be told no.
    """

    async def story() -> None:
        leader = ensemble.leader()
        others = [server for server in ensemble.servers if server is not leader]
        registry = await started(f"zookeeper://{leader.address},{others[0].address}/millstream")
        await registry.create("/a", b"before")
        assert registry._ensemble is not None
        way = registry._ensemble._handler
        async with asyncio.timeout(20):
            while way.connection is None or way.connection.getpeername()[1] != leader.port:
                way.cut()
                await asyncio.sleep(0.2)
                await registry.get("/a")
            with ExitStack() as disks:
                for server in others:
                    disks.enter_context(server.slow_disk())
                writing = asyncio.ensure_future(registry.set("/a", b"after"))
                await asyncio.sleep(0.2)  # the leader proposes it
                way.cut()
                with pytest.raises(Unavailable):
                    await writing
                reading = asyncio.ensure_future(registry.get("/a"))
                await asyncio.wait([reading], timeout=0.5)
            assert (await reading).data == b"after"
        await registry.close()

    asyncio.run(story())


def test_a_sync_is_the_first_that_is_sent_on_a_connection(
    place: ZookeeperPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before a read that came when kazoo knew that the connection broke, and had not told it yet."""
    sent: list[object] = []
    submit, fail_pending = ConnectionHandler._submit, KazooClient._notify_pending

    async def story() -> None:
        loop, is_broken = asyncio.get_running_loop(), asyncio.Event()

        def noting(connection: object, request: object, *rest: object) -> None:
            sent.append(request)
            submit(connection, request, *rest)

        def slowly(client: object, state: str) -> None:
            fail_pending(client, state)
            sent.clear()
            loop.call_soon_threadsafe(is_broken.set)
            time.sleep(0.1)  # as a thread does that loses the interpreter

        registry = await started(place.address)
        await registry.create("/a", b"a")
        assert registry._ensemble is not None
        monkeypatch.setattr(ConnectionHandler, "_submit", noting)
        monkeypatch.setattr(KazooClient, "_notify_pending", slowly)
        registry._ensemble._handler.cut()
        await is_broken.wait()
        assert registry._ensemble.is_connected, "it has not been told yet"
        assert (await registry.get("/a")).data == b"a"
        assert [type(request) for request in sent[:3]] == [Connect, Sync, GetData]
        monkeypatch.undo()
        await registry.close()

    asyncio.run(story())


def test_without_a_majority_nothing_is_written_and_the_deadline_passes(ensemble: ZookeeperEnsemble) -> None:
    async def story() -> None:
        registry = await started(f"zookeeper://{ensemble.address}/t", 3000)
        await registry.create("/a", b"1")
        for server in ensemble.servers[:2]:
            server.kill()
        is_available = True
        while is_available:
            try:
                await registry.set("/a", b"2")
            except Unavailable:
                is_available = False
        await eventually(lambda: registry.session_deadline() < time.monotonic(), 10)
        for server in ensemble.servers[:2]:
            server.launch()
        loop = asyncio.get_running_loop()
        for server in ensemble.servers:
            await loop.run_in_executor(None, server.wait)
        if registry.session_deadline() == float("-inf"):
            await registry.start()
        while True:
            try:
                assert (await registry.get("/a")).data in (b"1", b"2")
                break
            except Unavailable:
                continue
        await registry.close()

    asyncio.run(story())


def test_the_log_says_that_no_server_answers_and_that_one_does_again(
    server: ZookeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        registry = await started(f"zookeeper://{server.address}/t", 2000)
        server.kill()
        await eventually(lambda: "out of reach" in caplog.text, 10)
        assert registry.session_deadline() < time.monotonic()
        assert f"are led: {server.address}: Connection refused" in caplog.text
        await asyncio.get_running_loop().run_in_executor(None, server.start)
        await eventually(lambda: registry.session_deadline() > time.monotonic() or not registry._ensemble, 30)
        if registry._ensemble is None:
            await registry.close()
            await registry.start()
        await eventually(lambda: "ZooKeeper is back, after" in caplog.text, 10)
        for words in ("broke; the session ends", "out of reach", "is back, after"):
            assert caplog.text.count(words) == 1, caplog.text
        await registry.close()

    asyncio.run(story())


def test_a_server_that_lost_its_data_is_said_to_refuse(
    server: ZookeeperServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes the connection to who has seen more than it has, each time, and tells nobody why."""
    monkeypatch.setattr(outage, "REPEAT_S", 1.0)

    async def story() -> None:
        registry = await started(f"zookeeper://{server.address}/t", 2000)
        await registry.create("/a")
        server.kill()
        shutil.rmtree(server.folder / "data" / "version-2")
        await asyncio.get_running_loop().run_in_executor(None, server.start)
        line = f"are led: {server.address} refuses sessions: it is without a majority, or lost its data"
        await eventually(lambda: caplog.text.count(line) >= 2, 30)
        assert "is back, after" not in caplog.text
        await registry.close()

    asyncio.run(story())


def test_no_server_is_said_within_the_time_out(tmp_path: Path) -> None:
    async def story() -> None:
        registry = ZookeeperRegistry("zookeeper://127.0.0.1:1/t", 1000)
        begun = time.monotonic()
        with pytest.raises(Unavailable, match="no ZooKeeper server"):
            await registry.start()
        assert time.monotonic() - begun < 3
        with pytest.raises(SessionLost):
            await registry.get("/")
        await registry.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("servers", "reason"),
    [
        ("127.0.0.1:1", "127.0.0.1:1: Connection refused"),
        ("no-such-host.invalid", "the name no-such-host.invalid is not known"),
    ],
)
def test_servers_that_cannot_be_reached_are_named_with_the_reason(servers: str, reason: str) -> None:
    async def story() -> None:
        registry = ZookeeperRegistry(f"zookeeper://{servers}/t", 500, patience_s=1)
        begun = time.monotonic()
        with pytest.raises(Unavailable) as refused:
            await registry.start()
        told = f"no ZooKeeper server answers within 0.5 s at {servers} ({reason}). It was tried for "
        assert str(refused.value).startswith(told)
        assert "--registry" in str(refused.value)
        assert time.monotonic() - begun < 5
        await registry.close()

    asyncio.run(story())


def test_a_first_session_waits_for_servers_that_are_yet_to_start(
    zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        host, _, port = zookeeper.rpartition(":")
        async with Relay(host, int(port)) as free:
            pass  # its port is nobody's now
        registry = ZookeeperRegistry(f"zookeeper://127.0.0.1:{free.port}/late", 500, patience_s=30)
        starting = asyncio.create_task(registry.start())
        await eventually(lambda: "tried again" in caplog.text)
        async with Relay(host, int(port), free.port):
            await starting
            assert await registry.children("/") == []
            await registry.close()

    asyncio.run(story())


def test_opening_and_closing_leaves_nothing_behind(place: ZookeeperPlace) -> None:
    async def story() -> None:
        for _ in range(5):
            registry = await started(place.address)
            registry.watch("/a", lambda _: None)
            await registry.create("/a", ephemeral=True)
            await settle()
            await registry.close()
            with pytest.raises(SessionLost):
                await registry.get("/")

    asyncio.run(story())
    gc.collect()
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
    asyncio.run(story())
    gc.collect()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= descriptors


def test_a_root_that_exists_is_used_where_nothing_can_be_made_above_it(server: ZookeeperServer) -> None:
    """ZooKeeper says that somebody may not make a node before it says that there is one."""
    operator = KazooClient(server.address)
    operator.start()
    operator.ensure_path("/here/millstream")
    for path in ("/here", "/"):
        operator.set_acls(path, [make_acl("world", "anyone", read=True)])

    async def story() -> None:
        for address in (f"{server.address}/here/millstream", f"{server.address}/here/millstream/below/it"):
            registry = await started(f"zookeeper://{address}")
            await registry.create("/a")
            await registry.close()
        with pytest.raises(RegistryError, match="refused a call for /here/another: NoAuthError"):
            await started(f"zookeeper://{server.address}/here/another/below")

    asyncio.run(story())
    assert sorted(operator.get_children("/here/millstream")) == ["a", "below"]
    operator.stop()
    operator.close()


def test_a_cancelled_start_leaves_no_session(place: ZookeeperPlace) -> None:
    async def story() -> None:
        registry = ZookeeperRegistry(place.address)
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
