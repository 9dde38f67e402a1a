"""From a frame to its handler and back: one marked function answers one API.

A handler is a plain function that returns its response, or a coroutine (or future, or promise) where it has
to wait. It runs as soon as its request is dispatched: what a plain handler does happens in the order
of a connection's requests. Errors that concern a whole request are raised; errors of one partition
or topic are values in the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from struct import Struct
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.coordinator.promise import Promise
from millstream.errors import KafkaError, ProtocolError, UnknownServerError
from millstream.metrics import Counter, Histogram
from millstream.net.connection import Buffer, Connection, Place
from millstream.protocol.encoding import CHUNK_BYTES
from millstream.protocol.frame import frame_response, read_request_header
from millstream.protocol.messages import FetchResponse
from millstream.protocol.schema import Request, Response

if TYPE_CHECKING:
    from millstream.broker.server import Broker

log = logging.getLogger(__name__)

_key_and_version = Struct(">hh").unpack_from

API_VERSIONS_KEY = 18

LONG_LIST_BYTES = 64 * 1024
"""The size from which on most requests that list things are large (see `handles`)."""
NEVER_LARGE = 1 << 31
TURN_SECONDS = 10.0
"""How long a large request keeps the next one waiting at most."""

LARGE_ANSWER_BYTES = 1024 * 1024
"""An answer that is larger, records apart, is not given while slow readers hold all that they may."""

HandlerResult = Response | Awaitable[Response | None] | Promise[Any] | None
Handler = Callable[["Context", Any], HandlerResult]
HandlerT = TypeVar("HandlerT", bound=Handler)


class Turn:
    """A large request's time alone: until it is let go of, at most TURN_SECONDS."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._timer: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        await self._lock.acquire()
        self._timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self.release)

    def release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._lock.release()


class Context:
    """What a handler knows of its request besides the request itself."""

    __slots__ = ("broker", "client_id", "connection", "is_internal", "listener", "turn", "version")

    def __init__(
        self,
        broker: Broker,
        connection: Connection,
        listener: str,
        version: int,
        client_id: str | None,
        is_internal: bool = False,
    ) -> None:
        """`is_internal` says that the request came by the listener for brokers."""
        self.broker = broker
        self.connection = connection
        self.listener = listener
        self.version = version
        self.client_id = client_id
        self.is_internal = is_internal
        self.turn: Turn | None = None
        """That of a large request: a handler that only waits lets go of it, and takes it to go on."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What `handles` says of a function."""

    request: type[Request]
    is_alone: bool
    is_internal: bool
    large_bytes: int


def handles(
    request: type[Request],
    *,
    is_alone: bool = True,
    is_internal: bool = False,
    large_bytes: int = NEVER_LARGE,
) -> Callable[[HandlerT], HandlerT]:
    """Mark a function as the handler of an API, at all versions that the request declares.

    While a handler that is alone waits, later requests of its connection do too, as in Kafka. One that
    is internal is served to brokers only, by their own listener, and advertised to nobody. Large
    requests, those of `large_bytes` and more, are served one after another, over all connections: what a list
    of things to be told becomes in memory is many times its size.
    """

    def mark(handler: HandlerT) -> HandlerT:
        handler.handles = Mark(request, is_alone, is_internal, large_bytes)  # type: ignore[attr-defined]
        return handler

    return mark


class Route:
    """One API as served: its handler and what is counted of it."""

    __slots__ = (
        "errors",
        "handler",
        "is_alone",
        "is_internal",
        "key",
        "large_bytes",
        "max_version",
        "min_version",
        "name",
        "request",
        "seconds",
    )

    def __init__(self, handler: Handler, mark: Mark, seconds: Histogram, errors: Counter) -> None:
        self.handler = handler
        self.request = mark.request
        self.is_alone = mark.is_alone
        self.is_internal = mark.is_internal
        self.large_bytes = mark.large_bytes
        self.key = mark.request.key
        self.name = mark.request.__name__.removesuffix("Request")
        self.min_version, self.max_version = mark.request.versions
        self.seconds = seconds
        self.errors = errors


class Router:
    """The table of APIs, and the service behind every client listener."""

    def __init__(self, broker: Broker, modules: Iterable[ModuleType]) -> None:
        self._broker = broker
        self.routes: dict[int, Route] = {}
        self._large = asyncio.Lock()
        for module in modules:
            for name, handler in vars(module).items():
                mark = getattr(handler, "handles", None)
                if isinstance(mark, Mark) and handler.__module__ == module.__name__:
                    self._add(name, handler, mark)

    def _add(self, name: str, handler: Handler, mark: Mark) -> None:
        key = mark.request.key
        if key in self.routes:
            raise TypeError(f"API {key} is claimed twice: by {name} and {self.routes[key].handler.__name__}")
        api = mark.request.__name__.removesuffix("Request")
        metrics = self._broker.metrics
        self.routes[key] = Route(
            handler, mark, metrics.request_seconds.labels(api), metrics.request_errors.labels(api)
        )

    def service(
        self, listener: str, *, is_internal: bool = False
    ) -> Callable[[Connection, memoryview], None]:
        """The service for one listener's connections; brokers come by one that is internal."""

        def dispatch(connection: Connection, frame: memoryview) -> None:
            self._dispatch(listener, is_internal, connection, frame)

        return dispatch

    def _dispatch(self, listener: str, is_internal: bool, connection: Connection, frame: memoryview) -> None:
        started = perf_counter()
        key, version = _key_and_version(frame)
        route = self.routes.get(key)
        if route is None or (route.is_internal and not is_internal):
            raise ProtocolError(f"API {key} is not served here")
        header, body = read_request_header(frame)
        if not route.min_version <= version <= route.max_version:
            if key != API_VERSIONS_KEY:
                raise ProtocolError(
                    f"{route.name} version {version} is not served: "
                    f"{route.min_version} to {route.max_version} are"
                )
            # A client newer than us learns what we speak from an answer in version 0.
            context = Context(self._broker, connection, listener, -1, header.client_id)
            response = route.handler(context, None)
            assert isinstance(response, Response)
            connection.answer(frame_response(header.correlation_id, response, 0))
            return
        context = Context(self._broker, connection, listener, version, header.client_id, is_internal)
        result: HandlerResult
        if len(frame) >= route.large_bytes and not is_internal:
            result = self._serve_in_turn(context, route, bytes(frame), body)
        else:
            request = route.request.decode(frame, version, body)
            try:
                result = route.handler(context, request)
            except Exception as error:
                result = self._error_response(route, error, version)
        if isinstance(result, Response):
            connection.answer(self._framed(connection, route, header.correlation_id, result, version))
            route.seconds.observe(perf_counter() - started)
        elif result is None:
            route.seconds.observe(perf_counter() - started)
        elif isinstance(result, Promise):
            place = connection.reserve(route.is_alone)
            result.listen(
                lambda done: self._finish(
                    connection, route, place, header.correlation_id, version, started, done
                )
            )
        else:
            place = connection.reserve(route.is_alone)
            future = asyncio.ensure_future(result)
            place.awaited = future
            future.add_done_callback(
                lambda done: self._finish(
                    connection, route, place, header.correlation_id, version, started, done
                )
            )

    async def _serve_in_turn(
        self, context: Context, route: Route, frame: bytes, body: int
    ) -> Response | None:
        """Serve a large request when the one before it has been answered, or has had its time."""
        connection = context.connection
        connection.keep_bytes(len(frame))
        turn = context.turn = Turn(self._large)
        try:
            await turn.take()
        finally:
            connection.keep_bytes(-len(frame))
        try:
            request = route.request.decode(frame, context.version, body)
            del frame
            await asyncio.sleep(0)  # each takes its time: others have their turn in between
            result = route.handler(context, request)
            del request
            if isinstance(result, Response) or result is None:
                return result
            assert not isinstance(result, Promise)
            return await result
        finally:
            turn.release()

    def _finish(
        self,
        connection: Connection,
        route: Route,
        place: Place,
        correlation_id: int,
        version: int,
        started: float,
        done: asyncio.Future[Response | None] | Promise[Response],
    ) -> None:
        if isinstance(done, asyncio.Future) and done.cancelled():
            return
        try:
            try:
                response = done.result()
            except ProtocolError:
                raise
            except Exception as error:
                response = self._error_response(route, error, version)
            chunks = None
            if response is not None:
                chunks = self._framed(connection, route, correlation_id, response, version)
        except ProtocolError as error:
            connection.refuse(error)
            return
        except Exception:
            log.exception("closing the connection of %s", connection.peer)
            connection.transport.abort()
            return
        place.fill(chunks)
        route.seconds.observe(perf_counter() - started)

    def _framed(
        self, connection: Connection, route: Route, correlation_id: int, response: Response, version: int
    ) -> list[Buffer]:
        """The answer, if there is room for it; for records, every second chunk, fetches see to that."""
        chunks = frame_response(correlation_id, response, version)
        size = len(chunks[0]) if len(chunks) == 1 else sum(map(len, chunks[::2]))
        if (
            size > LARGE_ANSWER_BYTES
            and not connection.unsent_room_bytes
            and not route.is_internal
            and size - _record_bytes_within(response) > LARGE_ANSWER_BYTES
        ):
            raise ProtocolError(f"{route.name} has a large answer, and slow readers have taken all the room")
        return chunks

    def _error_response(self, route: Route, error: BaseException, version: int) -> Response:
        """An answer with the error's code, where this version has a place for one; else raises."""
        route.errors.value += 1
        if not isinstance(error, KafkaError):
            log.error("%s failed", route.name, exc_info=error)
            error = UnknownServerError()
        fields: dict[str, object] = {"error_code": error.code}
        response = route.request.response
        names = {field.name for field in response.fields_at(version)}
        if "error_code" not in names:
            raise ProtocolError(f"{route.name} failed: {error.message}")
        if "error_message" in names:
            fields["error_message"] = error.message
        return response(**fields)


def _record_bytes_within(response: Response) -> int:
    """How much of a fetch's answer is records that are too few for a chunk of their own."""
    if not isinstance(response, FetchResponse):
        return 0
    sizes = (len(each.records or b"") for topic in response.responses for each in topic.partitions)
    return sum(size for size in sizes if size < CHUNK_BYTES)
