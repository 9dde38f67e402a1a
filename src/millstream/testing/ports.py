"""Ports for brokers that start later, or again: nobody else is given them meanwhile.

A port that the system chose (port 0) is ours only while it is bound. Once let go, the system may give it to
another listener, or have a connection go out from it, before the broker takes it, or a broker that was killed
takes it back. So these ports lie below those that systems give away, and each process has a block of them
for itself: it holds the block's first port bound, without listening, until it ends.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from contextlib import closing

LOWEST, HIGHEST = 20_000, 32_000
BLOCK = 300

_lock = threading.Lock()
_block: Block | None = None


def free_port() -> int:
    """A port of the loopback address that nobody listens on, and that no other process is given here."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of so many such ports in a row."""
    global _block
    with _lock:
        if _block is None or _block.process != os.getpid():  # a forked process needs one of its own
            _block = Block()
        return _block.take(count)


class Block:
    """The ports of one process, given out in turn; those of long ago come again after the last."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._first = _hold_one() + 1
        self._given = 0

    def take(self, count: int) -> int:
        for _ in range(BLOCK):
            if self._given + count > BLOCK - 1:
                self._given = 0
            port = self._first + self._given
            self._given += 1
            if all(map(_is_free, range(port, port + count))):
                self._given += count - 1
                return port
        raise RuntimeError(f"there are no {count} free ports in a row")


def _hold_one() -> int:
    """The first port of a block that no other process has; bound until this process ends."""
    starts = list(range(LOWEST, HIGHEST - BLOCK + 1, BLOCK))
    random.shuffle(starts)
    for port in starts:
        with closing(socket.socket()) as guard:
            try:
                guard.bind(("127.0.0.1", port))
            except OSError:
                continue
            guard.detach()  # nobody closes it but the system
            return port
    raise RuntimeError("every block of ports has a process already")


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
