"""Hosts in network namespaces of this machine, all on one bridge, that can be cut off from each other.

A cut is silent, as a broken network is: packets to the other host are sent to an address on the link that
nobody has. It is one way; two make a partition. Needs root.
"""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Self

NOWHERE = "02:de:ad:00:00:01"
DEVICE = "eth0"


def run(*words: str, must: bool = True) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if must and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """`count` hosts, numbered from 1; host N has the address 10.77.SUBNET.N, this process .254."""

    def __init__(self, count: int, subnet: int = 7) -> None:
        self._numbers = range(1, count + 1)
        self._subnet = subnet
        self._bridge = f"msbr{subnet}"
        self._cuts: set[tuple[int, int]] = set()

    def address(self, number: int) -> str:
        return f"10.77.{self._subnet}.{number}"

    def namespace(self, number: int) -> str:
        return f"ms{self._subnet}-{number}"

    def inside(self, number: int) -> list[str]:
        """What a command begins with that is to run on a host."""
        return ["ip", "netns", "exec", self.namespace(number)]

    def __enter__(self) -> Self:
        self._remove()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _make(self) -> None:
        run("link", "add", self._bridge, "type", "bridge")
        run("addr", "add", f"{self.address(254)}/24", "dev", self._bridge)
        run("link", "set", self._bridge, "up")
        for number in self._numbers:
            name, outer = self.namespace(number), f"msv{self._subnet}-{number}"
            run("netns", "add", name)
            run("link", "add", outer, "type", "veth", "peer", "name", DEVICE, "netns", name)
            run("link", "set", outer, "master", self._bridge, "up")
            run("-n", name, "link", "set", "lo", "up")
            run("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", DEVICE)
            run("-n", name, "link", "set", DEVICE, "up")

    def _remove(self) -> None:
        for number in self._numbers:
            run("link", "del", f"msv{self._subnet}-{number}", must=False)
            run("netns", "del", self.namespace(number), must=False)
        run("link", "del", self._bridge, must=False)
        self._cuts.clear()

    def cut(self, source: int, target: int) -> None:
        """Nothing that `source` sends reaches `target` any more."""
        address = self.address(target)
        words = ("neigh", "replace", address, "lladdr", NOWHERE, "dev", DEVICE, "nud", "permanent")
        run("-n", self.namespace(source), *words)
        self._cuts.add((source, target))

    def mend(self, source: int, target: int) -> None:
        run("-n", self.namespace(source), "neigh", "del", self.address(target), "dev", DEVICE, must=False)
        self._cuts.discard((source, target))

    def mend_all(self) -> None:
        for source, target in list(self._cuts):
            self.mend(source, target)
