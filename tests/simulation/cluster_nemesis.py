"""What befalls the brokers of a cluster: faults chosen and timed by the seed, also several at a time.

Where acknowledgements do not mean fsynced, one broker at most may lose its unflushed records before all is
well again; else any number of them may, at any time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from random import Random

from tests.simulation.damage import damage
from tests.simulation.network import Network
from tests.simulation.node import Node
from tests.simulation.registry import REGISTRY_HOST
from tests.simulation.transport import Link
from tests.simulation.world import World

DAMAGE_S = 120.0
"""How long a damaged record may take to be copied anew, while other things happen too."""

Fault = Callable[[Node], Awaitable[None]]


class ClusterNemesis:
    """Inflicts faults until the time is over, then makes everything good again."""

    def __init__(
        self,
        world: World,
        network: Network,
        nodes: list[Node],
        clients: Callable[[], Iterable[str]],
        faults: Counter[str],
        is_whole: Callable[[], bool],
        *,
        is_flushed: bool,
        loses_disks: bool = False,
        favourite: str = "",
    ) -> None:
        """`is_whole`: all replicas of all partitions are in sync. `favourite` comes ten times as often."""
        self.world = world
        self.network = network
        self.nodes = nodes
        self.counts = faults
        self._clients = clients
        self._is_whole = is_whole
        self._is_flushed = is_flushed
        self._is_hurt = False
        self._losing = 0
        """How many brokers are about to lose unflushed records, or have damaged ones."""
        self._is_damaged = False
        self._random = Random(world.random.getrandbits(64))
        self._faults: dict[Fault, int] = {
            self.kill: 4,
            self.kill_inside_a_disk_call: 2,
            self.power_loss: 4,
            self.clean_restart: 3,
            self.pause: 3,
            self.cut_off: 3,
            self.part_two: 3,
            self.split: 3,
            self.cut_off_from_the_registry: 2,
            self.cut_off_from_clients: 1,
            self.lose_connections: 2,
            self.lose_session: 2,
            self.delay: 2,
            self.slow_disk: 1,
            self.full_disk: 2,
            self.failing_reads: 1,
            self.failed_fsync: 1,
            self.damage: 1,
            self.clock_jump: 1,
            self.kill_all: 1,
            self.kill_beside_a_cut: 2,
            self.power_loss_unheard: 1,
        }
        if is_flushed:
            self._faults[self.power_loss_of_all] = 1
        if loses_disks:
            self._faults[self.lose_disk] = 3
            self._faults[self.lose_disk_unheard] = 2
        if favourite:
            self._faults[getattr(self, favourite)] *= 10

    async def run(self, duration_s: float) -> None:
        random = self._random
        kinds, weights = list(self._faults), list(self._faults.values())
        working: list[asyncio.Task[None]] = []
        while self.world.now < duration_s:
            await asyncio.sleep(random.choice((0.3, 2.0, 6.0)) * random.random())
            if self._is_hurt and not self._losing and self._is_whole():
                self._is_hurt = False
            (fault,) = random.choices(kinds, weights)
            node = self._choose()
            if self._is_forbidden(fault):
                continue
            name = fault.__name__.replace("_", " ")
            self.counts[name] += 1
            self.world.log(f"fault: {name} ({node.name})")
            task = asyncio.ensure_future(fault(node))
            working.append(task)
            if random.random() < 0.7:
                await task
        await asyncio.gather(*working)
        self.network.heal()
        self._hurry()
        for node in self.nodes:
            node.host.disk.mend()
            node.host.disk.kill_after = 0
            node.down_until = 0.0
        self.world.log("the faults are over")

    def _is_forbidden(self, fault: Fault) -> bool:
        """What was acknowledged without being flushed is on two disks at least; a third may be killed.

        One disk may be lost whole, flushed or not, while all the others are well.
        """
        if fault in (self.lose_disk, self.lose_disk_unheard):
            if self._is_damaged or self._is_hurt or not self._is_whole():
                return True
            self._is_hurt = True
            return False
        if fault == self.damage and (self._is_damaged or self._is_hurt or not self._is_whole()):
            return True
        if self._is_flushed:
            return False
        if fault == self.damage:
            self._is_hurt = True
            return False
        if fault in (self.power_loss, self.power_loss_unheard, self.failed_fsync):
            if self._is_hurt:
                return True
            self._is_hurt = True
            return False
        deadly = (
            self.kill,
            self.kill_inside_a_disk_call,
            self.kill_all,
            self.kill_beside_a_cut,
            self.failing_reads,
        )
        return self._is_hurt and fault in deadly

    def _choose(self) -> Node:
        """Mostly the controller, or any one."""
        if self._random.random() < 0.3 and (controller := self._controller()) is not None:
            return controller
        return self._random.choice(self.nodes)

    def _controller(self) -> Node | None:
        for node in self.nodes:
            if node.broker is not None and node.broker.controller.is_active:
                return node
        return None

    async def _wait(self, low_s: float, high_s: float) -> None:
        await asyncio.sleep(self._random.uniform(low_s, high_s))

    def _down_s(self) -> float:
        return self._random.choice((0.0, 0.5, 3.0, 15.0)) * self._random.random()

    # Deaths

    async def kill(self, node: Node) -> None:
        self._kill(node)

    def _kill(self, node: Node) -> None:
        """Kill it, unless another one has lost power since: that would be one too many."""
        if self._is_flushed or not self._is_hurt:
            node.kill(self._down_s())

    async def kill_inside_a_disk_call(self, node: Node) -> None:
        node.host.disk.kill_after = self._random.randint(1, 60)
        await self._wait(0.5, 3.0)
        node.host.disk.kill_after = 0

    async def kill_all(self, _: Node) -> None:
        for node in self.nodes:
            self._kill(node)
            await self._wait(0.0, 0.3)

    async def power_loss(self, node: Node) -> None:
        for each in self.nodes:
            each.host.disk.kill_after = 0
        node.power_loss(self._down_s())

    async def power_loss_of_all(self, _: Node) -> None:
        for node in self.nodes:
            node.power_loss(self._down_s())

    async def power_loss_unheard(self, node: Node) -> None:
        await self._unheard(node, node.power_loss)

    async def _unheard(self, node: Node, lose: Callable[[float], None]) -> None:
        """A broker comes back, catches up and loses something, unheard by the controller."""
        self._losing += 1
        await node.stop(0.0)
        deaf = self._controller() or self._random.choice(self.nodes)
        for other in self.nodes:
            if other not in (node, deaf):
                self.network.block(other.name, deaf.name)
        await self._wait(0.2, 2.0)
        for each in self.nodes:
            each.host.disk.kill_after = 0
        lose(0.0)
        links = self._links(node)
        for link in links:
            link.slowness = 100.0  # so that it takes some time until it has caught up again
        await self._wait(0.2, 2.0)
        self.network.heal()
        await self._wait(0.5, 1.0)
        for link in links:
            link.slowness = 1.0
        self._losing -= 1

    async def lose_disk(self, node: Node) -> None:
        for each in self.nodes:
            each.host.disk.kill_after = 0
        node.lose_disk(self._down_s())

    async def lose_disk_unheard(self, node: Node) -> None:
        await self._unheard(node, node.lose_disk)

    async def clean_restart(self, node: Node) -> None:
        await node.stop(self._down_s())

    async def kill_beside_a_cut(self, node: Node) -> None:
        """A broker is cut off from the others; they go on without it, and one of them dies."""
        others = [other for other in self.nodes if other is not node]
        for other in others:
            self.network.block(node.name, other.name)
            self.network.block(other.name, node.name)
        await self._wait(1.0, 6.0)
        self._kill(self._random.choice(others))
        await self._wait(0.0, 3.0)
        self.network.heal()

    # The network

    async def cut_off(self, node: Node) -> None:
        """A broker is cut off from the others, both ways or one way."""
        way = self._random.choice(("there", "back", "both"))
        others = [other.name for other in self.nodes if other is not node]
        if self._random.random() < 0.3:
            others = [self._random.choice(others)]
        for other in others:
            if way != "back":
                self.network.block(node.name, other)
            if way != "there":
                self.network.block(other, node.name)
        await self._wait(0.2, 12.0)
        self.network.heal()

    async def part_two(self, _: Node) -> None:
        """Two brokers hear nothing of each other; the controller hears of both, and they of it."""
        others = [node for node in self.nodes if node is not self._controller()]
        one, another = self._random.sample(others, 2)
        self.network.block(one.name, another.name)
        self.network.block(another.name, one.name)
        await self._wait(2.0, 12.0)
        self.network.heal()

    async def split(self, node: Node) -> None:
        """A broker, with some clients, is on one side; the rest, with the registry or not, on the other."""
        clients = list(self._clients())
        near = {node.name, *self._random.sample(clients, len(clients) // 2)}
        if self._random.random() < 0.3:
            near.add(REGISTRY_HOST)
        far = {each.name for each in self.nodes} | set(clients) | {REGISTRY_HOST}
        for one in sorted(near):
            for other in sorted(far - near):
                self.network.block(one, other)
                self.network.block(other, one)
        await self._wait(0.5, 10.0)
        self.network.heal()

    async def cut_off_from_the_registry(self, node: Node) -> None:
        self.network.block(node.name, REGISTRY_HOST)
        self.network.block(REGISTRY_HOST, node.name)
        await self._wait(0.5, 12.0)
        self.network.heal()

    async def cut_off_from_clients(self, node: Node) -> None:
        """Answers to clients are lost, and what they ask for is done."""
        for client in self._clients():
            self.network.block(node.name, client)
        await self._wait(0.2, 4.0)
        self.network.heal()

    async def lose_connections(self, node: Node) -> None:
        process = node.process
        if process is not None:
            for transport in list(process.loop.transports):
                if self._random.random() < 0.5:
                    self.network.reset(transport)

    async def delay(self, node: Node) -> None:
        """Everything from and to a broker takes far longer."""
        slowness = self._random.choice((20.0, 300.0))
        links = self._links(node)
        for link in links:
            link.slowness = slowness
        await self._wait(0.5, 6.0)
        for link in links:
            link.slowness = 1.0

    def _links(self, node: Node) -> list[Link]:
        """To the other brokers and back."""
        return self.network.links_of(node.name, [other.name for other in self.nodes])

    def _hurry(self) -> None:
        for one in self.nodes:
            for other in self.nodes:
                self.network.link(one.name, other.name).slowness = 1.0

    # The process and its machine

    async def pause(self, node: Node) -> None:
        if node.process is not None:
            node.process.loop.pause(self._random.choice((1.0, 4.0, 12.0)) * self._random.random())

    async def lose_session(self, node: Node) -> None:
        if node.registry is not None:
            node.registry.expire()

    async def clock_jump(self, node: Node) -> None:
        clock = node.host.clock
        clock.jump(self._random.randint(-1_500_000, 1_500_000) - clock.offset_ms)

    async def slow_disk(self, node: Node) -> None:
        node.host.disk.slowness = self._random.uniform(5.0, 100.0)
        await self._wait(0.5, 5.0)
        node.host.disk.slowness = 1.0

    async def full_disk(self, node: Node) -> None:
        """Nothing more can be written for a while; what waits for room goes on afterwards."""
        disk = node.host.disk
        disk.capacity_bytes = disk.used_bytes + self._random.randint(0, 50_000)
        await self._wait(0.5, 6.0)
        disk.mend()

    async def failing_reads(self, node: Node) -> None:
        """Its log dir may fail, and serves again when the broker was started anew."""
        disk = node.host.disk
        disk.read_error_probability = self._random.choice((0.01, 0.2, 1.0))
        await self._wait(0.2, 2.0)
        disk.mend()
        if self._is_flushed or not self._is_hurt:
            node.kill(self._down_s())
        else:
            await node.stop(self._down_s())

    async def damage(self, node: Node) -> None:
        """A record changes on one disk, and is read there sooner or later."""
        self._losing += 1
        self._is_damaged = True
        found = damage(node, self._random)
        if found is not None:
            self.world.log(f"damage: {found}")
            self.counts["damaged records"] += 1
            give_up = self.world.now + DAMAGE_S
            while found.is_there and self.world.now < give_up:
                await self._wait(0.0, 3.0)
                await found.meet(node)
        self._is_damaged = False
        self._losing -= 1

    async def failed_fsync(self, node: Node) -> None:
        """After a failed fsync only a new start of the machine tells what is really on the disk."""
        disk = node.host.disk
        self._losing += 1
        disk.fsync_error_probability = self._random.choice((0.05, 1.0))
        await self._wait(0.5, 4.0)
        await self.power_loss(node)
        disk.mend()
        self._losing -= 1
