"""Broker keys of SASL."""

from __future__ import annotations

from millstream.config.checks import Check, OneOf, Value, between
from millstream.config.keys import ConfigKey, Kind

NOT_YET = "SASL is not served yet"
NO_JAVA = "it names a part of the Java platform"
NO_KERBEROS = "Kerberos is not offered"
NO_QUORUM = "the cluster's state is kept in the registry, not in a controller quorum"

_OAUTH = "org.apache.kafka.common.security.oauthbearer."


def _fixed(
    name: str, kind: Kind, default: Value, doc: str, check: Check | None = None, idle: str = NOT_YET
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, idle=idle)


def _per_broker(
    name: str, kind: Kind, default: Value, doc: str, check: Check | None = None, idle: str = NOT_YET
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, "per-broker", idle=idle)


SASL_KEYS = (
    _fixed(
        "sasl.client.callback.handler.class",
        "class",
        None,
        "The class that hands over the broker's own credentials.",
        None,
        NO_JAVA,
    ),
    _per_broker("sasl.enabled.mechanisms", "list", ("GSSAPI",), "The SASL mechanisms that clients may use."),
    _per_broker(
        "sasl.jaas.config",
        "password",
        None,
        "The credentials of a mechanism, in the form of a JAAS entry; usually given per listener and"
        " mechanism.",
    ),
    _per_broker(
        "sasl.kerberos.kinit.cmd",
        "string",
        "/usr/bin/kinit",
        "The program that gets Kerberos tickets.",
        None,
        NO_KERBEROS,
    ),
    _per_broker(
        "sasl.kerberos.min.time.before.relogin",
        "long",
        60_000,
        "The shortest time between two Kerberos logins.",
        None,
        NO_KERBEROS,
    ),
    _per_broker(
        "sasl.kerberos.principal.to.local.rules",
        "list",
        ("DEFAULT",),
        "How Kerberos principals become user names.",
        None,
        NO_KERBEROS,
    ),
    _per_broker(
        "sasl.kerberos.service.name", "string", None, "The Kerberos name of the service.", None, NO_KERBEROS
    ),
    _per_broker(
        "sasl.kerberos.ticket.renew.jitter",
        "double",
        0.05,
        "The random part of the time of a ticket's renewal.",
        None,
        NO_KERBEROS,
    ),
    _per_broker(
        "sasl.kerberos.ticket.renew.window.factor",
        "double",
        0.8,
        "The share of a ticket's life after which it is renewed.",
        None,
        NO_KERBEROS,
    ),
    _fixed(
        "sasl.login.callback.handler.class",
        "class",
        None,
        "The class that hands over credentials at login.",
        None,
        NO_JAVA,
    ),
    _fixed("sasl.login.class", "class", None, "The class that logs in.", None, NO_JAVA),
    _fixed("sasl.login.connect.timeout.ms", "int", None, "How long a connection to a token server may take."),
    _fixed("sasl.login.read.timeout.ms", "int", None, "How long an answer of a token server may take."),
    _per_broker(
        "sasl.login.refresh.buffer.seconds",
        "short",
        300,
        "How long before its end a token is renewed at the latest.",
    ),
    _per_broker(
        "sasl.login.refresh.min.period.seconds", "short", 60, "The shortest time between renewals of a token."
    ),
    _per_broker(
        "sasl.login.refresh.window.factor",
        "double",
        0.8,
        "The share of a token's life after which it is renewed.",
    ),
    _per_broker(
        "sasl.login.refresh.window.jitter",
        "double",
        0.05,
        "The random part of the time of a token's renewal.",
    ),
    _fixed(
        "sasl.login.retry.backoff.max.ms", "long", 10_000, "The longest pause between attempts to log in."
    ),
    _fixed("sasl.login.retry.backoff.ms", "long", 100, "The first pause between attempts to log in."),
    _fixed(
        "sasl.mechanism.controller.protocol",
        "string",
        "GSSAPI",
        "The mechanism towards the controller quorum.",
        None,
        NO_QUORUM,
    ),
    _per_broker(
        "sasl.mechanism.inter.broker.protocol",
        "string",
        "GSSAPI",
        "The mechanism that brokers use among themselves.",
    ),
    _fixed(
        "sasl.oauthbearer.assertion.algorithm",
        "string",
        "RS256",
        "How assertions to the token server are signed.",
        OneOf(("ES256", "RS256"), ignores_case=True),
    ),
    _fixed("sasl.oauthbearer.assertion.claim.aud", "string", None, "The audience in assertions."),
    _fixed(
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "int",
        300,
        "How long an assertion is valid.",
        between(0, 86_400),
    ),
    _fixed("sasl.oauthbearer.assertion.claim.iss", "string", None, "The issuer in assertions."),
    _fixed("sasl.oauthbearer.assertion.claim.jti.include", "boolean", False, "Give each assertion an id."),
    _fixed(
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "int",
        60,
        "How far before now an assertion is valid.",
        between(0, 3600),
    ),
    _fixed("sasl.oauthbearer.assertion.claim.sub", "string", None, "The subject in assertions."),
    _fixed("sasl.oauthbearer.assertion.file", "string", None, "A file with a ready assertion."),
    _fixed(
        "sasl.oauthbearer.assertion.private.key.file",
        "string",
        None,
        "The key that assertions are signed with.",
    ),
    _fixed(
        "sasl.oauthbearer.assertion.private.key.passphrase", "password", None, "The passphrase of that key."
    ),
    _fixed(
        "sasl.oauthbearer.assertion.template.file",
        "string",
        None,
        "A file with further claims of assertions.",
    ),
    _fixed(
        "sasl.oauthbearer.client.credentials.client.id", "string", None, "The client id for the token server."
    ),
    _fixed(
        "sasl.oauthbearer.client.credentials.client.secret",
        "password",
        None,
        "The client secret for the token server.",
    ),
    _fixed(
        "sasl.oauthbearer.clock.skew.seconds",
        "int",
        30,
        "By how much clocks may differ when tokens are checked.",
    ),
    _fixed("sasl.oauthbearer.expected.audience", "list", (), "The audiences of which a token must have one."),
    _fixed("sasl.oauthbearer.expected.issuer", "string", None, "The issuer that a token must have."),
    _fixed(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "long",
        3_600_000,
        "How often the keys of the token server are read again.",
    ),
    _fixed(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "long",
        10_000,
        "The longest pause between attempts to read those keys.",
    ),
    _fixed(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "long",
        100,
        "The first pause between attempts to read those keys.",
    ),
    _fixed(
        "sasl.oauthbearer.jwks.endpoint.url",
        "string",
        None,
        "Where the keys that tokens are checked with are read.",
    ),
    _fixed(
        "sasl.oauthbearer.jwt.retriever.class",
        "class",
        _OAUTH + "DefaultJwtRetriever",
        "The class that fetches tokens.",
        None,
        NO_JAVA,
    ),
    _fixed(
        "sasl.oauthbearer.jwt.validator.class",
        "class",
        _OAUTH + "DefaultJwtValidator",
        "The class that checks tokens.",
        None,
        NO_JAVA,
    ),
    _fixed("sasl.oauthbearer.scope", "string", None, "The scope that is asked of the token server."),
    _fixed(
        "sasl.oauthbearer.scope.claim.name", "string", "scope", "The claim of a token that holds its scope."
    ),
    _fixed(
        "sasl.oauthbearer.sub.claim.name", "string", "sub", "The claim of a token that names the principal."
    ),
    _fixed("sasl.oauthbearer.token.endpoint.url", "string", None, "Where tokens are fetched."),
    _fixed(
        "sasl.server.callback.handler.class",
        "class",
        None,
        "The class that checks credentials.",
        None,
        NO_JAVA,
    ),
    _fixed(
        "sasl.server.max.receive.size",
        "int",
        512 * 1024,
        "The largest message of a client before it is authenticated.",
    ),
)
