"""Frames: headers of requests and responses, sizes, and chunks."""

from __future__ import annotations

import struct
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ProtocolError, UnsupportedVersion
from millstream.protocol.frame import (
    RequestHeader,
    frame_request,
    frame_response,
    read_correlation_id,
    read_request_header,
    read_response,
)
from millstream.protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
    ProduceRequest,
    ProduceResponse,
)


def joined(chunks: list[bytes | bytearray | memoryview]) -> bytes:
    """The frame without its size, which is checked."""
    data = b"".join(chunks)
    assert struct.unpack(">i", data[:4])[0] == len(data) - 4
    return data[4:]


@pytest.mark.parametrize("version", [0, 3, 4])
@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "ü" * 200])
def test_a_request_is_framed_and_read(version: int, client_id: str | None) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=3, member_id="m")
    frame = joined(frame_request(-7, client_id, request, version))
    header, offset = read_request_header(memoryview(frame))
    assert header == RequestHeader(12, version, -7, client_id)
    assert HeartbeatRequest.decode(frame, version, offset) == request


def test_the_bytes_of_request_headers() -> None:
    request = MetadataRequest(topics=[])
    assert joined(frame_request(5, "me", request, 4)) == b"\0\3\0\4\0\0\0\5\0\2me" + b"\0\0\0\0\1"
    assert joined(frame_request(5, None, request, 9)) == b"\0\3\0\x09\0\0\0\5\xff\xff\0" + b"\1\1\0\0\0"


def test_tagged_fields_of_a_request_header_are_skipped() -> None:
    frame = b"\0\3\0\x09\0\0\0\5\xff\xff" + b"\2\1\1!\x85\1\0" + b"body"
    header, offset = read_request_header(frame)
    assert header == RequestHeader(3, 9, 5, None)
    assert frame[offset:] == b"body"


def test_a_header_with_tagged_fields_without_end() -> None:
    frame = b"\0\3\0\x09\0\0\0\5\xff\xff" + b"\xc0\x96\xb1\2" + b"\x7f\0" * 5_000_000 + b"body"
    start = time.thread_time()
    with pytest.raises(ProtocolError, match="too many elements"):
        read_request_header(frame)
    assert time.thread_time() - start < 0.05


def test_headers_of_unknown_apis_and_versions_are_read_too() -> None:
    header, _ = read_request_header(b"\x7f\xff\0\x09\0\0\0\5\0\2me")
    assert header == RequestHeader(32767, 9, 5, "me")
    header, _ = read_request_header(b"\0\x12\0\x63\0\0\0\5\0\2me\0rest")
    assert header == RequestHeader(18, 99, 5, "me")


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\3\0\x09\0\0\0\5",
        b"\0\3\0\x09\0\0\0\5\0\x09me",
        b"\0\3\0\x09\0\0\0\5\0\1\xff\0",
        b"\0\3\0\x09\0\0\0\5\0\2me",
    ],
)
def test_bad_request_headers(frame: bytes) -> None:
    with pytest.raises(ProtocolError, match="not a request header"):
        read_request_header(frame)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_request_header_or_a_protocol_error(frame: bytes) -> None:
    try:
        _, offset = read_request_header(memoryview(frame))
    except ProtocolError:
        return
    assert 10 <= offset <= len(frame)


@pytest.mark.parametrize("version", [0, 3, 4])
def test_a_response_is_framed_and_read(version: int) -> None:
    response = HeartbeatResponse(error_code=27)
    frame = joined(frame_response(2**31 - 1, response, version))
    assert len(frame) == {0: 6, 3: 10, 4: 12}[version]
    assert read_correlation_id(frame) == 2**31 - 1
    assert read_response(frame, HeartbeatResponse, version) == response


@pytest.mark.parametrize("version", [0, 2, 3, 4])
def test_api_versions_is_answered_with_header_v0(version: int) -> None:
    response = ApiVersionsResponse(
        api_keys=[ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)]
    )
    frame = joined(frame_response(9, response, version))
    assert frame == b"\0\0\0\x09" + response.encode(version)
    assert read_response(frame, ApiVersionsResponse, version) == response


def test_an_unsupported_api_versions_request_is_answered_in_version_0() -> None:
    response = ApiVersionsResponse(error_code=UnsupportedVersion.code, api_keys=[])
    frame = joined(frame_response(9, response, 0))
    assert read_response(frame, ApiVersionsRequest.response, 4) == response


def test_big_batches_stay_chunks_of_their_own() -> None:
    batch = memoryview(bytes(100_000))
    request = ProduceRequest(
        acks=1,
        timeout_ms=1,
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t", partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)]
            )
        ],
    )
    chunks = frame_request(1, None, request, 9)
    assert chunks[1] is batch
    frame = joined(chunks)
    _, offset = read_request_header(frame)
    assert ProduceRequest.decode(frame, 9, offset) == request


@pytest.mark.parametrize("frame", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\1\1", b"\0\0\0\1\1\0\x7f"])
def test_bad_responses(frame: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_response(frame, ProduceResponse, 9)
    with pytest.raises(ProtocolError):
        read_response(frame, ApiVersionsResponse, 3)
    if len(frame) < 4:
        with pytest.raises(ProtocolError):
            read_correlation_id(frame)
