"""Links between brokers: made when needed, made again when broken, and dropped when a broker moved."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.client.connection import connect
from millstream.cluster import peers
from millstream.cluster.peers import COPYING
from millstream.errors import BrokerNotAvailable, KafkaError, NetworkException
from millstream.net.listener import close_servers
from millstream.protocol.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from tests.cluster.nodes import Nodes, run, until

NUDGE = FetchRequest(
    replica_state=FetchRequest.ReplicaState(replica_id=1, replica_epoch=1),
    max_wait_ms=0,
    min_bytes=0,
    session_epoch=-1,
    topics=[],
)
"""A request that every node answers at once."""


async def ask(nodes: Nodes, other: int, purpose: str = "test") -> FetchResponse:
    return await nodes[1].peers.request(other, purpose, NUDGE, FetchResponse, 3000)


def test_a_link_is_one_connection_for_one_purpose(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        for _ in range(3):
            await asyncio.gather(*[ask(nodes, 2) for _ in range(10)])
        assert len(nodes[2].listener.connections) == 1
        await ask(nodes, 2, "other")
        assert len(nodes[2].listener.connections) == 2
        await ask(nodes, 1)  # also to itself

    run(test, tmp_path, count=2)


def test_a_link_follows_its_broker(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await ask(nodes, 2)
        await nodes.stop(2)
        with pytest.raises(BrokerNotAvailable):
            await ask(nodes, 2)
        await nodes.start(2)  # at another port
        await ask(nodes, 2)

    run(test, tmp_path, count=2)


def cut(nodes: Nodes, other: int) -> None:
    for connection in list(nodes[other].listener.connections):
        assert connection.transport is not None
        connection.transport.abort()


def test_a_connection_that_broke_while_it_was_in_use_is_made_again(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await ask(nodes, 2, COPYING)
        assert not nodes[1].peers.is_lost(2)
        nodes.holds = True
        waiting = AlterPartitionRequest(broker_id=1, broker_epoch=1, topics=[])
        asking = asyncio.create_task(
            nodes[1].peers.request(2, COPYING, waiting, AlterPartitionResponse, 20_000)
        )
        await asyncio.sleep(0.1)
        cut(nodes, 2)
        with pytest.raises(NetworkException):
            await asking
        assert nodes[1].peers.is_lost(2)
        nodes.holds = False
        await ask(nodes, 2, COPYING)
        assert not nodes[1].peers.is_lost(2)

    run(test, tmp_path, count=2)


def test_a_connection_that_nobody_used_is_no_loss_unless_there_can_be_no_other(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await ask(nodes, 2, COPYING)
        link = nodes[1].peers.link(2, COPYING)
        cut(nodes, 2)
        await until(lambda: link._connection is not None and not link._connection.is_open)
        assert not nodes[1].peers.is_lost(2)
        await nodes[2].listener.stop()
        with pytest.raises(NetworkException):
            await ask(nodes, 2, COPYING)
        assert nodes[1].peers.is_lost(2)

    run(test, tmp_path, count=2)


def test_a_broker_that_cannot_be_reached_is_asked_less_and_less_often(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await nodes[2].listener.stop()  # it is in the cluster, but does not listen
        loop = asyncio.get_running_loop()
        took: list[float] = []
        for _ in range(5):
            started = loop.time()
            with pytest.raises(NetworkException):
                await ask(nodes, 2)
            took.append(loop.time() - started)
        assert sum(took) > 0.2
        assert took[-1] > took[1]

    run(test, tmp_path, count=2)


def test_links_are_closed_with_their_broker(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        await ask(nodes, 2)
        await nodes[1].peers.close()
        with pytest.raises(NetworkException):
            await ask(nodes, 2)
        await until(lambda: not nodes[2].listener.connections)

    run(test, tmp_path, count=2)


def test_a_connection_to_a_broker_that_moved_meanwhile_is_let_go_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(nodes: Nodes) -> None:
        may_connect = asyncio.Event()

        async def connect_later(*arguments: Any, **options: Any) -> Any:
            await may_connect.wait()
            return await connect(*arguments, **options)

        monkeypatch.setattr(peers, "connect", connect_later)
        asking = asyncio.create_task(ask(nodes, 2))
        await asyncio.sleep(0.05)
        nodes[2].epoch = nodes.next_epoch()  # it registered anew, at the same place
        nodes.tell_brokers()
        may_connect.set()
        with pytest.raises(NetworkException):
            await asking
        await until(lambda: not nodes[2].listener.connections)
        await ask(nodes, 2)
        assert len(nodes[2].listener.connections) == 1

    run(test, tmp_path, count=2)


def test_a_connection_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async def test(nodes: Nodes) -> None:
        held: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        node = nodes[2].node
        nodes[1].metadata.brokers[2] = replace(node, endpoints=(replace(node.endpoints[0], port=port),))
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(KafkaError):
            await ask(nodes, 2)
        assert loop.time() - started < 1
        await close_servers([silent])
        for writer in held:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    run(test, tmp_path, count=2, socket_connection_setup_timeout_ms="200")


def test_an_attempt_to_connect_ends_when_its_link_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped accepts connections, and says nothing."""
    monkeypatch.setattr(peers, "MAX_CONNECT_MS", 120_000.0)

    async def test(nodes: Nodes) -> None:
        held: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        node = nodes[2].node
        nodes[1].metadata.brokers[2] = replace(node, endpoints=(replace(node.endpoints[0], port=port),))
        link = nodes[1].peers.link(2, "test")
        waiting = [asyncio.create_task(link.reach(120_000)) for _ in range(2)]
        await until(lambda: len(held) == 1)
        nodes[1].peers.cut(2, "test")
        for each in waiting:
            with pytest.raises(NetworkException):
                await asyncio.wait_for(each, 30)
        given_up = asyncio.create_task(nodes[1].peers.link(2, "test").reach(120_000))
        await until(lambda: len(held) == 2)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await close_servers([silent])
        for writer in held:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    run(test, tmp_path, count=2, socket_connection_setup_timeout_ms="120000")
