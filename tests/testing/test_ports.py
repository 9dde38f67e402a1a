"""The ports that brokers of tests are given: free, and nobody else's."""

from __future__ import annotations

import socket
import subprocess
import sys

from millstream.testing.ports import BLOCK, HIGHEST, LOWEST, free_port, free_ports

FORKING = """
import os
from millstream.testing.ports import free_port
print(free_port(), flush=True)
if os.fork() == 0:
    print(free_port(), flush=True)
input()
"""


def block_of(port: int) -> int:
    return (port - LOWEST) // BLOCK


def test_each_process_has_ports_of_its_own() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        ports = [free_port(), int(other.stdout.readline()), int(other.stdout.readline())]
        other.communicate(b"\n\n", timeout=60)
    assert len(set(map(block_of, ports))) == 3


def test_ports_come_in_turn_and_again_after_the_last() -> None:
    given = {free_port() for _ in range(BLOCK - 1)}
    assert len(given) == BLOCK - 1
    assert LOWEST < min(given) < max(given) < HIGHEST
    assert free_port() in given


def test_who_listens_keeps_a_port() -> None:
    first = free_ports(3)
    with socket.create_server(("127.0.0.1", first + 3)):
        second = free_ports(2)
    assert first + 3 not in range(second, second + 2)
    assert block_of(first) == block_of(second)
