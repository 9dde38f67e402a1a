"""The broker as a member of the cluster: its session with the registry, and a new one when that is lost.

A session is lost when the process was stopped, or its disk hung, for longer than the session time-out;
then the ephemeral nodes that say that this broker is there, and that it is the controller, are gone or
will go. The broker goes on serving its partitions, begins a new session and makes them again. Until then
what needs the registry is refused with errors that clients retry.
"""

from __future__ import annotations

import asyncio
import logging

from millstream.clock import Clock
from millstream.cluster.metadata import BrokerNode, Endpoint, Metadata
from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.controller.controller import Controller
from millstream.registry.claims import claim
from millstream.registry.contract import Registry

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
        metadata: Metadata,
        controller: Controller,
        endpoints: tuple[Endpoint, ...],
    ) -> None:
        self._registry = registry
        self._config = config
        self._clock = clock
        self._metadata = metadata
        self._controller = controller
        self._endpoints = endpoints
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Tell the cluster under which addresses this broker is reached, now and in every new session."""
        await self._register()
        config = self._config
        self._metadata.brokers[config.node_id] = BrokerNode(
            config.node_id, self._endpoints, config["broker.rack"]
        )
        self._registry.on_session_lost = self._lost
        if self._registry.session_deadline() == float("-inf"):  # lost before anybody was told
            self._lost()

    async def leave(self) -> None:
        """Begin no more sessions; the one there is ends when the registry is closed."""
        self._registry.on_session_lost = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _register(self) -> None:
        first = self._endpoints[0]
        node = tree.BrokerIdNode(
            endpoints=list(map(str, self._endpoints)),
            host=first.host,
            port=first.port,
            timestamp=str(self._clock.now_ms()),
            rack=self._config["broker.rack"],
        )
        path = f"{tree.BROKERS}/{self._config.node_id}"
        patience_s = 2 * self._config["registry.session.timeout.ms"] / 1000
        await claim(path, lambda: self._registry.create(path, tree.dump(node), ephemeral=True), patience_s)

    def _lost(self) -> None:
        log.error("the session with the registry is lost; beginning a new one")
        self._controller.session_lost()
        self._is_lost = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._join_again())

    async def _join_again(self) -> None:
        pause_s = FIRST_PAUSE_S
        while self._is_lost:
            self._is_lost = False
            try:
                await self._registry.close()
                await self._registry.start()
                await self._register()
                await self._controller.resume()
            except Exception as error:
                self._is_lost = True
                log.warning("no new session with the registry yet: %s", error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, MAX_PAUSE_S)
        log.info("a new session with the registry has begun; controller epoch %d", self._controller.epoch)
