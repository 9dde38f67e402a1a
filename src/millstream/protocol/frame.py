"""Frames: a size of four bytes, a header, a message.

Request header v1: api_key i16, api_version i16, correlation_id i32, client_id nullable string; v2, with
flexible versions, ends in tagged fields but keeps the old string. Response header v0: correlation_id
i32; v1 ends in tagged fields. The answer to ApiVersions always has header v0 (KIP-511), because a client
that asked for a version too new cannot know in which version it will be answered.

Functions that read take a frame without its size.
"""

import struct
from typing import NamedTuple, TypeVar

from millstream.errors import ProtocolError, UnsupportedVersion
from millstream.protocol.decoding import skip_tagged
from millstream.protocol.messages import INTERNAL_REQUESTS, REQUESTS, ApiVersionsRequest, ApiVersionsResponse
from millstream.protocol.schema import Request, Response
from millstream.protocol.types import Buffer

R = TypeVar("R", bound=Response)

SIZE_BYTES = 4
_FLEXIBLE = {
    request.key: request.flexible
    for request in (*REQUESTS.values(), *INTERNAL_REQUESTS)
    if request.flexible is not None
}
_NEVER = 32768
MAX_HEADER_TAGS = 1000
"""How many tagged fields a header may have that nobody here knows; Kafka's have none at all so far."""
_request_header = struct.Struct(">hhih")
_response_start = struct.Struct(">ii")
_correlation_id = struct.Struct(">i")
_error_code = struct.Struct(">h")


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def read_request_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """The header of a request and the offset of its body.

    The header of an API or a version that nobody knows is read too, so that it can be answered.
    """
    size = len(frame)
    try:
        api_key, api_version, correlation_id, length = _request_header.unpack_from(frame)
        offset = 10
        client_id = None
        if length >= 0:
            end = offset + length
            if end > size:
                raise ProtocolError("client_id ends beyond the message")
            client_id = bytes(frame[offset:end]).decode()
            offset = end
        if api_version >= _FLEXIBLE.get(api_key, _NEVER):
            if frame[offset]:
                offset, _ = skip_tagged(memoryview(frame), offset, size, MAX_HEADER_TAGS)
            else:
                offset += 1
    except (struct.error, IndexError, UnicodeDecodeError, ProtocolError) as failure:
        raise ProtocolError(f"not a request header: {failure}") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), offset


def frame_request(correlation_id: int, client_id: str | None, request: Request, version: int) -> list[Buffer]:
    """A request with its header and size; big record batches are chunks of their own."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    out = bytearray(SIZE_BYTES)
    out += _request_header.pack(request.key, version, correlation_id, length)
    out += name
    if request.is_flexible(version):
        out.append(0)
    chunks: list[Buffer] = []
    chunks.append(request.encoder(version)(request, out, chunks))
    _correlation_id.pack_into(out, 0, sum(map(len, chunks)) - SIZE_BYTES)
    return chunks


def frame_response(correlation_id: int, response: Response, version: int) -> list[Buffer]:
    """A response with its header and size; big record batches are chunks of their own."""
    flexible = response.flexible
    has_tags = flexible is not None and version >= flexible and response.key != ApiVersionsRequest.key
    out = bytearray(9 if has_tags else 8)
    chunks: list[Buffer] = []
    chunks.append(response.encoder(version)(response, out, chunks))
    size = len(out) if len(chunks) == 1 else sum(map(len, chunks))
    _response_start.pack_into(out, 0, size - SIZE_BYTES, correlation_id)
    return chunks


def read_correlation_id(frame: Buffer) -> int:
    """The correlation id of a response, which says what request it answers."""
    try:
        correlation_id: int = _correlation_id.unpack_from(frame)[0]
    except struct.error:
        raise ProtocolError("a response has at least four bytes") from None
    return correlation_id


def read_response(frame: Buffer, response: type[R], version: int) -> R:
    """The response in a frame, to a request that was sent in `version`.

    A broker that does not know the version of an ApiVersions request answers in version 0, with an
    error that says so.
    """
    offset = 4
    try:
        if response is ApiVersionsResponse:
            if _error_code.unpack_from(frame, offset)[0] == UnsupportedVersion.code:
                version = 0
        elif response.is_flexible(version):
            offset, _ = skip_tagged(memoryview(frame), offset, len(frame), MAX_HEADER_TAGS)
    except (struct.error, IndexError, ProtocolError) as failure:
        raise ProtocolError(f"not a response header: {failure}") from None
    return response.decode(frame, version, offset)
