"""One simulated machine: its name on the network, its disk, its clock, and the process that runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

from tests.simulation.disk import Mount, SimDisk
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network
from tests.simulation.world import World

EPOCH_MS = 1_750_000_000_000
"""Wall time at the start of every simulation."""


class ProcessDied(Exception):
    """The process that was asked to do something was killed before it was done."""


class SimClock:
    """A machine's clock: wall time may jump, monotonic time is the world's own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.offset_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + self.offset_ms + int(self._world.now * 1000)

    def monotonic(self) -> float:
        return self._world.now

    def jump(self, by_ms: int) -> None:
        self.offset_ms += by_ms


class Process:
    """A running program: its loop, its view of the disk, its clock and its own random numbers."""

    def __init__(self, host: Host, generation: int) -> None:
        self.host = host
        self.generation = generation
        self.loop = SimLoop(host.world, host.name, host.network)
        self.disk: Mount = host.disk.mount()
        self.clock = host.clock
        self.random = Random(host.world.random.getrandbits(64))
        self._at_death: dict[Callable[[], object], None] = {}

    def start(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(main)

    async def call(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in this process for another one; ProcessDied if it is killed meanwhile."""
        caller = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = caller.create_future()
        task = self.start(main)

        def deliver() -> None:
            if answer.done():
                return
            if task.cancelled():
                answer.cancel()
            elif (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        def died() -> None:
            if not answer.done():
                answer.set_exception(ProcessDied(self.host.name))

        task.add_done_callback(lambda _: caller.call_soon_threadsafe(deliver))
        at_death = partial(caller.call_soon_threadsafe, died)
        self._at_death[at_death] = None
        try:
            return await answer
        finally:
            self._at_death.pop(at_death, None)

    def die(self) -> None:
        self.loop.kill()
        for tell in list(self._at_death):
            tell()

    @property
    def is_dead(self) -> bool:
        return self.loop.is_dead


class Host:
    """A machine on which one process at a time runs, dies and is started again."""

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.clock = SimClock(world)
        self.disk = SimDisk(world, self.clock.now_ms)
        self.disk.on_kill = self._killed_by_disk
        self.process: Process | None = None
        self.on_death: Callable[[], None] = lambda: None
        self._generations = 0
        self._boots = 1

    @property
    def boot_id(self) -> str:
        """Another one after every power loss."""
        return f"{self.name}-boot-{self._boots}"

    def start(self) -> Process:
        """A new process, with nothing running in it yet."""
        if self.process is not None:
            raise RuntimeError(f"a process runs on {self.name} already")
        self._generations += 1
        self.network.power_on(self.name)
        self.world.log(f"{self.name} starts process {self._generations}")
        self.process = Process(self, self._generations)
        return self.process

    def crash(self) -> None:
        """kill -9: the process stops between two of its steps; every byte it wrote stays."""
        self.world.log(f"{self.name} is killed")
        self._die(is_power_loss=False)

    def power_loss(self) -> None:
        """The machine stops, and its unflushed bytes are torn."""
        self.world.log(f"{self.name} loses power")
        self._die(is_power_loss=True)
        self._boots += 1
        self.network.power_off(self.name)
        self.disk.power_loss(self.world.random)

    def end(self) -> None:
        """The process has ended by itself, after whatever it did to end well."""
        self.world.log(f"{self.name} ends its process")
        self._die(is_power_loss=False)

    def _killed_by_disk(self) -> None:
        self.world.log(f"{self.name} is killed inside a disk call")
        self._die(is_power_loss=False)

    def _die(self, *, is_power_loss: bool) -> None:
        process, self.process = self.process, None
        self.disk.crash()
        if process is not None:
            process.die()
            self.network.drop_process(process.loop, is_power_loss=is_power_loss)
            self.on_death()
