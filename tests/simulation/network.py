"""An in-memory network of hosts that speak TCP, with what TCP may do and what may befall it.

Bytes of one direction of a connection arrive in order and whole, or the connection is lost; where
they are cut into reads is arbitrary. A direction between two hosts may be blocked (a partition, also
one-way): bytes then wait, as TCP retransmits, until it heals. The sender's kernel holds a bounded
window of bytes not yet read by the peer; what exceeds it waits in the transport's own buffer, which
pauses the protocol above its high-water mark and is lost with its process.

- A killed process: its host's kernel still delivers the window, then ends the connection.
- A host without power: its peers hear nothing, and are reset when they send after its return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.loop import SimLoop
from tests.simulation.transport import Address, Link, SimTransport, join
from tests.simulation.world import World

CONNECT_TIMEOUT_S = 30.0
SYN_RETRY_S = 0.5
ANY_HOST = ("", "0.0.0.0", "::", None)


class SimServer(asyncio.AbstractServer):
    """A listening socket; closing it leaves its connections alone, as asyncio does."""

    def __init__(self, network: Network, loop: SimLoop, factory: Callable[[], Any], address: Address) -> None:
        self._network = network
        self.loop = loop
        self.factory = factory
        self.address = address
        self.connections: dict[SimTransport, None] = {}
        self._closed: asyncio.Future[None] | None = None

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        return (SimSocket(self.address),) if self.is_serving() else ()

    def close(self) -> None:
        self._network.unlisten(self)

    def is_serving(self) -> bool:
        return self._network.listener(self.address) is self

    async def start_serving(self) -> None:
        pass

    async def serve_forever(self) -> None:
        await self.loop.create_future()

    async def wait_closed(self) -> None:
        """Wait for the end of all connections, as Python 3.12 and later do."""
        while self.connections:
            self._closed = self.loop.create_future()
            await self._closed

    def forget(self, transport: SimTransport) -> None:
        self.connections.pop(transport, None)
        if not self.connections and self._closed is not None and not self._closed.done():
            self._closed.set_result(None)

    def get_loop(self) -> SimLoop:
        return self.loop


class SimSocket:
    """What a server shows of its socket: the address it listens on."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def getsockname(self) -> Address:
        return self._address

    def fileno(self) -> int:
        return -1


class Network:
    """All hosts, the links between them, and who listens where."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connections_made = 0
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[Address, SimServer] = {}
        self._down: dict[str, None] = {}
        self._next_port = 40_000

    # Hosts and links

    def link(self, source: str, target: str) -> Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = Link(self.world, source, target)
        return link

    def links_of(self, host: str, others: Iterable[str]) -> list[Link]:
        """From a host to others and back."""
        ways = [(host, other) for other in others if other != host]
        return [self.link(*way) for way in ways] + [self.link(*reversed(way)) for way in ways]

    def block(self, source: str, target: str) -> None:
        """Let nothing pass from one host to another; the other way is untouched."""
        self.world.log(f"network blocks {source} -> {target}")
        self.link(source, target).block()

    def heal(self) -> None:
        """Open every blocked link."""
        for link in self._links.values():
            if link.is_blocked:
                self.world.log(f"network heals {link.source} -> {link.target}")
                link.unblock()

    def is_up(self, host: str) -> bool:
        return host not in self._down

    def power_off(self, host: str) -> None:
        self._down[host] = None

    def power_on(self, host: str) -> None:
        self._down.pop(host, None)

    def drop_process(self, loop: SimLoop, *, is_power_loss: bool) -> None:
        """A process ended: its listeners are gone, and its connections, as the fault leaves them."""
        for server in loop.servers:
            self._listeners.pop(server.address, None)
        loop.servers.clear()
        for transport in list(loop.transports):
            transport.vanish(is_silent=is_power_loss)
        loop.transports.clear()

    def reset(self, transport: SimTransport) -> None:
        """Lose one connection: both ends learn of it, and what was under way is gone."""
        self.world.log(f"network resets {transport}")
        transport.reset()
        transport.peer.reset()

    # Listening and connecting

    def listener(self, address: Address) -> SimServer | None:
        return self._listeners.get(address)

    def listen(self, loop: SimLoop, factory: Callable[[], Any], host: Any, port: int) -> SimServer:
        if host not in ANY_HOST and host != loop.name:
            raise OSError(99, f"cannot listen on {host}: this host is {loop.name}")
        address = (loop.name, port or self._free_port())
        if address in self._listeners:
            raise OSError(98, f"address in use: {address[0]}:{address[1]}")
        server = self._listeners[address] = SimServer(self, loop, factory, address)
        loop.servers.append(server)
        self.world.log(f"{loop.name} listens on port {address[1]}")
        return server

    def unlisten(self, server: SimServer) -> None:
        if self._listeners.get(server.address) is server:
            del self._listeners[server.address]
            server.loop.servers.remove(server)

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    async def connect(
        self, loop: SimLoop, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[SimTransport, Any]:
        waiter: asyncio.Future[tuple[SimTransport, Any]] = loop.create_future()
        deadline = self.world.now + CONNECT_TIMEOUT_S
        source, target = (loop.name, self._free_port()), (host, int(port))
        self.world.after(
            self.link(loop.name, host).delay(),
            lambda: self._syn(_Attempt(loop, factory, waiter, source, target, deadline)),
        )
        return await waiter

    def _syn(self, attempt: _Attempt) -> None:
        """The first packet arrives at its target: refuse, accept, or be lost and sent again."""
        source, target = attempt.source[0], attempt.target[0]
        there, back = self.link(source, target), self.link(target, source)
        if attempt.is_given_up():
            return
        if there.is_blocked or back.is_blocked or not self.is_up(target):
            if self.world.now > attempt.deadline:
                attempt.fail(TimeoutError(110, f"connection to {target} timed out"))
            else:
                self.world.after(SYN_RETRY_S, lambda: self._syn(attempt))
            return
        server = self._listeners.get(attempt.target)
        if server is None or server.loop.is_dead:
            self.world.log(f"{target}:{attempt.target[1]} refuses {source}")
            refusal = ConnectionRefusedError(111, f"connection to {target}:{attempt.target[1]} refused")
            self.world.after(back.delay(), lambda: attempt.fail(refusal))
            return
        client = SimTransport(self, attempt.loop, attempt.source, attempt.target)
        accepted = SimTransport(self, server.loop, attempt.target, attempt.source, server=server)
        join(client, accepted, there, back)
        self.connections_made += 1
        self.world.log(f"{client} connects")
        accepted.start(server.factory)
        self.world.after(back.delay(), lambda: attempt.finish(client))


class _Attempt:
    """One call of create_connection under way."""

    def __init__(
        self,
        loop: SimLoop,
        factory: Callable[[], Any],
        waiter: asyncio.Future[tuple[SimTransport, Any]],
        source: Address,
        target: Address,
        deadline: float,
    ) -> None:
        self.loop = loop
        self.source = source
        self.target = target
        self.deadline = deadline
        self._factory = factory
        self._waiter = waiter

    def is_given_up(self) -> bool:
        return self.loop.is_dead or self._waiter.done()

    def fail(self, error: OSError) -> None:
        if not self.is_given_up():
            self.loop.call_soon(self._fail, error)

    def _fail(self, error: OSError) -> None:
        if not self._waiter.done():
            self._waiter.set_exception(error)

    def finish(self, transport: SimTransport) -> None:
        if self.is_given_up():
            transport.vanish(is_silent=False)
        else:
            transport.start(self._factory, self._waiter)
