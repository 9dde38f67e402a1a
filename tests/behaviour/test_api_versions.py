"""ApiVersions: the traps that broke real brokers, and what old and unknown requests get."""

from __future__ import annotations

import struct

import pytest

from millstream.errors import InvalidRequest, UnsupportedVersion
from millstream.protocol.messages import REQUESTS, ApiVersionsRequest, ApiVersionsResponse, MetadataRequest
from tests.wire import Wire

API_VERSIONS = 18
SOFTWARE = {"client_software_name": "mill-test.1", "client_software_version": "0.1.0"}
MUST_BE_SERVED = (0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 60, 61, 75)


@pytest.mark.parametrize("version", range(5))
def test_every_version_answers_with_a_plain_header(bootstrap: str, version: int) -> None:
    """The response header has no tagged fields even in flexible versions: the error code comes at byte 4."""
    with Wire(bootstrap) as wire:
        request = ApiVersionsRequest(**SOFTWARE) if version >= 3 else ApiVersionsRequest()
        wire.send(request, version)
        frame = wire.receive_frame()
        assert struct.unpack_from(">ih", frame) == (1, 0)
        answer = ApiVersionsResponse.decode(frame, version, 4)
        ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
        assert len(ranges) == len(answer.api_keys)
        assert set(MUST_BE_SERVED) <= set(ranges)
        # Produce is advertised from 0 on so that old librdkafka compresses; see reference 1.2
        assert ranges[0] == (0, 13)
        assert ranges[1] == (4, 18)
        assert ranges[2] == (1, 11)
        assert ranges[3] == (0, 13)
        assert ranges[18] == (0, 4)
        for key in set(ranges) & set(REQUESTS) - {0}:
            lowest, highest = REQUESTS[key].versions
            assert max(lowest, ranges[key][0]) <= min(highest, ranges[key][1])
        if version >= 3 and answer.finalized_features:
            assert answer.finalized_features_epoch >= 0


def test_telemetry_is_not_advertised_before_it_is_served(bootstrap: str) -> None:
    with Wire(bootstrap) as wire:
        keys = {api.api_key for api in wire.ask(ApiVersionsRequest(), 0).api_keys}
    assert not keys & {71, 72}
    assert not keys & {4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, 82}


@pytest.mark.parametrize("version", [5, 9, 32767])
def test_a_version_nobody_knows_is_answered_in_version_0(bootstrap: str, version: int) -> None:
    with Wire(bootstrap) as wire:
        wire.send_frame(
            struct.pack(">hhih", API_VERSIONS, version, 77, 4) + b"wire" + b"\x00\x05later\x02x\x00"
        )
        frame = wire.receive_frame()
        assert struct.unpack_from(">i", frame) == (77,)
        answer = ApiVersionsResponse.decode(frame, 0, 4)
        assert answer.error_code == UnsupportedVersion.code
        assert {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}[API_VERSIONS] == (
            0,
            4,
        )
        # the client goes on, in a version that both know
        assert wire.ask(ApiVersionsRequest(**SOFTWARE), 3).error_code == 0


@pytest.mark.parametrize("field", ["client_software_name", "client_software_version"])
@pytest.mark.parametrize("text", ["", "-begins-badly", "ends-badly.", "with space", "umläut", "new\nline"])
def test_the_name_of_the_clients_software_is_checked(bootstrap: str, field: str, text: str) -> None:
    with Wire(bootstrap) as wire:
        answer = wire.ask(ApiVersionsRequest(**{**SOFTWARE, field: text}), 3)
        assert answer.error_code == InvalidRequest.code
        assert wire.ask(ApiVersionsRequest(**SOFTWARE), 3).error_code == 0


@pytest.mark.parametrize(
    ("key", "version"),
    [
        (0, 0),
        (0, 2),
        (0, 14),
        (1, 3),
        (1, 19),
        (2, 0),
        (3, 14),
        (19, 1),
        (32, 0),
        (4, 0),
        (999, 0),
        (-1, 0),
        (3, -1),
    ],
)
def test_other_requests_in_unknown_versions_end_the_connection(
    bootstrap: str, key: int, version: int
) -> None:
    """As Apache Kafka does. Nothing else is hurt: the next connection is served."""
    with Wire(bootstrap) as wire:
        wire.send_frame(struct.pack(">hhih", key, version, 5, -1) + bytes(40))
        assert wire.is_closed_by_broker()
    with Wire(bootstrap) as wire:
        assert wire.ask(MetadataRequest(topics=[])).brokers


def test_a_client_without_a_name(bootstrap: str) -> None:
    with Wire(bootstrap, client_id=None) as wire:
        assert wire.ask(MetadataRequest(topics=[])).cluster_id
        assert wire.ask(MetadataRequest(topics=[]), 5).cluster_id
