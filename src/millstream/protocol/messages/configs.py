"""Configurations of topics, brokers and groups: describe and alter."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct, since, tagged
from millstream.protocol.types import i8, i16, i32


class DescribeConfigsRequest(Request, key=32, versions=(1, 4), flexible=4):
    """v1 asks for synonyms (KIP-226), v3 for documentation (KIP-569), v4 is flexible."""

    class DescribeConfigsResource(Struct):
        resource_type: i8
        resource_name: str
        configuration_keys: list[str] | None = None

    resources: list[DescribeConfigsResource]
    include_synonyms: bool = False
    include_documentation: bool = since(3)


class DescribeConfigsResponse(Response, to=DescribeConfigsRequest):
    """v1 adds where a value comes from (KIP-226), v3 its type and documentation (KIP-569)."""

    class DescribeConfigsSynonym(Struct):
        name: str
        value: str | None = None
        source: i8

    class DescribeConfigsResourceResult(Struct):
        name: str
        value: str | None = None
        read_only: bool
        config_source: i8 = -1
        is_sensitive: bool
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym]
        config_type: i8 = since(3)
        documentation: str | None = since(3)

    class DescribeConfigsResult(Struct):
        error_code: i16 = 0
        error_message: str | None = None
        resource_type: i8
        resource_name: str
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult]

    throttle_time_ms: i32 = 0
    results: list[DescribeConfigsResult]


class AlterConfigsRequest(Request, key=33, versions=(0, 2), flexible=2):
    """Replaces all overrides of a resource at once; v2 is flexible."""

    class AlterableConfig(Struct):
        name: str
        value: str | None = None

    class AlterConfigsResource(Struct):
        resource_type: i8
        resource_name: str
        configs: list[AlterConfigsRequest.AlterableConfig]

    resources: list[AlterConfigsResource]
    validate_only: bool


class AlterConfigsResponse(Response, to=AlterConfigsRequest):
    """One result for each resource."""

    class AlterConfigsResourceResponse(Struct):
        error_code: i16 = 0
        error_message: str | None = None
        resource_type: i8
        resource_name: str

    throttle_time_ms: i32 = 0
    responses: list[AlterConfigsResourceResponse]


class IncrementalAlterConfigsRequest(Request, key=44, versions=(0, 1), flexible=1):
    """Sets, deletes, appends to or subtracts from single configs (KIP-339); v1 is flexible.

    Millstream's own, from a broker that passes it on: what a list of that broker is where nothing is set
    while it runs.
    """

    class AlterableConfig(Struct):
        name: str
        config_operation: i8
        value: str | None = None
        inherited: str | None = tagged(30000, None, since=1)

    class AlterConfigsResource(Struct):
        resource_type: i8
        resource_name: str
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig]

    resources: list[AlterConfigsResource]
    validate_only: bool


class IncrementalAlterConfigsResponse(Response, to=IncrementalAlterConfigsRequest):
    """One result for each resource."""

    class AlterConfigsResourceResponse(Struct):
        error_code: i16 = 0
        error_message: str | None = None
        resource_type: i8
        resource_name: str

    throttle_time_ms: i32 = 0
    responses: list[AlterConfigsResourceResponse]
