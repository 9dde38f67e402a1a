"""A client with many lives: it is killed, or replaced while it still runs, until it is told to end."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Protocol

from tests.simulation.host import Host, Process, ProcessDied
from tests.simulation.network import Network
from tests.simulation.world import World


class Program(Protocol):
    """What runs in one life."""

    is_over: bool
    is_replaced: bool

    async def run(self) -> None: ...


class Lives:
    """Runs one instance of a program after another. `make(name, process)` makes the next."""

    def __init__(
        self,
        world: World,
        network: Network,
        name: str,
        make: Callable[[str, Process], Program],
        hosts: list[Host],
        counts: Counter[str],
    ) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.make = make
        self.is_calm = False
        """Whether it may live on undisturbed."""
        self.is_over = False
        self._random = Random(world.random.getrandbits(64))
        self._hosts = hosts
        self._counts = counts

    async def run(self) -> None:
        """Live until it is over and the last instance has ended by itself."""
        number = 0
        while True:
            number += 1
            host = Host(self.world, self.network, f"{self.name}-{number}")
            self._hosts.append(host)
            process = host.start()
            program = self.make(host.name, process)
            life = asyncio.ensure_future(process.call(program.run()))
            life.add_done_callback(self._look_at)
            died_at = self.world.now + self._random.choice((3.0, 10.0, 20.0, 60.0)) * self._random.random()
            while not self.is_over and not life.done() and (self.is_calm or self.world.now < died_at):
                await asyncio.sleep(0.25)
            if self.is_over:
                program.is_over = True
                await life
                host.end()
                return
            if self._random.random() < 0.5:
                self._counts["client crashes"] += 1
                host.crash()
                try:
                    await life
                except ProcessDied:
                    pass
            else:
                self._counts["client zombies"] += 1
                self.world.log(f"{host.name} is replaced while it runs")
                program.is_replaced = True
                process.loop.pause(self._random.uniform(0.0, 6.0))

    def _look_at(self, life: asyncio.Future[None]) -> None:
        """A life may be ended by others, but it may not fail."""
        if not life.cancelled():
            error = life.exception()
            if error is not None and not isinstance(error, ProcessDied):
                text = "".join(traceback.format_exception(error))
                self.world.fail(f"{self.name} failed: {text}")
