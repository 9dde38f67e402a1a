"""Faults by a seed: one or two at a time, each with an end."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tests.chaos.cluster import HostedCluster
from tests.chaos.network import Network
from tests.zookeeper import ZookeeperServer


class Nemesis:
    """Breaks something, waits, repairs it, waits; says what it does."""

    def __init__(
        self,
        cluster: HostedCluster,
        network: Network,
        servers: Sequence[ZookeeperServer],
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._network = network
        self._servers = servers
        self._random = random.Random(seed)
        self._say = say
        self.faults: Counter[str] = Counter()
        self._kinds: list[Callable[[int], Callable[[], None]]] = [
            self._kill,
            self._kill,
            self._pause,
            self._partition,
            self._isolate,
            self._one_way,
        ]
        if servers:
            self._kinds += [self._kill_server, self._pause_server]

    def run(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        brokers = sorted(self._cluster.members)
        while time.monotonic() < deadline:
            chosen = self._random.sample(brokers, self._random.choice((1, 1, 2)))
            repairs = [self._random.choice(self._kinds)(broker) for broker in chosen]
            time.sleep(self._random.uniform(0.2, 6))
            for repair in repairs:
                repair()
            self.start_ended()
            time.sleep(self._random.uniform(0.2, 4))

    def start_ended(self) -> None:
        """Do what a supervisor does: a broker that finds no registry when it starts says so and ends."""
        for broker, member in self._cluster.members.items():
            if not member.is_running:
                self._say(f"broker {broker} is started again")
                self._cluster.start_broker(broker, is_awaited=False)

    def heal(self) -> None:
        """Repair everything, whatever was broken."""
        self._network.mend_all()
        for server in self._servers:
            if server.is_running:
                server.signal(signal.SIGCONT)
            else:
                server.launch()
        for broker, member in self._cluster.members.items():
            if member.is_running:
                member.resume()
            else:
                self._cluster.start_broker(broker, is_awaited=False)

    def _noted(self, kind: str, what: str) -> None:
        self.faults[kind] += 1
        self._say(what)

    def _kill(self, broker: int) -> Callable[[], None]:
        self._noted("kill", f"kill -9 of broker {broker}")
        self._cluster[broker].kill()

        def repair() -> None:
            if not self._cluster[broker].is_running:
                self._cluster.start_broker(broker, is_awaited=False)

        return repair

    def _pause(self, broker: int) -> Callable[[], None]:
        member = self._cluster[broker]
        if not member.is_running:
            return lambda: None
        self._noted("pause", f"SIGSTOP of broker {broker}")
        member.pause()
        return lambda: member.resume() if member.is_running else None

    def _partition(self, broker: int) -> Callable[[], None]:
        other = self._random.choice([one for one in self._cluster.members if one != broker])
        self._noted("partition", f"brokers {broker} and {other} are cut off from each other")
        return self._cut([(broker, other), (other, broker)])

    def _isolate(self, broker: int) -> Callable[[], None]:
        self._noted("isolation", f"broker {broker} is cut off from all others")
        others = [one for one in self._cluster.members if one != broker]
        return self._cut([pair for other in others for pair in ((broker, other), (other, broker))])

    def _one_way(self, broker: int) -> Callable[[], None]:
        other = self._random.choice([one for one in self._cluster.members if one != broker])
        self._noted("one way", f"nothing of broker {broker} reaches broker {other}")
        return self._cut([(broker, other)])

    def _cut(self, pairs: list[tuple[int, int]]) -> Callable[[], None]:
        for source, target in pairs:
            self._network.cut(source, target)

        def repair() -> None:
            for source, target in pairs:
                self._network.mend(source, target)

        return repair

    def _kill_server(self, number: int) -> Callable[[], None]:
        server = self._servers[(number - 1) % len(self._servers)]
        self._noted("server kill", f"kill -9 of ZooKeeper server {number}")
        server.kill()
        return lambda: None if server.is_running else server.launch()

    def _pause_server(self, number: int) -> Callable[[], None]:
        server = self._servers[(number - 1) % len(self._servers)]
        if not server.is_running:
            return lambda: None
        self._noted("server pause", f"SIGSTOP of ZooKeeper server {number}")
        server.signal(signal.SIGSTOP)
        return lambda: server.signal(signal.SIGCONT) if server.is_running else None
