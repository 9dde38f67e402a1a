"""What every registry promises, run against each of them."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from millstream.registry.contract import (
    ANY,
    BadVersion,
    Check,
    Create,
    Delete,
    NoChildrenAllowed,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Registry,
    RegistryError,
    SessionLost,
    Set,
)
from tests.registry.places import KINDS, Place, eventually, eventually_gone, make_place, settle, with_sessions


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, tmp_path, lambda: str(request.getfixturevalue("zookeeper")))


# Nodes


@with_sessions(1)
async def test_a_new_node_has_its_data_and_version_0(place: Place, registry: Registry) -> None:
    await registry.create("/a", b"data")
    node = await registry.get("/a")
    assert (node.data, node.version, node.is_ephemeral) == (b"data", 0, False)
    assert node.created == node.modified > 0
    assert await registry.exists("/a") == 0
    assert await registry.exists("/b") is None
    with pytest.raises(NoNode) as error:
        await registry.get("/b")
    assert error.value.path == "/b"


@with_sessions(1)
async def test_create_refuses_a_second_and_an_orphan(place: Place, registry: Registry) -> None:
    await registry.create("/a", b"1")
    with pytest.raises(NodeExists):
        await registry.create("/a", b"2")
    with pytest.raises(NodeExists):
        await registry.create("/a", b"2", make_parents=True)
    with pytest.raises(NodeExists):
        await registry.create("/", b"2")
    with pytest.raises(NoNode):
        await registry.create("/x/y")
    assert (await registry.get("/a")).data == b"1"
    assert await registry.children("/") == ["a"]


@with_sessions(1)
async def test_make_parents_creates_what_is_missing_above(place: Place, registry: Registry) -> None:
    await registry.create("/a", b"kept")
    await registry.create("/a/b/c/d", b"deep", make_parents=True)
    await registry.create("/a/b/c/e", b"too", ephemeral=True, make_parents=True)
    assert (await registry.get("/a")).data == b"kept"
    assert (await registry.get("/a/b")).data == b""
    assert (await registry.get("/a/b/c/d")).data == b"deep"
    assert await registry.children("/a/b/c") == ["d", "e"]
    assert not (await registry.get("/a/b/c")).is_ephemeral


@with_sessions(2)
async def test_two_may_make_the_same_parents_at_once(place: Place, a: Registry, b: Registry) -> None:
    for number in range(10):
        top = f"/top{number}/x/y"
        await asyncio.gather(
            a.create(f"{top}/a", make_parents=True),
            b.create(f"{top}/b", make_parents=True),
            a.create(f"{top}/c", make_parents=True),
        )
        assert await a.children(top) == ["a", "b", "c"]


@with_sessions(1)
async def test_set_replaces_data_and_raises_the_version(place: Place, registry: Registry) -> None:
    await registry.create("/a", b"0")
    created = (await registry.get("/a")).created
    assert await registry.set("/a", b"1") == 1
    assert await registry.set("/a", b"2", version=1) == 2
    with pytest.raises(BadVersion):
        await registry.set("/a", b"3", version=1)
    with pytest.raises(NoNode):
        await registry.set("/b", b"")
    node = await registry.get("/a")
    assert (node.data, node.version, node.created) == (b"2", 2, created)
    assert node.modified > created
    assert await registry.set("/", b"root") == 1
    assert (await registry.get("/")).data == b"root"


@with_sessions(1)
async def test_delete_removes_a_leaf_of_the_right_version(place: Place, registry: Registry) -> None:
    await registry.create("/a/b", make_parents=True)
    with pytest.raises(NotEmpty):
        await registry.delete("/a")
    with pytest.raises(BadVersion):
        await registry.delete("/a/b", version=1)
    await registry.delete("/a/b", version=0)
    with pytest.raises(NoNode):
        await registry.delete("/a/b")
    await registry.delete("/a")
    assert await registry.children("/") == []
    with pytest.raises(RegistryError):
        await registry.delete("/")


@with_sessions(1)
async def test_children_are_sorted_names(place: Place, registry: Registry) -> None:
    for name in ("b", "a10", "a2", "ä", "a"):
        await registry.create(f"/{name}")
    await registry.create("/a/inner")
    assert await registry.children("/") == ["a", "a10", "a2", "b", "ä"]
    assert await registry.children("/a") == ["inner"]
    assert await registry.children("/b") == []
    with pytest.raises(NoNode):
        await registry.children("/c")


@with_sessions(1)
async def test_a_node_made_again_is_another_node(place: Place, registry: Registry) -> None:
    await registry.create("/a", b"first")
    first = await registry.get("/a")
    await registry.set("/a", b"x")
    await registry.delete("/a")
    await registry.create("/a", b"second")
    second = await registry.get("/a")
    assert second.version == 0
    assert second.created > first.created


@with_sessions(1)
async def test_get_many_answers_in_order(place: Place, registry: Registry) -> None:
    await registry.create("/a", b"1")
    await registry.create("/b", b"2", ephemeral=True)
    found = await registry.get_many(["/b", "/none", "/a", "/"])
    assert [None if node is None else (node.data, node.is_ephemeral) for node in found] == [
        (b"2", True),
        None,
        (b"1", False),
        (b"", False),
    ]
    assert isinstance(found[0], Node)
    assert await registry.get_many([]) == []


@pytest.mark.parametrize("path", ["", "a", "a/b", "//", "/a/", "/a//b", "/.", "/a/..", "/a/../b", "/a\x00"])
def test_bad_paths_are_refused(place: Place, path: str) -> None:
    async def story() -> None:
        registry = place.registry()
        await registry.start()
        try:
            for call in (registry.get, registry.children, registry.delete, registry.create):
                with pytest.raises(RegistryError):
                    await call(path)
            with pytest.raises(RegistryError):
                registry.watch(path, print)
        finally:
            await registry.close()

    asyncio.run(story())


# Several at once


@with_sessions(1)
async def test_multi_applies_in_order_and_answers_versions(place: Place, registry: Registry) -> None:
    await registry.create("/a", b"0")
    versions = await registry.multi(
        [
            Check("/a", 0),
            Set("/a", b"1"),
            Create("/a/b", b"x"),
            Set("/a/b", b"y", 0),
            Delete("/a/b", 1),
            Check("/a", 1),
        ]
    )
    assert versions == [0, 1, 0, 1, ANY, 1]
    assert (await registry.get("/a")).data == b"1"
    assert await registry.children("/a") == []
    assert await registry.multi([]) == []


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Check("/kept", 7), BadVersion),
        (Check("/none"), NoNode),
        (Set("/kept", b"", 7), BadVersion),
        (Delete("/full"), NotEmpty),
        (Delete("/none"), NoNode),
        (Create("/kept"), NodeExists),
        (Create("/none/x"), NoNode),
        (Create("/mine/x"), NoChildrenAllowed),
        (Delete("/"), RegistryError),
    ],
)
def test_multi_applies_nothing_if_one_fails(place: Place, last: Check, error: type[RegistryError]) -> None:
    async def story() -> None:
        registry = place.registry()
        await registry.start()
        try:
            await registry.create("/kept", b"0")
            await registry.create("/gone", b"0")
            await registry.create("/full/x", make_parents=True)
            await registry.create("/mine", ephemeral=True)
            paths = ["/", "/kept", "/gone", "/full", "/full/x", "/mine", "/new"]
            before = await registry.get_many(paths)
            calls: list[str] = []
            for path in paths:
                registry.watch(path, calls.append)
            await settle()
            calls.clear()
            with pytest.raises(error):
                await registry.multi(
                    [
                        Set("/kept", b"1"),
                        Create("/new"),
                        Create("/new/x"),
                        Delete("/new/x"),
                        Delete("/gone"),
                        last,
                    ]
                )
            assert await registry.get_many(paths) == before
            assert await registry.children("/") == ["full", "gone", "kept", "mine"]
            await settle()
            assert calls == []
        finally:
            await registry.close()

    asyncio.run(story())


@with_sessions(2)
async def test_compare_and_set_loses_no_update(place: Place, a: Registry, b: Registry) -> None:
    await a.create("/counter", b"0")

    async def count(registry: Registry) -> None:
        for _ in range(25):
            while True:
                node = await registry.get("/counter")
                try:
                    await registry.set("/counter", b"%d" % (int(node.data) + 1), node.version)
                    break
                except BadVersion:
                    continue

    await asyncio.gather(count(a), count(a), count(b), count(b))
    for registry in (a, b):
        node = await registry.get("/counter")
        assert (node.data, node.version) == (b"100", 100)


@with_sessions(2)
async def test_only_one_wins_an_election(place: Place, a: Registry, b: Registry) -> None:
    for _ in range(10):
        results = await asyncio.gather(
            a.create("/controller", b"a", ephemeral=True),
            b.create("/controller", b"b", ephemeral=True),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["NodeExists", "NoneType"]
        winner = b"a" if results[0] is None else b"b"
        assert (await a.get("/controller")).data == (await b.get("/controller")).data == winner
        await a.delete("/controller")


# Sessions


@with_sessions(2)
async def test_ephemeral_nodes_vanish_with_their_session(place: Place, a: Registry, b: Registry) -> None:
    await a.create("/ids", b"")
    await a.create("/ids/1", b"one", ephemeral=True)
    await b.create("/ids/2", b"two", ephemeral=True)
    assert (await b.get("/ids/1")).is_ephemeral
    with pytest.raises(NoChildrenAllowed):
        await b.create("/ids/1/x")
    assert await b.set("/ids/1", b"changed") == 1
    calls: list[str] = []
    b.watch("/ids", calls.append)
    b.watch("/ids/1", calls.append)
    await settle()
    calls.clear()
    await a.close()
    await eventually(lambda: {"/ids", "/ids/1"} <= set(calls))
    assert await b.children("/ids") == ["2"]
    assert await b.exists("/ids/1") is None


@with_sessions(2)
async def test_a_lost_session_is_told_and_refuses_calls(place: Place, a: Registry, b: Registry) -> None:
    told: list[str] = []
    a.on_session_lost = lambda: told.append("a")
    b.on_session_lost = lambda: told.append("b")
    await a.create("/mine", ephemeral=True)
    first = a.session_id
    assert first != b.session_id
    place.lose(a)
    await eventually(lambda: told == ["a"])
    assert a.session_deadline() == -math.inf
    for call in (a.get("/"), a.children("/"), a.get_many(["/"]), a.create("/x"), a.exists("/")):
        with pytest.raises(SessionLost):
            await call
    await eventually_gone(b, "/mine")
    await a.start()
    assert a.session_id > first
    await a.create("/mine", ephemeral=True)
    await settle()
    assert told == ["a"]


@with_sessions(2)
async def test_after_a_loss_watches_are_kept_and_all_fire(place: Place, a: Registry, b: Registry) -> None:
    calls: list[str] = []
    a.watch("/x", calls.append)
    a.watch("/y", calls.append)
    lost = asyncio.Event()
    a.on_session_lost = lost.set
    place.lose(a)
    await asyncio.wait_for(lost.wait(), 30)
    await b.create("/x")
    await settle()
    calls.clear()
    await a.start()
    await eventually(lambda: {"/x", "/y"} <= set(calls))
    calls.clear()
    await b.set("/x", b"1")
    await eventually(lambda: "/x" in calls)


@with_sessions(1)
async def test_the_deadline_lies_ahead_while_the_session_lives(place: Place, registry: Registry) -> None:
    loop = asyncio.get_running_loop()
    assert registry.session_deadline() > loop.time()
    await registry.close()
    assert registry.session_deadline() == -math.inf
    await registry.close()
    with pytest.raises(SessionLost):
        await registry.get("/")
    await registry.start()
    with pytest.raises(RegistryError):
        await registry.start()
    assert registry.session_deadline() > loop.time()


@with_sessions(2)
async def test_a_session_that_is_still_beginning_takes_no_calls(
    place: Place, a: Registry, b: Registry
) -> None:
    """Whoever calls knows by the session's number in which session the call is made."""
    lost = asyncio.Event()
    a.on_session_lost = lost.set
    first = a.session_id
    place.lose(a)
    await asyncio.wait_for(lost.wait(), 30)
    starting = asyncio.create_task(a.start())
    while not starting.done():
        before = a.session_id
        try:
            await a.create("/mine", str(before).encode(), ephemeral=True)
        except SessionLost:
            await asyncio.sleep(0)
            continue
        assert before != first
        break
    await starting
    if await b.exists("/mine") is not None:
        assert (await b.get("/mine")).data == str(a.session_id).encode()


# Watches


@with_sessions(2)
async def test_a_watch_fires_for_data_existence_and_children(place: Place, a: Registry, b: Registry) -> None:
    calls: list[str] = []
    for watcher in (a, b):
        watcher.watch("/n", calls.append)
    changes = (
        a.create("/n"),
        a.set("/n", b"1"),
        a.create("/n/child"),
        a.delete("/n/child"),
        a.delete("/n"),
        a.create("/n", ephemeral=True),
    )
    for change in changes:
        await settle()
        calls.clear()
        await change
        await eventually(lambda: len(calls) >= 2)
        assert set(calls) == {"/n"}


@with_sessions(2)
async def test_a_watch_is_silent_about_other_nodes(place: Place, a: Registry, b: Registry) -> None:
    await a.create("/n/child", make_parents=True)
    await settle()
    assert await b.children("/n") == ["child"]
    calls: list[str] = []
    b.watch("/n", calls.append)
    await a.set("/n/child", b"1")
    await a.create("/n/child/grandchild")
    await a.create("/other")
    await a.set("/", b"1")
    await settle()
    assert calls == []


@with_sessions(2)
async def test_the_change_is_visible_when_the_watch_fires(place: Place, a: Registry, b: Registry) -> None:
    await a.create("/n", b"0")
    await settle()
    assert await b.exists("/n") == 0
    seen: asyncio.Queue[int] = asyncio.Queue()
    tasks: list[asyncio.Task[None]] = []

    async def read() -> None:
        seen.put_nowait(int((await b.get("/n")).data))

    b.watch("/n", lambda _: tasks.append(asyncio.create_task(read())))
    for number in range(1, 21):
        await a.set("/n", b"%d" % number)
        assert await asyncio.wait_for(seen.get(), 30) == number
    await asyncio.gather(*tasks)


@with_sessions(2)
async def test_many_changes_give_few_calls_and_none_is_missed(place: Place, a: Registry, b: Registry) -> None:
    await a.create("/n", b"0")
    latest: list[bytes] = []
    changed = asyncio.Event()
    b.watch("/n", lambda _: changed.set())
    calls: list[str] = []
    b.watch("/n", calls.append)

    async def follow() -> None:
        while not latest or latest[-1] != b"200":
            await changed.wait()
            changed.clear()
            latest.append((await b.get("/n")).data)

    follower = asyncio.create_task(follow())
    for start in range(1, 201, 50):
        await a.multi([Set("/n", b"%d" % number) for number in range(start, start + 50)])
    await asyncio.wait_for(follower, 30)
    await settle()
    assert 1 <= len(calls) <= 20


@with_sessions(1)
async def test_a_cancelled_watch_stays_silent(place: Place, registry: Registry) -> None:
    """While one that is not cancelled is called; perhaps once more, where another's write came in between."""
    calls: list[str] = []
    first = registry.watch("/n", lambda path: calls.append("first"))
    second = registry.watch("/n", lambda path: calls.append("second"))
    await registry.create("/n")
    await eventually(lambda: set(calls) == {"first", "second"})
    await settle()
    first()
    first()
    calls.clear()
    await registry.set("/n", b"")
    await eventually(lambda: "second" in calls)
    await settle()
    assert "first" not in calls
    second()
    calls.clear()
    await registry.delete("/n")
    await settle()
    assert not calls


@with_sessions(1)
async def test_a_failing_watch_does_not_silence_the_others(place: Place, registry: Registry) -> None:
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["message"]))
    calls: list[str] = []

    def fail(path: str) -> None:
        raise ValueError(path)

    registry.watch("/n", fail)
    registry.watch("/n", calls.append)
    await registry.create("/n")
    await eventually(lambda: calls == ["/n"])
    assert failures == ["a watch of /n failed"]
