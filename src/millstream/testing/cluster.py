"""A cluster of real broker processes inside a test."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from millstream.testing.member import Member
from millstream.testing.ports import free_ports

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster as Client
    from millstream.client.health import Health
    from millstream.deadline import Deadline

T = TypeVar("T")

QUIET_CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
"""What makes a cluster answer a test at once. All of it can be overridden."""

ROOM = 8
"""Ports set aside, so that brokers can be added."""


class Cluster:
    """Broker processes for the length of a `with` block.

        with Cluster(brokers=3) as cluster:
            producer = SomeKafkaClient(cluster.bootstrap)
            cluster[2].kill()
            cluster.start_broker(2)

    They are what `millstream serve --brokers N` runs, with one registry in the data folder unless `registry`
    names another; brokers are numbered from 1. On leaving the block all have ended and the temporary
    folder is removed. A folder given as `data` is kept.
    """

    def __init__(
        self,
        brokers: int = 3,
        config: Mapping[str, str] | None = None,
        *,
        data: str | Path | None = None,
        registry: str | None = None,
        timeout_seconds: float = 60,
    ) -> None:
        self.config = {**QUIET_CONFIG, **(config or {})}
        if registry is not None:
            self.config["registry"] = registry
        self.timeout_seconds = timeout_seconds
        self.members: dict[int, Member] = {}
        self._count = brokers
        self._given_data = Path(data) if data is not None else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(is_clean=error is None)

    def __getitem__(self, broker_id: int) -> Member:
        return self.members[broker_id]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as clients take them."""
        return ",".join(member.address for member in self.members.values())

    @property
    def data(self) -> Path:
        """The folder of the registry and of the brokers' folders."""
        if self._given_data is not None:
            return self._given_data
        if self._temporary is None:
            raise RuntimeError("the cluster has not been started")
        return Path(self._temporary.name)

    def start(self) -> Self:
        """Start all brokers and wait until each is ready and knows of the others."""
        if self._given_data is None and self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="millstream-")
        self.data.mkdir(parents=True, exist_ok=True)
        self._port = self._port or free_ports(self._count + ROOM)
        try:
            for broker_id in range(1, self._count + 1):
                self._add(broker_id).launch(self._words(broker_id))
            for member in self.members.values():
                member.wait_until_ready(self.timeout_seconds)
            self.wait_for_brokers(set(self.members))
        except BaseException:
            self.stop(is_clean=False)
            raise
        return self

    def stop(self, *, is_clean: bool = True) -> None:
        """End all brokers, cleanly or by `kill -9`, and remove the temporary folder."""
        for member in self.members.values():
            if member.is_running:
                member.resume()
                if not is_clean:
                    member.kill()
        running = [member for member in self.members.values() if member.is_running]
        stopping = [threading.Thread(target=member.stop, args=(self.timeout_seconds,)) for member in running]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    # ---------------------------------------------------------------- brokers

    def start_broker(self, broker_id: int, *, is_awaited: bool = True) -> Member:
        """Start a broker that was stopped or killed, with the files it left."""
        member = self.members[broker_id]
        member.launch(self._words(broker_id))
        if is_awaited:
            member.wait_until_ready(self.timeout_seconds)
        return member

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker cleanly: it hands over first what it leads."""
        status = self.members[broker_id].stop(self.timeout_seconds)
        if status != 0:
            raise RuntimeError(f"broker {broker_id} ended with status {status}")

    def add_broker(self) -> Member:
        """One broker more, which holds nothing yet."""
        self._count += 1
        broker_id = max(self.members) + 1
        self._add(broker_id)
        return self.start_broker(broker_id)

    def _add(self, broker_id: int) -> Member:
        member = self.members.get(broker_id)
        if member is None:
            name = f"broker-{broker_id}"
            member = Member(
                broker_id, self._port + broker_id - 1, self.data / name, self.data / f"{name}.out"
            )
            self.members[broker_id] = member
        return member

    def _words(self, broker_id: int) -> list[str]:
        options = [word for key, value in self.config.items() for word in ("-o", f"{key}={value}")]
        listen, count = f"127.0.0.1:{self._port}", str(self._count)
        place = ["--listen", listen, "--data", str(self.data), "--brokers", count, "--id", str(broker_id)]
        return [*place, *options]

    # ---------------------------------------------------------------- what clients see

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
        assignment: Mapping[int, list[int]] | None = None,
    ) -> str:
        """Create a topic and wait until it can be used; gives its name."""
        from millstream.client.topics import create_topic

        async def work(client: Client, deadline: Deadline) -> str:
            made = await create_topic(
                client,
                name,
                deadline,
                partitions=-1 if assignment else partitions,
                replication_factor=-1 if assignment else replication_factor,
                configs=configs,
                assignment=assignment,
            )
            return made.name

        return self.call(work)

    def health(self) -> Health:
        """What the cluster lacks now."""
        from millstream.client.health import examine

        return self.call(examine)

    def wait_until(self, claim: Callable[[Health], bool], timeout_seconds: float | None = None) -> Health:
        """Wait until the cluster's health is as claimed."""
        from millstream.errors import KafkaError

        deadline = time.monotonic() + (timeout_seconds or self.timeout_seconds)
        while True:
            found: Health | KafkaError
            try:
                found = self.health()
                if claim(found):
                    return found
            except KafkaError as error:
                found = error
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster did not become so: {found}")
            time.sleep(0.05)

    def wait_until_healthy(self, timeout_seconds: float | None = None) -> Health:
        """Wait until every broker is there and answers, and every replica is in sync."""
        return self.wait_until(lambda health: health.is_healthy, timeout_seconds)

    def wait_for_brokers(self, brokers: set[int], timeout_seconds: float | None = None) -> None:
        """Wait until these brokers, and no others, are in the cluster."""
        self.wait_until(
            lambda health: set(health.brokers) == brokers and health.controller is not None, timeout_seconds
        )

    def leader(self, topic: str, partition: int = 0) -> int:
        """Who leads a partition; waits while nobody does."""

        async def work(client: Client, deadline: Deadline) -> int:
            async def attempt() -> int:
                client.forget(topic)
                return (await client.leader(topic, partition, deadline)).id

            return await client.retrying(attempt, deadline)

        return self.call(work)

    def call(self, work: Callable[[Client, Deadline], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with a client of the brokers that run and are not paused."""
        from millstream.client.cluster import Cluster as Client
        from millstream.deadline import Deadline

        bootstrap = [
            member.address for member in self.members.values() if member.is_running and not member.is_paused
        ]

        async def main() -> T:
            async with Client(bootstrap, client_id="millstream-testing") as client:
                return await work(client, Deadline(self.timeout_seconds * 1000))

        results: list[T | BaseException] = []

        def run() -> None:
            try:
                results.append(asyncio.run(main()))
            except BaseException as error:
                results.append(error)

        thread = threading.Thread(target=run, name="millstream-testing")
        thread.start()
        thread.join()
        (result,) = results
        if isinstance(result, BaseException):
            raise result
        return result
