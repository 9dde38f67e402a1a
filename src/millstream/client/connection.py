"""One connection to a broker: requests go out in order, answers come back in the same order.

The bytes of an answer are received once: a frame that did not arrive whole gets a buffer of its own
size and the rest is read straight into it, so the records of a large fetch are never copied between
the socket and the decoder.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TypeVar, cast

from millstream.deadline import Deadline
from millstream.errors import (
    KafkaError,
    NetworkException,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersion,
    error_for,
)
from millstream.protocol.client_kernel import unfilled
from millstream.protocol.frame import frame_request, read_correlation_id, read_response
from millstream.protocol.messages import ApiVersionsRequest, ApiVersionsResponse
from millstream.protocol.schema import Request, Response

R = TypeVar("R", bound=Response)

SOFTWARE_NAME = "millstream"
SOFTWARE_VERSION = "0.1.0"
READ_BUFFER_BYTES = 16 * 1024
MAX_RESPONSE_BYTES = 256 * 1024 * 1024
_API_VERSIONS_KEY = 18


@dataclass(slots=True)
class _Waiting:
    """A request whose answer has not come."""

    correlation_id: int
    response: type[Response]
    version: int
    answer: asyncio.Future[Response]
    timer: asyncio.TimerHandle


class Connection(asyncio.BufferedProtocol):
    """Speaks the Kafka protocol over one socket.

    An answer that does not come in time closes the connection, since every later answer stands
    behind it; what else was waiting fails with the retriable NetworkException.
    """

    def __init__(self, address: str, client_id: str) -> None:
        self.address = address
        self.client_id = client_id
        self.api_versions: dict[int, tuple[int, int]] = {}
        self.finalized_features: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._last_correlation_id = 0
        self._buffer = bytearray(READ_BUFFER_BYTES)
        self._filled = 0
        self._frame: bytearray | None = None
        self._frame_filled = 0
        self._writable: asyncio.Future[None] | None = None
        self._failure: KafkaError | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._failure is None

    @property
    def in_flight(self) -> int:
        return len(self._waiting)

    # ---------------------------------------------------------------- requests

    async def request(
        self, request: Request, answer: type[R], timeout_ms: float, *, max_version: int | None = None
    ) -> R:
        """Send `request` at the highest version both sides know and await its answer.

        `max_version` is for callers that lack what a newer version needs, such as a topic id.
        """
        deadline = Deadline(timeout_ms)
        await self._until_writable(deadline)
        response = await self.send(request, deadline.remaining_ms, max_version=max_version)
        if not isinstance(response, answer):
            raise TypeError(f"{type(request).__name__} is answered by {type(response).__name__}")
        return response

    def send(
        self, request: Request, timeout_ms: float, *, max_version: int | None = None
    ) -> asyncio.Future[Response]:
        """Write `request` now and give the future of its answer: for callers that pipeline."""
        version = self.version_for(type(request), max_version)
        correlation_id = self._write(request, version)
        answer: asyncio.Future[Response] = self._loop.create_future()
        timer = self._loop.call_later(timeout_ms / 1000, self._timed_out, request, timeout_ms)
        self._waiting.append(_Waiting(correlation_id, request.response, version, answer, timer))
        return answer

    async def send_unanswered(
        self, request: Request, timeout_ms: float, *, max_version: int | None = None
    ) -> None:
        """Write a request that the broker does not answer: Produce with acks=0."""
        await self._until_writable(Deadline(timeout_ms))
        self._write(request, self.version_for(type(request), max_version))

    def version_for(self, request: type[Request], max_version: int | None = None) -> int:
        """The highest version of `request` that both sides know."""
        if request.key not in self.api_versions:
            raise UnsupportedVersion(f"the broker at {self.address} does not serve {request.__name__}")
        broker_low, broker_high = self.api_versions[request.key]
        our_low, our_high = request.versions
        version = min(broker_high, our_high, our_high if max_version is None else max_version)
        if version < max(broker_low, our_low):
            raise UnsupportedVersion(
                f"the broker at {self.address} serves {request.__name__} {broker_low}-{broker_high}, "
                f"this client speaks {our_low}-{our_high}"
            )
        return version

    def _write(self, request: Request, version: int) -> int:
        if self._failure is not None:
            raise self._failure.again()
        if self._transport is None:
            raise NetworkException(f"not connected to {self.address}")
        self._last_correlation_id = correlation_id = (self._last_correlation_id + 1) & 0x7FFFFFFF
        self._transport.writelines(frame_request(correlation_id, self.client_id, request, version))
        return correlation_id

    async def _until_writable(self, deadline: Deadline) -> None:
        while self._writable is not None:
            done, _ = await asyncio.wait([self._writable], timeout=deadline.remaining_ms / 1000)
            if not done:
                raise RequestTimedOut(
                    f"the broker at {self.address} took no bytes in {deadline.timeout_ms} ms"
                )
            if self._failure is not None:
                raise self._failure.again()

    def _timed_out(self, request: Request, timeout_ms: float) -> None:
        name = type(request).__name__
        self._fail(
            RequestTimedOut(f"the broker at {self.address} did not answer {name} in {timeout_ms:.0f} ms")
        )

    # ---------------------------------------------------------------- negotiation

    async def negotiate(self, deadline: Deadline) -> None:
        """Ask which versions the broker serves.

        A broker that does not know our version of ApiVersions answers with version 0 and the range
        it knows, then is asked again within that range.
        """
        low, high = ApiVersionsRequest.versions
        self.api_versions = {_API_VERSIONS_KEY: (low, high)}
        for _ in range(2):
            request = ApiVersionsRequest(
                client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION
            )
            response = await self.request(request, ApiVersionsResponse, deadline.remaining_ms)
            served = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
            if response.error_code == 0:
                self.api_versions = served
                self.finalized_features = {
                    feature.name: feature.max_version_level for feature in response.finalized_features
                }
                return
            if response.error_code != UnsupportedVersion.code or _API_VERSIONS_KEY not in served:
                break
            self.api_versions = {_API_VERSIONS_KEY: served[_API_VERSIONS_KEY]}
        raise error_for(response.error_code)(f"the broker at {self.address} refused ApiVersions")

    # ---------------------------------------------------------------- closing

    async def close(self) -> None:
        """Close the socket and wait until it is closed."""
        self._fail(NetworkException(f"the connection to {self.address} was closed"))
        if self._transport is not None:
            await self._closed

    def abort(self) -> None:
        """Close the socket without waiting."""
        self._fail(NetworkException(f"the connection to {self.address} was closed"))

    def _fail(self, failure: KafkaError) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        if self._transport is not None:
            self._transport.abort()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None
        for waiting in self._waiting:
            waiting.timer.cancel()
            if not waiting.answer.done():
                waiting.answer.set_exception(failure.again())
        self._waiting.clear()

    # ---------------------------------------------------------------- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._failure is not None:  # nobody waits for it any more
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f": {exc}" if exc else ""
        self._fail(NetworkException(f"the broker at {self.address} closed the connection{reason}"))
        if not self._closed.done():
            self._closed.set_result(None)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._failure is None:
            self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._failure is not None:
            return
        try:
            if self._frame is not None:
                self._frame_filled += nbytes
                if self._frame_filled == len(self._frame):
                    frame, self._frame = self._frame, None
                    self._answered(memoryview(frame))
            else:
                self._filled += nbytes
                self._take_frames()
        except ProtocolError as error:
            self._fail(NetworkException(f"the broker at {self.address} sent a bad answer: {error}"))

    def _take_frames(self) -> None:
        """Answer with every whole frame in the buffer; move an incomplete one to its own memory."""
        position, filled = 0, self._filled
        view = memoryview(self._buffer)
        while filled - position >= 4 and self._failure is None:
            size = int.from_bytes(view[position : position + 4], "big", signed=True)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                raise ProtocolError(f"an answer of {size} bytes is out of bounds")
            start, position = position + 4, position + 4 + size
            if position <= filled:
                self._answered(memoryview(bytes(view[start:position])))
                continue
            self._frame = unfilled(size)
            self._frame_filled = filled - start
            self._frame[: self._frame_filled] = view[start:filled]
            position = filled
        view[: filled - position] = bytes(view[position:filled])
        self._filled = filled - position

    def _answered(self, frame: memoryview) -> None:
        if not self._waiting:
            raise ProtocolError("an answer that nobody asked for")
        waiting = self._waiting.popleft()
        waiting.timer.cancel()
        try:
            response = _decode(frame, waiting)
        except ProtocolError as error:
            if not waiting.answer.done():
                waiting.answer.set_exception(
                    NetworkException(f"the broker at {self.address} sent a bad answer: {error}")
                )
            raise
        if not waiting.answer.done():
            waiting.answer.set_result(response)


def _decode(frame: memoryview, waiting: _Waiting) -> Response:
    correlation_id = read_correlation_id(frame)
    if correlation_id != waiting.correlation_id:
        raise ProtocolError(f"answer {correlation_id} came where {waiting.correlation_id} was due")
    return read_response(frame, waiting.response, waiting.version)


async def connect(host: str, port: int, *, deadline: Deadline, client_id: str) -> Connection:
    """A connection to the broker at host:port that knows which versions it serves."""
    address = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    connection = Connection(address, client_id)
    try:
        async with asyncio.timeout(deadline.remaining_ms / 1000):
            await loop.create_connection(lambda: connection, host, port)
    except (TimeoutError, asyncio.CancelledError) as error:
        connection.abort()  # it may have been made at that very moment
        if isinstance(error, asyncio.CancelledError):
            raise
        raise NetworkException(f"no connection to {address} in {deadline.timeout_ms:.0f} ms") from None
    except OSError as error:
        raise NetworkException(f"cannot connect to {address}: {error.strerror or error}") from error
    try:
        await connection.negotiate(deadline)
    except BaseException:
        await connection.close()
        raise
    return connection
