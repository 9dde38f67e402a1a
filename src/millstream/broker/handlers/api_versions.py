"""ApiVersions: what this broker speaks."""

from __future__ import annotations

import re

from millstream.broker.router import Context, handles
from millstream.errors import InvalidRequest, UnsupportedVersion
from millstream.protocol.messages import ApiVersionsRequest, ApiVersionsResponse

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
    return response
