"""The ports that brokers of tests are given: free, and nobody else's."""

from __future__ import annotations

import socket
import subprocess
import sys

from millstream.testing.ports import BLOCK, HIGHEST, LOWEST, Block, free_port

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
    block = Block()
    given = [block.take(1) for _ in range(2 * BLOCK)]
    assert len(set(given[: BLOCK // 2])) == BLOCK // 2
    assert set(given[BLOCK:]) == set(given)
    assert LOWEST < min(given) < max(given) < HIGHEST


def test_who_listens_keeps_a_port() -> None:
    block = Block()
    first = block.take(3)
    with socket.create_server(("127.0.0.1", first + 1)):
        starts = [block.take(2) for _ in range(2 * BLOCK)]
    given = {*starts, *(start + 1 for start in starts)}
    assert first + 1 not in given
    assert {first, first + 2} & given == {first + 2}
