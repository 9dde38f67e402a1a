"""A log dir that hangs, or fails, while clients use it: what lies in others goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path

from millstream.broker.server import Broker
from millstream.config.broker import BrokerConfig
from millstream.errors import KafkaStorageError
from millstream.protocol.compression import Codec
from millstream.protocol.messages import DescribeLogDirsRequest
from millstream.storage.os_disk import OsDisk, OsFile
from tests.processes import until
from tests.wire import (
    Wire,
    batch,
    create_topic,
    end_offset,
    fetch,
    fetch_partition,
    fetch_request,
    fetched,
    produce,
    produce_request,
    produced,
    values,
)

PARTITIONS = 12
THREADS = 2
MAX_TIMESTAMP = -3


class BadFile(OsFile):
    """A file that may be cold, and on a device that hangs or fails."""

    __slots__ = ()
    _disk: BadDisk

    def pread(self, size: int, offset: int, *, nowait: bool = False) -> memoryview:
        if self._disk.is_cold and nowait:
            raise BlockingIOError(errno.EAGAIN, "not in memory", self._path)
        if self._disk.is_cold:
            self._disk.reach(self._path)
        return super().pread(size, offset)

    def fsync(self) -> None:
        self._disk.reach(self._path)
        super().fsync()


class BadDisk(OsDisk):
    """A disk of which one folder hangs, or fails."""

    def __init__(self) -> None:
        super().__init__(max_open_files=200)
        self.bad_path = "nowhere"
        self.is_cold = self.fails = False
        self.goes_on = threading.Event()

    def reach(self, path: str) -> None:
        if path.startswith(self.bad_path):
            if self.fails:
                raise OSError(errno.EIO, "Input/output error", path)
            assert self.goes_on.wait(60)

    def open(self, path: str, *, create: bool = False) -> OsFile:
        return BadFile(self, path, create=create)


def run(tmp_path: Path, disk: BadDisk, use: Callable[[Broker, dict[str, list[int]]], None]) -> None:
    """Let `use`, a blocking client, work with a topic whose partitions lie in a good and a bad log dir."""
    config = BrokerConfig(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": f"{tmp_path}/good,{tmp_path}/bad",
            "log.flush.before.ack": "true",
            "log.dir.flush.threads": str(THREADS),
            "log.dir.read.threads": str(THREADS),
            "batch.check.threads": "1",
        }
    )

    def fill(broker: Broker) -> None:
        with Wire(f"127.0.0.1:{broker.port}") as wire:
            create_topic(wire, "t", PARTITIONS)
            for number in range(PARTITIONS):
                assert produce(wire, "t", batch([b"before"]), partition=number).error_code == 0

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as client:
            async with Broker(config, disk=disk) as broker:
                try:
                    await asyncio.wait_for(loop.run_in_executor(client, fill, broker), 50)
                    places: dict[str, list[int]] = {"good": [], "bad": []}
                    for number, partition in broker.replicas.topic("t").items():
                        places[Path(partition.log.dir_path).name].append(number)
                    assert len(places["good"]) == len(places["bad"]) == PARTITIONS // 2
                    disk.bad_path = f"{tmp_path}/bad"
                    await asyncio.wait_for(loop.run_in_executor(client, use, broker, places), 50)
                finally:
                    disk.goes_on.set()

    asyncio.run(scenario())


def test_where_a_disk_hangs_other_dirs_and_checks_go_on(tmp_path: Path) -> None:
    """More flushes and reads wait for it than there are threads for it."""
    disk = BadDisk()
    disk.is_cold = True
    large = batch([os.urandom(1000) for _ in range(100)], codec=Codec.GZIP)

    def use(broker: Broker, places: dict[str, list[int]]) -> None:
        address = f"127.0.0.1:{broker.port}"
        with ExitStack() as stack:
            waiting = stack.enter_context(Wire(address))
            for number in places["bad"]:
                waiting.send(produce_request("t", batch([b"waits"]), partition=number), 12)
            readers = [stack.enter_context(Wire(address)) for _ in places["bad"]]
            for number, reader in zip(places["bad"], readers, strict=True):
                reader.send(fetch_request({"t": [fetch_partition(0, partition=number)]}), 12)
            good = stack.enter_context(Wire(address))
            for number in places["good"]:
                assert produce(good, "t", batch([b"goes on"]), partition=number).error_code == 0
                found = fetch(good, "t", 0, partition=number)
                assert values(found.records) == [b"before", b"goes on"]
            assert produce(good, "t", large, partition=places["good"][0]).error_code == 0
            assert end_offset(good, "t", MAX_TIMESTAMP, partition=places["good"][1]) >= 0
            left = len(places["bad"]) - THREADS
            loads = {
                (pool.kind, Path(pool.dir_path).name): (pool.busy, pool.waiting) for pool in broker.threads
            }
            assert loads.keys() == {*product(("read", "flush"), ("good", "bad")), ("check", "")}
            assert loads["read", "bad"] == (THREADS, left)
            assert loads["flush", "bad"][0] == THREADS
            assert loads["flush", "bad"][1] >= left  # and what housekeeping wants
            assert loads["read", "good"] == loads["check", ""] == (0, 0)
            assert loads["flush", "good"][1] == 0
            name = f'millstream_threads_waiting{{kind="read",log_dir="{tmp_path}/bad"}}'
            assert f"{name} {left}.0\n" in broker.metrics.exposition().decode()
            disk.goes_on.set()
            for _ in places["bad"]:
                assert produced(waiting.receive()[1]).error_code == 0
            for reader in readers:
                assert values(fetched(reader.receive()[1]).records)[0] == b"before"

    run(tmp_path, disk, use)


def test_a_disk_that_fails_takes_down_its_partitions_alone(tmp_path: Path) -> None:
    disk = BadDisk()
    disk.fails = True

    def use(broker: Broker, places: dict[str, list[int]]) -> None:
        with Wire(f"127.0.0.1:{broker.port}") as wire:
            refused = produce(wire, "t", batch([b"lost"]), partition=places["bad"][0])
            assert refused.error_code == KafkaStorageError.code
            until(
                lambda: sum(one.failure is not None for one in broker.replicas) == len(places["bad"]),
                20,
                "the partitions of the failed dir are offline, and no others",
            )
            for number in places["bad"]:
                answer = produce(wire, "t", batch([b"lost"]), partition=number)
                assert answer.error_code == KafkaStorageError.code
                assert fetch(wire, "t", 0, partition=number).error_code == KafkaStorageError.code
            for number in places["good"]:
                assert produce(wire, "t", batch([b"goes on"]), partition=number).error_code == 0
                found = fetch(wire, "t", 0, partition=number)
                assert values(found.records) == [b"before", b"goes on"]
            described = wire.ask(DescribeLogDirsRequest(topics=None)).results
            assert {Path(one.log_dir).name: one.error_code for one in described} == {
                "good": 0,
                "bad": KafkaStorageError.code,
            }
            create_topic(wire, "later", 4)
            later = broker.replicas.topic("later").values()
            assert {Path(one.log.dir_path).name for one in later} == {"good"}

    run(tmp_path, disk, use)
