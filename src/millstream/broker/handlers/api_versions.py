"""ApiVersions: what this broker speaks."""

from __future__ import annotations

import re

from millstream.broker.router import Context, handles
from millstream.errors import InvalidRequest, UnsupportedVersion
from millstream.protocol.messages import ApiVersionsRequest, ApiVersionsResponse

FEATURES = {"group.version": 1, "transaction.version": 2}
"""The cluster's features, at the levels that are in force; each may be as low as 0."""

_FINALIZED = [
    ApiVersionsResponse.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
    for name, level in FEATURES.items()
]
_SUPPORTED = [
    ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=0, max_version=level)
    for name, level in FEATURES.items()
]
_ZERO_SINCE = 4
"""Clients of earlier versions take no feature whose least level is 0 (KIP-1022): it is not told to them."""

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


@handles(ApiVersionsRequest)
def api_versions(ctx: Context, req: ApiVersionsRequest | None) -> ApiVersionsResponse:
    """v3 flexible, client software named (KIP-511); v4 features with a minimum of 0 (KIP-584).

    Without a request, that is, asked in a version newer than ours, the answer is in version 0.
    """
    response = ApiVersionsResponse(api_keys=ctx.broker.api_keys)
    if req is None:
        response.error_code = UnsupportedVersion.code
    elif ctx.version >= 3:
        for name in (req.client_software_name, req.client_software_version):
            if not _SOFTWARE.fullmatch(name):
                return ApiVersionsResponse(error_code=InvalidRequest.code, api_keys=[])
        response.finalized_features_epoch = 0
        response.finalized_features = _FINALIZED
        if ctx.version >= _ZERO_SINCE:
            response.supported_features = _SUPPORTED
    return response
