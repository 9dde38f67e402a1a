"""A real broker inside a test: in a thread of its own, on a free port, in a temporary folder."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")

QUIET_CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""What makes one broker answer a test at once. All of it can be overridden."""


class Broker:
    """A broker for the length of a `with` block.

        with Broker(config={"num.partitions": "4"}) as broker:
            client = SomeKafkaClient(broker.bootstrap)

    It is the broker that `millstream serve` runs, reached through a socket. On leaving the block it
    has stopped cleanly: its thread has ended, its port is free, its temporary folder is removed. A
    folder given as `data` is kept, so that a second broker can go on with it.
    """

    def __init__(
        self,
        config: Mapping[str, str | int | float] | None = None,
        *,
        data: str | Path | None = None,
        port: int = 0,
        timeout_seconds: float = 30,
    ) -> None:
        self.config = {**QUIET_CONFIG, **{key: _text(value) for key, value in (config or {}).items()}}
        self.timeout_seconds = timeout_seconds
        self._given_data = Path(data) if data is not None else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The port it listens on; the same one again after a restart."""
        return self._port

    @property
    def bootstrap(self) -> str:
        """The address that clients take as bootstrap.servers."""
        return f"127.0.0.1:{self._port}"

    @property
    def data(self) -> Path:
        """The folder that holds its files."""
        if self._given_data is not None:
            return self._given_data
        if self._temporary is None:
            raise RuntimeError("the broker has not been started")
        return Path(self._temporary.name)

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> Self:
        """Start it and wait until it takes requests."""
        if self._thread is not None:
            raise RuntimeError("the broker is running already")
        if self._given_data is None and self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="millstream-")
        started: Future[int] = Future()
        thread = threading.Thread(target=self._run, args=(started,), name="millstream-broker", daemon=True)
        self._thread = thread
        thread.start()
        try:
            self._port = started.result(self.timeout_seconds)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop it cleanly, wait until it has stopped, and remove the temporary folder."""
        self._end_thread()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def restart(self) -> None:
        """Stop it cleanly and start it again with its files, on the same port."""
        self._end_thread()
        self.start()

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and thread.is_alive():
            try:
                loop.call_soon_threadsafe(stop.set)
            except RuntimeError:
                pass  # it has just ended by itself
        thread.join(self.timeout_seconds)
        if thread.is_alive():
            raise TimeoutError(f"the broker did not stop in {self.timeout_seconds} seconds")

    # ---------------------------------------------------------------- topics

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, str | None] | None = None,
    ) -> str:
        """Create a topic and wait until it can be used; gives its name."""
        from millstream.client.topics import create_topic

        async def work() -> str:
            cluster, deadline = self._client()
            async with cluster:
                created = await create_topic(
                    cluster,
                    name,
                    deadline,
                    partitions=partitions,
                    replication_factor=replication_factor,
                    configs=configs,
                )
                return created.name

        return self._call(work())

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        from millstream.client.topics import delete_topic

        async def work() -> None:
            cluster, deadline = self._client()
            async with cluster:
                await delete_topic(cluster, name, deadline)

        self._call(work())

    def topics(self) -> list[str]:
        """The names of its topics, internal ones left out."""

        async def work() -> list[str]:
            cluster, deadline = self._client()
            async with cluster:
                metadata = await cluster.refresh(None, deadline)
                return sorted(topic.name for topic in metadata.topics.values() if not topic.is_internal)

        return self._call(work())

    def _client(self) -> tuple[Any, Any]:
        from millstream.client.cluster import Cluster
        from millstream.deadline import Deadline

        return Cluster(self.bootstrap, client_id="millstream-testing"), Deadline(self.timeout_seconds * 1000)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the broker's own loop, as a client of its socket."""
        if self._loop is None or not self.is_running:
            work.close()
            raise RuntimeError("the broker is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self.timeout_seconds + 5)

    # ---------------------------------------------------------------- the thread

    def _run(self, started: Future[int]) -> None:
        from millstream.net.event_loop import loop_factory

        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._main(started))
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            self._loop = self._stop = None

    async def _main(self, started: Future[int]) -> None:
        from millstream.broker.server import Broker as Server
        from millstream.config.broker import BrokerConfig

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        values = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port}",
            "log.dirs": str(self.data),
            **self.config,
        }
        server = Server(BrokerConfig(values))
        await server.start()
        try:
            started.set_result(server.port)
            await self._stop.wait()
        finally:
            await server.stop()


def _text(value: str | float) -> str:
    """A value as a file of properties has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
