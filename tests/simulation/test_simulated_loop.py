"""The simulated loop runs ordinary asyncio programs, in virtual time, the same way for the same seed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.simulation.host import Host
from tests.simulation.loop import SimLoop
from tests.simulation.network import Network
from tests.simulation.world import Deadlock, SimulationFailed, World


def test_time_is_virtual_and_sleeps_wake_in_order() -> None:
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(seconds)

    async def main() -> float:
        await asyncio.gather(*(sleeper(s) for s in (3600.0, 5.0, 1800.0)))
        return asyncio.get_running_loop().time()

    assert 3600.0 <= World(1).run(main(), limit_s=4000.0) < 3600.1
    assert woken == [5.0, 1800.0, 3600.0]


def test_asyncio_primitives_work() -> None:
    async def main() -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        event = asyncio.Event()
        seen: list[Any] = []

        async def consume() -> None:
            while (item := await queue.get()) >= 0:
                seen.append(item)
            event.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            for item in (1, 2, 3, -1):
                await queue.put(item)
        await event.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await asyncio.get_running_loop().create_future()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10.0), 1.0)
        lock = asyncio.Lock()
        async with lock:
            seen.append("locked")
        return seen

    assert World(2).run(main()) == [1, 2, 3, "locked"]


def test_threads_run_inline_without_a_loop_and_deliver_their_errors() -> None:
    def in_thread(value: int) -> int:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        if value < 0:
            raise ValueError("negative")
        return value * 2

    async def main() -> int:
        loop = asyncio.get_running_loop()
        before = loop.time()
        doubled = await asyncio.to_thread(in_thread, 4)
        assert loop.time() > before
        with pytest.raises(ValueError, match="negative"):
            await loop.run_in_executor(None, in_thread, -1)
        return doubled

    assert World(3).run(main()) == 8


def test_one_thread_keeps_its_order() -> None:
    async def main() -> list[int]:
        done: list[int] = []
        with ThreadPoolExecutor(1) as executor:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(executor, done.append, n) for n in range(20)))
        return done

    assert World(4).run(main()) == list(range(20))


def test_nothing_scheduled_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        World(5).run(main())


def test_endless_program_is_stopped() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationFailed, match="has not ended"):
        World(6).run(main(), limit_s=0.5)


def test_failure_of_a_background_task_fails_the_run() -> None:
    async def broken() -> None:
        raise LookupError("in the background")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(broken())
        await asyncio.sleep(1.0)
        assert task.done()

    with pytest.raises(SimulationFailed, match="in the background"):
        World(7).run(main())


def test_failure_of_a_callback_fails_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: [][1])
        await asyncio.sleep(1.0)

    with pytest.raises(SimulationFailed, match="IndexError"):
        World(8).run(main())


def test_killed_process_never_runs_again() -> None:
    """Not its tasks, timers, threads, nor the `finally` of what it was doing."""
    world = World(9)
    network = Network(world)
    host = Host(world, network, "a")
    steps: list[str] = []

    async def program() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, steps.append, "timer")
        loop.run_in_executor(None, steps.append, "thread")
        try:
            steps.append("started")
            await asyncio.sleep(2.0)
        finally:
            steps.append("finally")

    async def main() -> None:
        process = host.start()
        process.start(program())
        await asyncio.sleep(0.00001)
        while not steps:
            await asyncio.sleep(0.00001)
        host.crash()
        await asyncio.sleep(10.0)
        assert steps == ["started"]

    world.run(main())


def test_paused_process_wakes_late() -> None:
    world = World(10)
    host = Host(world, Network(world), "a")
    woken: list[float] = []

    async def program() -> None:
        await asyncio.sleep(1.0)
        woken.append(world.now)

    async def main() -> None:
        process = host.start()
        process.start(program())
        await asyncio.sleep(0.5)
        process.loop.pause(5.0)
        await asyncio.sleep(10.0)

    world.run(main())
    assert len(woken) == 1
    assert 5.5 <= woken[0] < 5.6


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class _Collect(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self.data = bytearray()
        self.lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray(100)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


def echo_run(seed: int) -> str:
    """Two clients echo through a server that is killed; gives the hash of what happened."""
    world = World(seed)
    network = Network(world)
    server, client = Host(world, network, "server"), Host(world, network, "client")

    async def serve() -> None:
        await asyncio.get_running_loop().create_server(_Echo, "server", 7000)

    async def use() -> None:
        loop = asyncio.get_running_loop()
        talks = [await loop.create_connection(_Collect, "server", 7000) for _ in range(2)]
        for number in range(200):
            for transport, _ in talks:
                transport.write(b"%d," % number)
            await asyncio.sleep(0.001)
        await asyncio.sleep(1.0)
        for _, protocol in talks:
            assert protocol.data == b"".join(b"%d," % n for n in range(200))
        server.crash()
        for _, protocol in talks:
            await protocol.lost

    async def main() -> None:
        await server.start().call(serve())
        await client.start().call(use())

    world.run(main())
    return world.trace.hash()


def test_equal_seed_equal_trace() -> None:
    assert echo_run(11) == echo_run(11)
    assert echo_run(11) != echo_run(12)


def test_hash_seed_of_the_interpreter_does_not_matter() -> None:
    program = "from tests.simulation.test_simulated_loop import echo_run; print(echo_run(13))"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert hashes == {echo_run(13) + "\n"}


def test_code_that_reaches_around_the_simulation_fails_the_run() -> None:
    from millstream.clock import SystemClock

    async def main() -> None:
        SystemClock().now_ms()
        await asyncio.sleep(1.0)

    with pytest.raises(SimulationFailed, match=r"millstream\.clock reached around"):
        World(14).run(main())


def test_what_never_came_to_run_ends_without_a_warning() -> None:
    """A process is killed before the first step of a task, which holds another coroutine."""
    world = World(1)
    dead = SimLoop(world, "dead")

    async def inner() -> None:
        pass

    async def outer(held: Coroutine[Any, Any, None]) -> None:
        await held

    async def main() -> None:
        dead.create_task(outer(inner()))
        dead.kill()

    world.run(main())
