"""The machine on which the broker under simulation runs, is killed, and is started again."""

from __future__ import annotations

import asyncio
from collections import Counter

from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.errors import KafkaStorageError
from millstream.registry.memory import MemoryRegistry, MemoryTree
from millstream.storage.store import NoLogDir
from tests.simulation.history import History, Loss
from tests.simulation.host import Host, Process, ProcessDied
from tests.simulation.image import survived_end
from tests.simulation.world import World

PORT = 9092
LOG_DIRS = ("/data-1", "/data-2")
MAX_STARTS = 30


class BrokerMachine:
    """A host with a broker, and what its disk must still hold after each fault."""

    def __init__(
        self,
        world: World,
        host: Host,
        history: History,
        topic: str,
        partitions: int,
        log_dirs: int,
        settings: dict[str, str],
    ) -> None:
        self.world = world
        self.host = host
        self.faults: Counter[str] = Counter()
        self.broker: Broker | None = None
        self.survived: dict[int, int] = {}
        """Up to where each log lay on the disk when the last process ended: none of it may be gone."""
        self._history = history
        self._topic = topic
        self._partitions = partitions
        self._registry_tree = MemoryTree()
        self._registry: MemoryRegistry | None = None
        self.log_dirs = LOG_DIRS[:log_dirs]
        self._settings = {
            "node.id": "1",
            "listeners": f"PLAINTEXT://{host.name}:{PORT}",
            "log.dirs": ",".join(LOG_DIRS[:log_dirs]),
            **settings,
        }
        host.on_death = self._died

    @property
    def process(self) -> Process | None:
        return self.host.process

    # Starting and ending

    async def boot(self) -> None:
        """Start the broker; one that dies on the way is started again."""
        for _ in range(MAX_STARTS):
            process = self.host.start()
            try:
                await process.call(self._start(process))
                return
            except ProcessDied:
                self.faults["killed while starting"] += 1
            except (OSError, KafkaStorageError, NoLogDir) as error:
                if not self.host.disk.is_faulty():
                    raise
                self.world.log(f"{self.host.name} does not start: {error}")
                self.host.end()
                self.host.disk.mend()
            await asyncio.sleep(self.world.random.uniform(0.0, 1.0))
        raise AssertionError(f"{self.host.name} did not start in {MAX_STARTS} times")

    async def _start(self, process: Process) -> None:
        registry = self._registry = MemoryRegistry(self._registry_tree)
        broker = Broker(
            BrokerConfig(self._settings),
            registry=registry,
            disk=process.disk,
            clock=process.clock,
            random=process.random,
        )
        await broker.start()
        self._check_recovered(broker)
        self.broker = broker

    def _check_recovered(self, broker: Broker) -> None:
        """Recovery kept all that the disk held."""
        for partition, survived in self.survived.items():
            held = broker.replicas.topic(self._topic)[partition]
            if held.failure is not None and self.host.disk.is_faulty():
                continue
            end = held.log.end_offset
            if end < survived:
                text = f"recovery of {self._topic}-{partition} dropped records: {survived} became {end}"
                self._history.complaints.append(text)

    async def stop(self) -> None:
        """End the broker as an operator does."""
        process, broker = self.process, self.broker
        if process is None or broker is None:
            return
        try:
            await process.call(broker.stop())
        except ProcessDied:
            return
        self.host.end()

    def crash(self) -> None:
        if self.process is not None:
            self.host.crash()

    def power_loss(self) -> None:
        self.host.power_loss()
        self._note_survivors()
        self._history.losses.append(Loss(self.world.now, dict(self.survived)))

    def _died(self) -> None:
        self.broker = None
        if self._registry is not None:
            self._registry_tree.expire(self._registry.session_id)
        self._note_survivors()

    def _note_survivors(self) -> None:
        for partition in range(self._partitions):
            end = survived_end(self.host.disk, LOG_DIRS, self._topic, partition)
            self.survived[partition] = end
