"""Access control lists: describe, create, delete."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct
from millstream.protocol.types import i8, i16, i32


class DescribeAclsRequest(Request, key=29, versions=(1, 3), flexible=2):
    """v1 knows pattern types (KIP-290), v2 is flexible, v3 knows users as resources (KIP-373)."""

    resource_type_filter: i8
    resource_name_filter: str | None = None
    pattern_type_filter: i8 = 3
    principal_filter: str | None = None
    host_filter: str | None = None
    operation: i8
    permission_type: i8


class DescribeAclsResponse(Response, to=DescribeAclsRequest):
    """ACLs by resource."""

    class AclDescription(Struct):
        principal: str
        host: str
        operation: i8
        permission_type: i8

    class DescribeAclsResource(Struct):
        resource_type: i8
        resource_name: str
        pattern_type: i8 = 3
        acls: list[DescribeAclsResponse.AclDescription]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    resources: list[DescribeAclsResource]


class CreateAclsRequest(Request, key=30, versions=(1, 3), flexible=2):
    """v1 knows pattern types (KIP-290), v2 is flexible, v3 knows users as resources (KIP-373)."""

    class AclCreation(Struct):
        resource_type: i8
        resource_name: str
        resource_pattern_type: i8 = 3
        principal: str
        host: str
        operation: i8
        permission_type: i8

    creations: list[AclCreation]


class CreateAclsResponse(Response, to=CreateAclsRequest):
    """One result for each ACL."""

    class AclCreationResult(Struct):
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    results: list[AclCreationResult]


class DeleteAclsRequest(Request, key=31, versions=(1, 3), flexible=2):
    """v1 knows pattern types (KIP-290), v2 is flexible, v3 knows users as resources (KIP-373)."""

    class DeleteAclsFilter(Struct):
        resource_type_filter: i8
        resource_name_filter: str | None = None
        pattern_type_filter: i8 = 3
        principal_filter: str | None = None
        host_filter: str | None = None
        operation: i8
        permission_type: i8

    filters: list[DeleteAclsFilter]


class DeleteAclsResponse(Response, to=DeleteAclsRequest):
    """The ACLs that each filter took away."""

    class DeleteAclsMatchingAcl(Struct):
        error_code: i16 = 0
        error_message: str | None = None
        resource_type: i8
        resource_name: str
        pattern_type: i8 = 3
        principal: str
        host: str
        operation: i8
        permission_type: i8

    class DeleteAclsFilterResult(Struct):
        error_code: i16 = 0
        error_message: str | None = None
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl]

    throttle_time_ms: i32 = 0
    filter_results: list[DeleteAclsFilterResult]
