"""ApiVersions: what a broker understands; the first thing every client asks."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct, since, tagged
from millstream.protocol.types import i16, i32, i64


class ApiVersionsRequest(Request, key=18, versions=(0, 4), flexible=3):
    """v3 is flexible and names the client's software (KIP-511)."""

    client_software_name: str = since(3)
    client_software_version: str = since(3)


class ApiVersionsResponse(Response, to=ApiVersionsRequest):
    """v1 adds throttling, v3 features (KIP-584), v4 lets their least version be 0. The frame's
    header is always of version 0."""

    class ApiVersion(Struct):
        api_key: i16
        min_version: i16
        max_version: i16

    class SupportedFeatureKey(Struct):
        name: str
        min_version: i16
        max_version: i16

    class FinalizedFeatureKey(Struct):
        name: str
        max_version_level: i16
        min_version_level: i16

    error_code: i16 = 0
    api_keys: list[ApiVersion]
    throttle_time_ms: i32 = since(1)
    supported_features: list[SupportedFeatureKey] = tagged(0, since=3)
    finalized_features_epoch: i64 = tagged(1, -1, since=3)
    finalized_features: list[FinalizedFeatureKey] = tagged(2, since=3)
    zk_migration_ready: bool = tagged(3, False, since=3)
