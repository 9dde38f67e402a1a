"""How many connections one address may have, where names of hosts are said."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from millstream.broker.ip_limits import OVERRIDES, IpLimits
from millstream.config.broker import BrokerConfig
from millstream.config.keys import ConfigError

HOSTS = {"friend": ["10.0.0.7", "2001:db8::7"], "stranger": ["10.0.0.8"]}


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, port: None, **_: object) -> list[tuple[object, ...]]:
        if host not in HOSTS:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(None, None, None, "", (address, 0)) for address in HOSTS[host]]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_limits_given_at_the_start() -> None:
    async def main() -> None:
        config = BrokerConfig({OVERRIDES: "friend:20, 10.0.0.9:3,[::1]:4", "max.connections.per.ip": "9"})
        limits = IpLimits(config)
        await limits.start()
        found = [limits.of(ip) for ip in ("10.0.0.7", "2001:db8::7", "10.0.0.9", "::1", "10.0.0.1")]
        assert found == [20, 20, 3, 4, 9]

    asyncio.run(main())


def test_a_name_that_nobody_knows_is_said_with_its_key() -> None:
    async def main() -> None:
        limits = IpLimits(BrokerConfig({OVERRIDES: "nohost.invalid:3"}))
        with pytest.raises(ConfigError, match=rf"{OVERRIDES} has nohost.invalid, a name that nobody knows"):
            await limits.start()

    asyncio.run(main())


def test_limits_set_later(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        config = BrokerConfig({OVERRIDES: "friend:20"})
        limits = IpLimits(config)
        await limits.start()
        config.set_dynamic(broker={"max.connections.per.ip": "9", OVERRIDES: "stranger:5,10.0.0.9:3"})
        assert (limits.of("10.0.0.9"), limits.of("10.0.0.7")) == (3, 9)  # addresses need no looking up
        async with asyncio.timeout(10):
            while limits.of("10.0.0.8") != 5:
                await asyncio.sleep(0.001)
        config.set_dynamic(broker={"max.connections.per.ip": "9", OVERRIDES: "nohost.invalid:3,10.0.0.9:2"})
        with caplog.at_level(logging.ERROR):
            assert limits.of("10.0.0.9") == 2
            async with asyncio.timeout(10):
                while "nohost.invalid, a name that nobody knows" not in caplog.text:
                    await asyncio.sleep(0.001)
        assert (limits.of("10.0.0.9"), limits.of("10.0.0.8")) == (2, 9)

    asyncio.run(main())
