"""Broker keys of TLS, SASL, delegation tokens and authorisation."""

from __future__ import annotations

from millstream.config.checks import Check, OneOf, Value, at_least, between, one_of
from millstream.config.keys import ConfigKey, Kind
from millstream.config.listeners import PROTOCOLS

NOT_YET_TLS = "TLS is not served yet"
NOT_YET_SASL = "SASL is not served yet"
NOT_YET_ACLS = "every client may do everything until authorisation is served"
NO_JAVA = "it names a part of the Java platform"
NO_KERBEROS = "Kerberos is not offered"
NO_TOKENS = "delegation tokens are not offered"

_PRINCIPAL = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_OAUTH = "org.apache.kafka.common.security.oauthbearer."


def _tls(
    name: str, kind: Kind, default: Value, doc: str, check: Check | None = None, idle: str = NOT_YET_TLS
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, "per-broker", idle=idle)


def _sasl(
    name: str, kind: Kind, default: Value, doc: str, check: Check | None = None, idle: str = NOT_YET_SASL
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, "per-broker", idle=idle)


def _fixed(
    name: str, kind: Kind, default: Value, doc: str, check: Check | None = None, idle: str = NOT_YET_SASL
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, idle=idle)


SECURITY_KEYS = (
    _fixed(
        "allow.everyone.if.no.acl.found",
        "boolean",
        False,
        "Let everyone use a resource that no ACL speaks of.",
        None,
        NOT_YET_ACLS,
    ),
    _fixed(
        "authorizer.class.name",
        "string",
        "",
        "Switches authorisation by ACLs on; Kafka's own class name is taken as a sign for the built-in"
        " authoriser.",
        None,
        NOT_YET_ACLS,
    ),
    _fixed(
        "super.users",
        "string",
        "",
        "Principals that may do everything, as User:NAME divided by semicolons.",
        None,
        NOT_YET_ACLS,
    ),
    _fixed(
        "connections.max.reauth.ms",
        "long",
        0,
        "Close SASL connections that have not authenticated again for this long; 0 never does.",
    ),
    _fixed(
        "delegation.token.expiry.check.interval.ms",
        "long",
        3_600_000,
        "How often expired delegation tokens are looked for.",
        at_least(1),
        NO_TOKENS,
    ),
    _fixed(
        "delegation.token.expiry.time.ms",
        "long",
        86_400_000,
        "How long a delegation token lives without renewal.",
        at_least(1),
        NO_TOKENS,
    ),
    _fixed(
        "delegation.token.max.lifetime.ms",
        "long",
        604_800_000,
        "How long a delegation token lives at most.",
        at_least(1),
        NO_TOKENS,
    ),
    _fixed(
        "delegation.token.secret.key",
        "password",
        None,
        "The secret that delegation tokens are made with.",
        None,
        NO_TOKENS,
    ),
    _tls(
        "principal.builder.class",
        "class",
        _PRINCIPAL,
        "The class that names the principal of a connection.",
        None,
        NO_JAVA,
    ),
    _fixed(
        "sasl.client.callback.handler.class",
        "class",
        None,
        "The class that hands over the broker's own credentials.",
        None,
        NO_JAVA,
    ),
    _sasl("sasl.enabled.mechanisms", "list", ("GSSAPI",), "The SASL mechanisms that clients may use."),
    _sasl(
        "sasl.jaas.config",
        "password",
        None,
        "The credentials of a mechanism, in the form of a JAAS entry; usually given per listener and"
        " mechanism.",
    ),
    _sasl(
        "sasl.kerberos.kinit.cmd",
        "string",
        "/usr/bin/kinit",
        "The program that gets Kerberos tickets.",
        None,
        NO_KERBEROS,
    ),
    _sasl(
        "sasl.kerberos.min.time.before.relogin",
        "long",
        60_000,
        "The shortest time between two Kerberos logins.",
        None,
        NO_KERBEROS,
    ),
    _sasl(
        "sasl.kerberos.principal.to.local.rules",
        "list",
        ("DEFAULT",),
        "How Kerberos principals become user names.",
        None,
        NO_KERBEROS,
    ),
    _sasl(
        "sasl.kerberos.service.name", "string", None, "The Kerberos name of the service.", None, NO_KERBEROS
    ),
    _sasl(
        "sasl.kerberos.ticket.renew.jitter",
        "double",
        0.05,
        "The random part of the time of a ticket's renewal.",
        None,
        NO_KERBEROS,
    ),
    _sasl(
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
    _sasl(
        "sasl.login.refresh.buffer.seconds",
        "short",
        300,
        "How long before its end a token is renewed at the latest.",
    ),
    _sasl(
        "sasl.login.refresh.min.period.seconds", "short", 60, "The shortest time between renewals of a token."
    ),
    _sasl(
        "sasl.login.refresh.window.factor",
        "double",
        0.8,
        "The share of a token's life after which it is renewed.",
    ),
    _sasl(
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
        "the cluster's state is kept in the registry, not in a controller quorum",
    ),
    _sasl(
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
    ConfigKey(
        "security.inter.broker.protocol",
        "string",
        "PLAINTEXT",
        "The protocol that brokers use among themselves when inter.broker.listener.name is not set.",
        one_of(*PROTOCOLS),
    ),
    _fixed("security.providers", "string", None, "Classes that provide security algorithms.", None, NO_JAVA),
    _fixed(
        "ssl.allow.dn.changes",
        "boolean",
        False,
        "Let a new certificate have another distinguished name.",
        None,
        NOT_YET_TLS,
    ),
    _fixed(
        "ssl.allow.san.changes",
        "boolean",
        False,
        "Let a new certificate have other alternative names.",
        None,
        NOT_YET_TLS,
    ),
    _tls(
        "ssl.cipher.suites",
        "list",
        (),
        "The cipher suites that may be used; by default those of the platform.",
    ),
    _tls(
        "ssl.client.auth",
        "string",
        "none",
        "Whether clients must ('required'), may ('requested') or need not ('none') show a certificate.",
        one_of("required", "requested", "none"),
    ),
    _tls("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "The versions of TLS that are spoken."),
    _tls(
        "ssl.endpoint.identification.algorithm",
        "string",
        "https",
        "How the broker checks the name in another broker's certificate; empty does not check.",
    ),
    _tls("ssl.engine.factory.class", "class", None, "The class that makes TLS engines.", None, NO_JAVA),
    _tls("ssl.key.password", "password", None, "The password of the private key."),
    _tls(
        "ssl.keymanager.algorithm",
        "string",
        "SunX509",
        "The Java platform's algorithm for keys.",
        None,
        NO_JAVA,
    ),
    _tls("ssl.keystore.certificate.chain", "password", None, "The certificate chain itself, as PEM text."),
    _tls("ssl.keystore.key", "password", None, "The private key itself, as PEM text."),
    _tls("ssl.keystore.location", "string", None, "The file that holds the private key and its certificate."),
    _tls("ssl.keystore.password", "password", None, "The password of the key store."),
    _tls("ssl.keystore.type", "string", "JKS", "The format of the key store."),
    _fixed(
        "ssl.principal.mapping.rules",
        "string",
        "DEFAULT",
        "How a certificate's distinguished name becomes a user name.",
        None,
        NOT_YET_TLS,
    ),
    _tls("ssl.protocol", "string", "TLSv1.3", "The version of TLS to begin with."),
    _tls("ssl.provider", "string", None, "The Java platform's provider of TLS.", None, NO_JAVA),
    _tls(
        "ssl.secure.random.implementation",
        "string",
        None,
        "The Java platform's source of random numbers.",
        None,
        NO_JAVA,
    ),
    _tls(
        "ssl.trustmanager.algorithm",
        "string",
        "PKIX",
        "The Java platform's algorithm for trust.",
        None,
        NO_JAVA,
    ),
    _tls(
        "ssl.truststore.certificates", "password", None, "The trusted certificates themselves, as PEM text."
    ),
    _tls("ssl.truststore.location", "string", None, "The file that holds the trusted certificates."),
    _tls("ssl.truststore.password", "password", None, "The password of the trust store."),
    _tls("ssl.truststore.type", "string", "JKS", "The format of the trust store."),
)
