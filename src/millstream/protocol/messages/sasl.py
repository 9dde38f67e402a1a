"""SASL: the handshake, the mechanism's own bytes, and the credentials of SCRAM."""

from __future__ import annotations

from millstream.protocol.schema import Request, Response, Struct, optional, since
from millstream.protocol.types import i8, i16, i32, i64


class SaslHandshakeRequest(Request, key=17, versions=(0, 1), flexible=None):
    """After v0 the mechanism's bytes follow bare, after v1 in SaslAuthenticate (KIP-152). It never
    became flexible."""

    mechanism: str


class SaslHandshakeResponse(Response, to=SaslHandshakeRequest):
    """The mechanisms that the broker has."""

    error_code: i16 = 0
    mechanisms: list[str]


class SaslAuthenticateRequest(Request, key=36, versions=(0, 2), flexible=2):
    """v1 may be repeated on a live connection (KIP-368), v2 is flexible."""

    auth_bytes: bytes


class SaslAuthenticateResponse(Response, to=SaslAuthenticateRequest):
    """v1 adds how long the session lives (KIP-368)."""

    error_code: i16 = 0
    error_message: str | None = None
    auth_bytes: bytes
    session_lifetime_ms: i64 = since(1)


class DescribeUserScramCredentialsRequest(Request, key=50, versions=(0, 0), flexible=0):
    """Users, or null for all (KIP-554)."""

    class UserName(Struct):
        name: str

    users: list[UserName] | None = None


class DescribeUserScramCredentialsResponse(Response, to=DescribeUserScramCredentialsRequest):
    """Mechanisms and iterations, never secrets."""

    class CredentialInfo(Struct):
        mechanism: i8
        iterations: i32

    class DescribeUserScramCredentialsResult(Struct):
        user: str
        error_code: i16 = 0
        error_message: str | None = None
        credential_infos: list[DescribeUserScramCredentialsResponse.CredentialInfo]

    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: str | None = None
    results: list[DescribeUserScramCredentialsResult]


class AlterUserScramCredentialsRequest(Request, key=51, versions=(0, 0), flexible=0):
    """Credentials to set and to delete (KIP-554); the password is salted by the client."""

    class ScramCredentialDeletion(Struct):
        name: str
        mechanism: i8

    class ScramCredentialUpsertion(Struct):
        name: str
        mechanism: i8
        iterations: i32
        salt: bytes
        salted_password: bytes

    deletions: list[ScramCredentialDeletion] = optional()
    upsertions: list[ScramCredentialUpsertion] = optional()


class AlterUserScramCredentialsResponse(Response, to=AlterUserScramCredentialsRequest):
    """One result for each user."""

    class AlterUserScramCredentialsResult(Struct):
        user: str
        error_code: i16 = 0
        error_message: str | None = None

    throttle_time_ms: i32 = 0
    results: list[AlterUserScramCredentialsResult]
