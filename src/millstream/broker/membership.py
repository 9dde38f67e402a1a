"""The broker as a member of the cluster: its session with the registry, and a new one when that is lost.

A session is lost when the process was stopped, or its disk hung, for longer than the session time-out;
then the ephemeral nodes that say that this broker is there, and that it is the controller, are gone or
will go. The broker leads nothing that others could lead, begins a new session and registers again. Until
then what needs the registry is refused with errors that clients retry.

The number of the registration is the broker's epoch: whatever is said of an earlier one is out of date. What
a crash may have cost this broker is said in every registration until a controller has drawn the consequences.
So is it if another process worked under its number while it was not registered, in other log dirs. While one
has its number, it leads nothing at all: the other one has what nobody else has, in the cluster's eyes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from millstream.clock import Clock
from millstream.cluster.metadata import Endpoint
from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.registry.claims import claim
from millstream.registry.contract import NodeExists, Registry, RegistryError

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0


class Membership:
    """Keeps one broker registered from `join` to `leave`."""

    def __init__(
        self,
        registry: Registry,
        config: BrokerConfig,
        clock: Clock,
        endpoints: tuple[Endpoint, ...],
        peer_listener: str,
        on_lost: Callable[[], None],
        on_replaced: Callable[[], None],
        on_joined: Callable[[], None],
    ) -> None:
        """`on_lost` is told at once of a session that is lost, `on_joined` of a new registration.

        `on_replaced` is told if another process is found to be registered under this broker's number.
        """
        self._registry = registry
        self._config = config
        self._clock = clock
        self._endpoints = endpoints
        self._peer_listener = peer_listener
        self._on_lost = on_lost
        self._on_replaced = on_replaced
        self._on_joined = on_joined
        self._is_lost = False
        self._has_said_why = False
        """Whether the log has it why there is no new registration."""
        self._is_member = False
        self._are_dirs_current: Callable[[], Awaitable[bool]]
        self._on_registered: Callable[[], Awaitable[None]]
        self._on_leaving: Callable[[], Awaitable[None]]
        self._task: asyncio.Task[None] | None = None
        self.epoch = -1
        """The number of the registration that holds; -1 while there is none."""
        self.was_clean = False
        """Whether all that this broker wrote is there, or a controller has drawn the consequences."""

    async def join(
        self,
        kept_all: bool,
        are_dirs_current: Callable[[], Awaitable[bool]],
        on_registered: Callable[[], Awaitable[None]],
        on_leaving: Callable[[], Awaitable[None]],
    ) -> None:
        """Tell the cluster under which addresses this broker is reached, now and in every new session.

        `kept_all` says whether all that this broker wrote before its last stop is still there,
        `are_dirs_current` whether it worked in its log dirs last. That is asked each time before it
        registers: another process of its number may have stopped meanwhile. `on_registered` is waited for
        before it takes part, `on_leaving` while it is still registered, in the session that it has: no other
        process can have its number then.
        """
        self.was_clean = kept_all
        self._are_dirs_current = are_dirs_current
        self._on_registered = on_registered
        self._on_leaving = on_leaving
        await self._register()
        self._is_member = True
        self._registry.on_session_lost = self._lost
        if self._registry.session_deadline() == float("-inf"):  # lost before anybody was told
            self._lost()

    def answered_for(self) -> None:
        """A controller has drawn the consequences of this registration: it tells a broker nothing before."""
        self.was_clean = True

    async def leave(self) -> None:
        """Be a member no more: the cluster goes on without this broker."""
        self._registry.on_session_lost = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._is_member:
            self._is_member = False
            if self.epoch < 0 or self._clock.monotonic() >= self._registry.session_deadline():
                return  # there is no registration, or it is not this process's, or ends with the session
            await self._on_leaving()
            try:
                await self._registry.delete(self._path)
            except RegistryError as error:
                log.info("the registration ends with the session: %s", error)

    @property
    def _path(self) -> str:
        return f"{tree.BROKERS}/{self._config.node_id}"

    async def _register(self) -> None:
        path = self._path

        async def create() -> None:
            if not await self._are_dirs_current():
                self.was_clean = False
            await self._registry.create(path, tree.dump(self._node()), ephemeral=True)

        async def say() -> None:
            other = await self._registered()
            if other is not None and other.endpoints != list(map(str, self._endpoints)):
                self._on_replaced()  # it is not an earlier session's of this process
            if not self._has_said_why:
                self._has_said_why = True
                log.warning(
                    "broker %d is registered already%s; waiting up to %g s, as its process may have ended",
                    self._config.node_id,
                    _place(other),
                    patience_s,
                )

        patience_s = 2 * self._registry.session_timeout_s
        try:
            await claim(path, create, patience_s, say)
        except NodeExists as error:
            if error.path != path:
                raise
            self._on_replaced()
            raise NodeExists(
                f"broker {self._config.node_id} is running already{_place(await self._registered())}: "
                "give this one another node.id",
                path,
            ) from error
        # Another process of this number may have worked on after it was asked, until it let the registration
        # go. That is heard of in any case: what is begun next is to come after all that the other one began.
        are_current = await self._are_dirs_current()
        if self.was_clean and not are_current:
            await self._registry.delete(path)
            await self._register()
            return
        self._has_said_why = False
        await self._on_registered()
        epoch = (await self._registry.get(path)).created
        if not self._is_lost:  # the loss may be heard of before the answer
            self.epoch = epoch

    async def _registered(self) -> tree.BrokerIdNode | None:
        """The registration under this broker's number, if that can be read."""
        try:
            found = await self._registry.get(self._path)
            return msgspec.json.decode(found.data, type=tree.BrokerIdNode)
        except (RegistryError, msgspec.DecodeError):
            return None

    def _node(self) -> tree.BrokerIdNode:
        first = self._endpoints[0]
        return tree.BrokerIdNode(
            endpoints=list(map(str, self._endpoints)),
            host=first.host,
            port=first.port,
            timestamp=str(self._clock.now_ms()),
            rack=self._config["broker.rack"],
            peer_listener=self._peer_listener,
            was_clean=self.was_clean,
            min_insync_replicas=self._config.started_with("min.insync.replicas"),
        )

    def _lost(self) -> None:
        log.error("the session with the registry is lost; beginning a new one")
        self.epoch = -1
        self._is_lost = True
        try:
            self._on_lost()
        except Exception:  # whatever it is, this broker must come back
            log.exception("not everything could be let go of")
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._join_again())

    async def _join_again(self) -> None:
        pause_s, said = FIRST_PAUSE_S, ""
        while self._is_lost:
            self._is_lost = False
            try:
                await self._registry.close()
                await self._registry.start()
                await self._register()
            except Exception as error:
                self._is_lost = True
                if str(error) != said:
                    said = str(error)
                    log.warning(
                        "no new session with the registry yet; until then no topic is made or changed, and"
                        " only partitions that have no other replica are led: %s",
                        error,
                    )
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, MAX_PAUSE_S)
        log.info("a new session with the registry has begun; broker epoch %d", self.epoch)
        self._on_joined()


def _place(other: tree.BrokerIdNode | None) -> str:
    return "" if other is None else str(Endpoint("", other.host, other.port)).replace("://", ", at ", 1)
