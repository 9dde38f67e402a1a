"""One connection: versions agreed on, answers in order, and every way in which an answer can fail to come."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from millstream.client.connection import SOFTWARE_VERSION, Connection, connect
from millstream.deadline import Deadline
from millstream.errors import NetworkException, RequestTimedOut, UnsupportedVersion
from millstream.net.listener import close_servers
from millstream.protocol.frame import RequestHeader, frame_response
from millstream.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    MetadataRequest,
    MetadataResponse,
)
from millstream.protocol.schema import Request
from tests.client.scripted import Answer, ScriptedBroker, all_versions, scripted_broker


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    """Runs a coroutine on each kind of loop."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else None

    def run_on(main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return run_on


async def opened(broker: ScriptedBroker) -> Connection:
    return await connect("127.0.0.1", broker.port, deadline=Deadline(5000), client_id="test")


async def metadata(connection: Connection, timeout_ms: float = 5000) -> MetadataResponse:
    return await connection.request(MetadataRequest(topics=[]), MetadataResponse, timeout_ms)


def named(cluster_id: str) -> MetadataResponse:
    return MetadataResponse(brokers=[], topics=[], cluster_id=cluster_id)


def test_the_software_version_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["version"] == SOFTWARE_VERSION


def test_the_highest_common_version_is_spoken(run: Any) -> None:
    async def script(header: RequestHeader, request: Request) -> Answer:
        if not isinstance(request, ApiVersionsRequest):
            return named("c")
        served = all_versions()
        for api in served.api_keys:
            if api.api_key == MetadataRequest.key:
                api.min_version, api.max_version = 1, 8
            if api.api_key == CreateTopicsRequest.key:
                api.min_version = api.max_version = 99
        return served

    async def main() -> None:
        async with scripted_broker(script) as broker:
            connection = await opened(broker)
            assert (await metadata(connection)).cluster_id == "c"
            assert broker.seen[-1][0].api_version == 8
            await connection.request(MetadataRequest(topics=[]), MetadataResponse, 5000, max_version=5)
            assert broker.seen[-1][0].api_version == 5
            with pytest.raises(UnsupportedVersion, match="99-99"):
                connection.version_for(CreateTopicsRequest)
            del connection.api_versions[MetadataRequest.key]
            with pytest.raises(UnsupportedVersion, match="does not serve MetadataRequest"):
                await metadata(connection)
            await connection.close()

    run(main())


def test_an_old_broker_is_asked_again_within_what_it_knows(run: Any) -> None:
    async def script(header: RequestHeader, request: Request) -> Answer:
        if header.api_version > 2:
            refusal = all_versions()
            refusal.error_code = UnsupportedVersion.code
            for api in refusal.api_keys:
                if api.api_key == ApiVersionsRequest.key:
                    api.max_version = 2
            return b"".join(frame_response(header.correlation_id, refusal, 0))
        return all_versions()

    async def main() -> None:
        async with scripted_broker(script) as broker:
            connection = await opened(broker)
            assert [header.api_version for header, _ in broker.seen] == [4, 2]
            assert connection.api_versions[MetadataRequest.key] == MetadataRequest.versions
            await connection.close()

    run(main())


def test_answers_of_any_size_in_any_pieces_reach_their_requests(run: Any) -> None:
    """Frames that come together, byte by byte, and far larger than the read buffer."""
    names = ["", "x" * 100, "y" * 1_000_000, "z" * 20_000, "w"]

    async def main() -> None:
        answers: list[bytes] = []

        async def script(header: RequestHeader, request: Request) -> Answer:
            if isinstance(request, ApiVersionsRequest):
                return all_versions()
            answer = named(names[len(answers)])
            answers.append(b"".join(frame_response(header.correlation_id, answer, header.api_version)))
            return None

        async with scripted_broker(script) as broker:
            connection = await opened(broker)
            futures = [connection.send(MetadataRequest(topics=[]), 10_000) for _ in names]
            assert connection.in_flight == len(names)
            while len(answers) < len(names):
                await asyncio.sleep(0.001)
            stream = b"".join(answers)
            await feed(connection, stream)
            got = [await future for future in futures]
            assert [answer.cluster_id for answer in got if isinstance(answer, MetadataResponse)] == names
            await connection.close()

    async def feed(connection: Connection, stream: bytes) -> None:
        """Hand the bytes over as a transport does, in pieces of all sizes."""
        position, size = 0, 1
        while position < len(stream):
            view = connection.get_buffer(-1)
            piece = stream[position : position + min(size, len(view))]
            view[: len(piece)] = piece
            connection.buffer_updated(len(piece))
            position += len(piece)
            size = size * 2 if size < 100_000 else 1

    run(main())


def test_no_answer_in_time_closes_the_connection(run: Any) -> None:
    async def script(header: RequestHeader, request: Request) -> Answer:
        return all_versions() if isinstance(request, ApiVersionsRequest) else None

    async def main() -> None:
        async with scripted_broker(script) as broker:
            connection = await opened(broker)
            second = connection.send(MetadataRequest(topics=[]), 60_000)
            with pytest.raises(RequestTimedOut, match="did not answer MetadataRequest in"):
                await metadata(connection, 50)
            with pytest.raises(RequestTimedOut):
                await second
            assert not connection.is_open
            with pytest.raises(RequestTimedOut):
                await metadata(connection)
            await connection.close()

    run(main())


def test_each_who_waits_is_given_an_error_of_its_own(run: Any) -> None:
    """The one that is kept holds none of the frames that an error was raised through."""

    async def script(header: RequestHeader, request: Request) -> Answer:
        return all_versions() if isinstance(request, ApiVersionsRequest) else None

    async def main() -> None:
        async with scripted_broker(script) as broker:
            connection = await opened(broker)
            waiting = [connection.send(MetadataRequest(topics=[]), 60_000) for _ in range(2)]
            connection.abort()
            waiting.append(asyncio.ensure_future(metadata(connection)))
            failures = await asyncio.gather(*waiting, return_exceptions=True)
            assert {str(failure) for failure in failures} == {
                f"the connection to {connection.address} was closed"
            }
            assert len({id(failure) for failure in failures}) == 3
            kept = connection._failure
            assert kept is not None
            assert kept not in failures
            assert kept.__traceback__ is None
            await connection.close()

    run(main())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"\0", "closed the connection"),
        (b"\0\0\0\x08\0\0\0", "closed the connection"),
        (b"\0\0\0\x80" + bytes(20), "closed the connection"),
        (b"\0\0\0\x05\0\0\0\x63\0", "answer 99 came where 2 was due"),
        (b"\x7f\xff\xff\xff", "out of bounds"),
        (b"\xff\xff\xff\xff", "out of bounds"),
        (b"\0\0\0\x05\0\0\0\x02\0", "bad answer"),
    ],
)
def test_an_answer_that_is_none_fails_the_request_and_the_connection(
    run: Any, answer: bytes, reason: str
) -> None:
    async def script(header: RequestHeader, request: Request) -> Answer:
        return all_versions() if isinstance(request, ApiVersionsRequest) else answer

    async def main() -> None:
        async with scripted_broker(script) as broker:
            connection = await opened(broker)
            with pytest.raises(NetworkException, match=reason):
                await metadata(connection)
            assert not connection.is_open
            await connection.close()

    run(main())


def test_a_cancelled_request_leaves_the_others_in_order(run: Any) -> None:
    async def main() -> None:
        release = asyncio.Event()
        count = 0

        async def script(header: RequestHeader, request: Request) -> Answer:
            nonlocal count
            if isinstance(request, ApiVersionsRequest):
                return all_versions()
            await release.wait()
            count += 1
            return named(str(count))

        async with scripted_broker(script) as broker:
            connection = await opened(broker)
            first = asyncio.ensure_future(metadata(connection))
            second = asyncio.ensure_future(metadata(connection))
            await asyncio.sleep(0.01)
            first.cancel()
            release.set()
            assert (await second).cluster_id == "2"
            assert first.cancelled()
            await connection.close()

    run(main())


def test_a_broker_that_takes_no_bytes_is_given_up_at_the_deadline(run: Any) -> None:
    async def script(header: RequestHeader, request: Request) -> Answer:
        if isinstance(request, ApiVersionsRequest):
            return all_versions()
        await asyncio.sleep(60)
        return None

    async def main() -> None:
        async with scripted_broker(script) as broker:
            connection = await opened(broker)
            topics = [MetadataRequest.MetadataRequestTopic(name="n" * 30_000) for _ in range(1000)]
            asked = [connection.send(MetadataRequest(topics=names), 60_000) for names in ([], topics)]
            with pytest.raises(RequestTimedOut, match="took no bytes"):
                await connection.request(MetadataRequest(topics=[]), MetadataResponse, 100)
            waiting = asyncio.ensure_future(metadata(connection, 60_000))
            await asyncio.sleep(0.01)
            await connection.close()
            for answer in await asyncio.gather(*asked, waiting, return_exceptions=True):
                assert isinstance(answer, NetworkException)

    run(main())


def test_nobody_listens(run: Any) -> None:
    async def main() -> None:
        async with scripted_broker(lambda header, request: asyncio.sleep(0, None)) as broker:
            port = broker.port
        with pytest.raises(NetworkException, match=f"cannot connect to 127.0.0.1:{port}"):
            await connect("127.0.0.1", port, deadline=Deadline(1000), client_id="test")

    run(main())


def test_a_broker_that_says_nothing_is_given_up_at_the_deadline(run: Any) -> None:
    async def main() -> None:
        async with scripted_broker(lambda header, request: asyncio.sleep(0, None)) as broker:
            with pytest.raises(RequestTimedOut, match="did not answer ApiVersionsRequest"):
                await connect("127.0.0.1", broker.port, deadline=Deadline(50), client_id="test")

    run(main())


def test_refused_api_versions_are_an_error(run: Any) -> None:
    async def script(header: RequestHeader, request: Request) -> Answer:
        return ApiVersionsResponse(error_code=31, api_keys=[])

    async def main() -> None:
        async with scripted_broker(script) as broker:
            with pytest.raises(Exception, match="refused ApiVersions"):
                await opened(broker)

    run(main())


def test_a_connection_that_was_made_too_late_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy process may be told of the end of its patience and of its success at once."""

    async def story() -> None:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            gone.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        create = loop.create_connection

        async def late(*arguments: Any, **options: Any) -> Any:
            await create(*arguments, **options)
            await asyncio.sleep(60)

        monkeypatch.setattr(loop, "create_connection", late)
        with pytest.raises(NetworkException):
            await connect("127.0.0.1", port, deadline=Deadline(300), client_id="c")
        async with asyncio.timeout(10):
            await gone.wait()
        await close_servers([server])

    asyncio.run(story())
