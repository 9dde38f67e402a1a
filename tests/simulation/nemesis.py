"""What befalls the broker: faults one after another, chosen and timed by the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random

from tests.simulation.machine import BrokerMachine
from tests.simulation.network import Network
from tests.simulation.world import World

Fault = Callable[[], Awaitable[None]]

POWER_FAULTS = (
    "power_loss",
    "power_loss_soon_after_a_kill",
    "power_loss_while_recovering",
    "failed_fsync",
)
"""What may cost records that were acknowledged without being flushed."""


class Nemesis:
    """Inflicts faults until the time is over, then makes everything good again."""

    def __init__(
        self,
        world: World,
        network: Network,
        machine: BrokerMachine,
        clients: list[str],
        favourite: str = "",
        avoided: Iterable[str] = (),
    ) -> None:
        """`favourite` is a fault that comes ten times as often as it would; those `avoided` never come."""
        self.world = world
        self.network = network
        self.machine = machine
        self._clients = clients
        self._random = Random(world.random.getrandbits(64))
        self._faults: dict[Fault, int] = {
            self.kill: 2,
            self.kill_inside_a_disk_call: 3,
            self.kill_again_while_recovering: 2,
            self.kill_before_answers_arrive: 2,
            self.power_loss: 3,
            self.power_loss_soon_after_a_kill: 2,
            self.power_loss_while_recovering: 1,
            self.clean_restart: 1,
            self.clean_stop_then_power_loss: 1,
            self.lose_connections: 2,
            self.partition: 2,
            self.pause: 1,
            self.slow_disk: 1,
            self.full_disk: 2,
            self.failed_fsync: 1,
            self.failing_reads: 1,
            self.start_without_a_log_dir: 1,
            self.clock_jump: 1,
        }
        if favourite:
            self._faults[getattr(self, favourite)] *= 10
        for name in avoided:
            del self._faults[getattr(self, name)]

    async def run(self, duration_s: float) -> None:
        random = self._random
        names, weights = list(self._faults), list(self._faults.values())
        while self.world.now < duration_s:
            await asyncio.sleep(random.uniform(0.2, 5.0))
            (fault,) = random.choices(names, weights)
            name = fault.__name__.replace("_", " ")
            self.machine.faults[name] += 1
            self.world.log(f"fault: {name}")
            await fault()
            if self.machine.process is None:
                await self.machine.boot()
        self.network.heal()
        self.machine.host.disk.mend()
        self.world.log("the faults are over")

    async def _wait(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._random.uniform(low_s, high_s))

    # Deaths

    async def kill(self) -> None:
        self.machine.crash()
        await self._wait(0.0, 2.0)

    async def kill_inside_a_disk_call(self) -> None:
        disk = self.machine.host.disk
        disk.kill_after = self._random.randint(1, 60)
        for _ in range(40):
            await self._wait(0.0, 0.2)
            if self.machine.process is None:
                return
        self.machine.crash()

    async def kill_before_answers_arrive(self) -> None:
        """What was written is not known to be, by whoever sent it: it will be sent again."""
        for client in self._clients:
            self.network.block(self.machine.host.name, client)
        await self._wait(0.0, 1.5)
        self._reset_connections(1.0)
        self.network.heal()
        self.machine.crash()
        await self._wait(0.0, 0.5)

    async def kill_again_while_recovering(self) -> None:
        for _ in range(self._random.randint(1, 3)):
            self.machine.crash()
            await self._wait(0.0, 0.5)
            self.machine.host.disk.kill_after = self._random.randint(1, 150)
            await self.machine.boot()
        self.machine.host.disk.kill_after = 0

    async def power_loss(self) -> None:
        self.machine.power_loss()
        await self._wait(0.0, 3.0)

    async def power_loss_soon_after_a_kill(self) -> None:
        self.machine.crash()
        await self._wait(0.0, 0.3)
        await self.machine.boot()
        await self._wait(0.0, 0.4)
        await self.power_loss()

    async def power_loss_while_recovering(self) -> None:
        self.machine.crash()
        self.machine.host.disk.kill_after = self._random.randint(1, 150)
        await self.machine.boot()
        self.machine.host.disk.kill_after = 0
        await self.power_loss()

    async def clean_restart(self) -> None:
        await self.machine.stop()
        await self._wait(0.0, 1.0)

    async def clean_stop_then_power_loss(self) -> None:
        await self.machine.stop()
        await self.power_loss()

    # The network

    async def lose_connections(self) -> None:
        self._reset_connections(0.6)

    def _reset_connections(self, probability: float) -> None:
        process = self.machine.process
        if process is not None:
            for transport in list(process.loop.transports):
                if self._random.random() < probability:
                    self.network.reset(transport)

    async def partition(self) -> None:
        broker = self.machine.host.name
        for client in self._random.sample(self._clients, self._random.randint(1, len(self._clients))):
            way = self._random.choice(("there", "back", "both"))
            if way != "back":
                self.network.block(client, broker)
            if way != "there":
                self.network.block(broker, client)
        await self._wait(0.2, 12.0)
        self.network.heal()

    # The process and its machine

    async def pause(self) -> None:
        if self.machine.process is not None:
            seconds = self._random.uniform(0.2, 6.0)
            self.machine.process.loop.pause(seconds)
            await asyncio.sleep(seconds)

    async def clock_jump(self) -> None:
        clock = self.machine.host.clock
        clock.jump(self._random.randint(-1_500_000, 1_500_000) - clock.offset_ms)

    async def slow_disk(self) -> None:
        disk = self.machine.host.disk
        disk.slowness = self._random.uniform(5.0, 100.0)
        await self._wait(0.5, 4.0)
        disk.slowness = 1.0

    async def full_disk(self) -> None:
        disk = self.machine.host.disk
        disk.capacity_bytes = disk.used_bytes + self._random.randint(0, 20_000)
        await self._wait(0.5, 6.0)
        disk.mend()

    async def failed_fsync(self) -> None:
        """After a failed fsync only a new start of the machine tells what is really on the disk."""
        disk = self.machine.host.disk
        disk.fsync_error_probability = self._random.choice((0.05, 1.0))
        await self._wait(0.5, 4.0)
        await self.power_loss()
        disk.mend()

    async def start_without_a_log_dir(self) -> None:
        """One of the log dirs cannot be read at the start; its logs must wait for it, and nothing else."""
        self.machine.crash()
        disk = self.machine.host.disk
        disk.faulty_path = self._random.choice(self.machine.log_dirs)
        disk.read_error_probability = 1.0
        await self.machine.boot()
        await self._wait(0.1, 2.0)
        disk.mend()
        self.machine.crash()
        await self._wait(0.0, 0.5)

    async def failing_reads(self) -> None:
        disk = self.machine.host.disk
        disk.read_error_probability = self._random.choice((0.01, 0.2, 1.0))
        await self._wait(0.2, 2.0)
        disk.mend()
        self.machine.crash()
