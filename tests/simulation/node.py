"""One broker of the cluster under simulation: its machine, its process, and who starts it again."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.errors import KafkaError
from millstream.registry.contract import RegistryError
from millstream.registry.memory import MemoryTree
from millstream.storage.store import NoLogDir
from tests.simulation.host import Host, Process, ProcessDied
from tests.simulation.network import Network
from tests.simulation.registry import SimRegistry
from tests.simulation.world import World

PORT = 9092
START_S = 120.0


class Node:
    """A host with a broker. While it is watched over, a broker that ended is started again."""

    def __init__(
        self,
        world: World,
        network: Network,
        tree: MemoryTree,
        number: int,
        settings: dict[str, str],
        *,
        session_ms: int,
        sees_death: bool,
        knows_boots: bool,
        faults: Counter[str],
    ) -> None:
        """`knows_boots` says whether the broker can tell a kill from a power loss, as on Linux it can."""
        self.world = world
        self.number = number
        self.name = f"broker-{number}"
        self.host = Host(world, network, self.name)
        self.host.on_death = self._died
        self.broker: Broker | None = None
        self.registry: SimRegistry | None = None
        self.starts = 0
        self.down_until = 0.0
        """When it may be started again."""
        self.is_over = False
        self._is_starting = False
        self._tree = tree
        self._session_ms = session_ms
        self._sees_death = sees_death
        self._knows_boots = knows_boots
        self._faults = faults
        self._random = Random(world.random.getrandbits(64))
        self._settings = {
            "node.id": str(number),
            "listeners": f"PLAINTEXT://{self.name}:{PORT}",
            "log.dirs": "/data",
            "registry.session.timeout.ms": str(session_ms),
            **settings,
        }

    @property
    def process(self) -> Process | None:
        return self.host.process

    @property
    def is_serving(self) -> bool:
        return self.broker is not None

    async def watch_over(self) -> None:
        """Start the broker, and start it again whenever it has ended."""
        while not self.is_over:
            if self.process is None and self.world.now >= self.down_until:
                await self._start()
            await asyncio.sleep(0.05)

    async def _start(self) -> None:
        process = self.host.start()
        self.starts += 1
        self._is_starting = True
        try:
            async with asyncio.timeout(START_S):
                await process.call(self._run(process))
        except ProcessDied:
            self._faults["killed while starting"] += 1
        except (OSError, KafkaError, NoLogDir, RegistryError) as error:
            self.world.log(f"{self.name} does not start: {error!r}")
            if self.process is process:
                self.host.end()
            self.down_until = self.world.now + self._random.uniform(0.1, 1.0)
        except AssertionError as error:
            self.world.fail(f"{self.name}: {error}")
        finally:
            self._is_starting = False

    async def _run(self, process: Process) -> None:
        registry = self.registry = SimRegistry(
            self._tree, process, self._session_ms, sees_death=self._sees_death
        )
        broker = Broker(
            BrokerConfig(self._settings),
            registry=registry,
            disk=process.disk,
            clock=process.clock,
            random=process.random,
            boot_id=self.host.boot_id if self._knows_boots else "",
        )
        await broker.start()
        assert not any(folder.is_outdated for folder in broker.store.dirs), "nobody put back an older copy"
        assert not broker.store.missed, "nobody took a folder away"
        self.broker = broker
        self.world.log(f"{self.name} serves")

    # Ends

    def kill(self, down_s: float) -> None:
        self.down_until = self.world.now + down_s
        if self.process is not None:
            self.host.crash()

    def power_loss(self, down_s: float) -> None:
        self.down_until = self.world.now + down_s
        self.host.power_loss()

    def lose_disk(self, down_s: float) -> None:
        """The machine comes back with an empty disk."""
        self.power_loss(down_s)
        self.host.disk.clear()

    async def stop(self, down_s: float) -> None:
        """End the broker as an operator does."""
        process, broker = self.process, self.broker
        if process is None or broker is None:
            return
        self.down_until = self.world.now + down_s + 1000.0
        self.broker = None
        try:
            await process.call(broker.stop())
        except ProcessDied:
            return
        finally:
            self.down_until = self.world.now + down_s
        if self.process is process:
            self.host.end()

    def _died(self) -> None:
        self.broker = None
        if self.registry is not None:
            self.registry.died()
