"""What a broker listens on, and how many connections it holds there."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from millstream.broker.places import occupancies
from millstream.broker.server import PEER_LISTENER, Broker
from millstream.config.broker import BrokerConfig
from millstream.config.keys import ConfigError
from millstream.net.occupancy import MANY
from millstream.storage.os_disk import OsDisk
from tests.zookeeper import ZookeeperServer

TWO = {
    "listeners": "PLAINTEXT://127.0.0.1:0,OTHER://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT",
}


def broker_in(folder: Path, settings: dict[str, str]) -> Broker:
    return Broker(BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder), **settings}))


async def held(stack: AsyncExitStack, broker: Broker, name: str, count: int) -> int:
    """Of so many new connections to a listener, how many are not closed by the broker."""

    async def is_held() -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.listeners[name].port)
        stack.callback(writer.close)
        try:
            return await asyncio.wait_for(reader.read(1), 0.2) != b""
        except TimeoutError:
            return True
        except ConnectionError:
            return False

    return sum([await is_held() for _ in range(count)])


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("key", ["max.connections", "max.connections.per.ip"])
def test_limits_are_those_of_the_broker_over_all_its_listeners(tmp_path: Path, key: str) -> None:
    async def main() -> None:
        settings = {**TWO, key: "4", "listener.name.other.max.connections": "1"}
        async with (
            asyncio.timeout(60),
            broker_in(tmp_path, settings) as broker,
            AsyncExitStack() as stack,
        ):
            assert await held(stack, broker, "OTHER", 2) == 1
            assert await held(stack, broker, "PLAINTEXT", 5) == 3
            assert await held(stack, broker, PEER_LISTENER, 2) == 2  # clients do not keep brokers out

    asyncio.run(main())


@pytest.mark.parametrize("peers", ["OTHER", "PLAINTEXT"])
def test_brokers_find_a_place_on_a_listener_that_is_theirs(tmp_path: Path, peers: str) -> None:
    async def main() -> None:
        settings = {**TWO, "max.connections": "0", "inter.broker.listener.name": peers}
        async with (
            asyncio.timeout(60),
            broker_in(tmp_path, settings) as broker,
            AsyncExitStack() as stack,
        ):
            for name in ("OTHER", "PLAINTEXT"):
                assert await held(stack, broker, name, 1) == (name == peers)

    asyncio.run(main())


@pytest.mark.parametrize("peers", [PEER_LISTENER, "OTHER"])
def test_brokers_take_no_more_descriptors_than_files_leave(tmp_path: Path, peers: str) -> None:
    """Of eight, clients leave them four, though max.connections is nothing to them."""

    async def main() -> None:
        settings = {**TWO, "log.dirs": str(tmp_path)}
        if peers != PEER_LISTENER:
            settings["inter.broker.listener.name"] = peers
        disk = OsDisk()
        disk.spare_descriptors = 8
        async with (
            asyncio.timeout(60),
            Broker(BrokerConfig(settings), disk=disk) as broker,
            AsyncExitStack() as stack,
        ):
            assert await held(stack, broker, "PLAINTEXT", 5) == 4
            assert await held(stack, broker, peers, 5) == 4

    asyncio.run(main())


@pytest.mark.parametrize(
    ("descriptors", "of_clients", "of_brokers"), [(8, 4, 4), (32, 16, 16), (128, 80, 48), (704, 528, 176)]
)
def test_brokers_of_a_small_cluster_find_places_where_the_process_may_open_little(
    descriptors: int, of_clients: int, of_brokers: int
) -> None:
    """As with ulimit -n of 64, 128, 256 and 1024. Each broker has up to nine links to another one."""
    found = []
    for occupancy in occupancies(BrokerConfig(TWO), lambda _: MANY, descriptors):
        entered = 0
        while occupancy.enter("127.0.0.1") is None:
            entered += 1
        found.append(entered)
    assert found == [of_clients, of_brokers]


@pytest.mark.parametrize(
    ("listen", "registry", "expected"),
    [
        ("0.0.0.0", "sqlite", "127.0.0.1"),
        ("0.0.0.0", "memory", "127.0.0.1"),
        ("[::]", "sqlite", "::1"),
        ("0.0.0.0", "zookeeper", "0.0.0.0"),
    ],
)
def test_brokers_of_one_machine_listen_to_one_another_on_that_machine_alone(
    tmp_path: Path, listen: str, registry: str, expected: str
) -> None:
    if expected == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    settings = {
        "listeners": f"PLAINTEXT://{listen}:0",
        "advertised.listeners": "PLAINTEXT://localhost:9092",
        "registry": registry,
    }

    async def main() -> None:
        async with asyncio.timeout(60), broker_in(tmp_path / "data", settings) as broker:
            sockets = [each for one in broker.listeners[PEER_LISTENER]._servers for each in one.sockets]
            assert {each.getsockname()[0] for each in sockets} == {expected}
            endpoint = broker.metadata.brokers[1].peer_endpoint
            assert endpoint is not None
            assert endpoint.host == ("localhost" if expected == "0.0.0.0" else expected)
            assert [each.host for each in broker.endpoints] == ["localhost"]

    with ExitStack() as stack:
        if registry == "zookeeper":
            server = stack.enter_context(ZookeeperServer(tmp_path / "zookeeper"))
            settings["registry"] = f"zookeeper://{server.address}/millstream"
        asyncio.run(main())


def test_an_address_that_nobody_knows_is_said_with_its_key(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"max.connections.per.ip.overrides has nohost.invalid"):
            await broker_in(tmp_path, {"max.connections.per.ip.overrides": "nohost.invalid:3"}).start()

    asyncio.run(main())
