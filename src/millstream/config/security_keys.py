"""Broker keys of authorisation, principals and delegation tokens."""

from __future__ import annotations

from millstream.config.checks import at_least, one_of
from millstream.config.keys import ConfigKey
from millstream.config.listeners import PROTOCOLS

NOT_YET_SASL = "SASL is not served yet"
NOT_YET_ACLS = "every client may do everything until authorisation is served"
NO_JAVA = "it names a part of the Java platform"
NO_TOKENS = "delegation tokens are not offered"

_PRINCIPAL = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"

SECURITY_KEYS = (
    ConfigKey(
        "allow.everyone.if.no.acl.found",
        "boolean",
        False,
        "Let everyone use a resource that no ACL speaks of.",
        idle=NOT_YET_ACLS,
    ),
    ConfigKey(
        "authorizer.class.name",
        "string",
        "",
        "Switches authorisation by ACLs on; Kafka's own class name is taken as a sign for the built-in"
        " authoriser.",
        idle=NOT_YET_ACLS,
    ),
    ConfigKey(
        "super.users",
        "string",
        "",
        "Principals that may do everything, as User:NAME divided by semicolons.",
        idle=NOT_YET_ACLS,
    ),
    ConfigKey(
        "connections.max.reauth.ms",
        "long",
        0,
        "Close SASL connections that have not authenticated again for this long; 0 never does.",
        idle=NOT_YET_SASL,
    ),
    ConfigKey(
        "delegation.token.expiry.check.interval.ms",
        "long",
        3_600_000,
        "How often expired delegation tokens are looked for.",
        at_least(1),
        idle=NO_TOKENS,
    ),
    ConfigKey(
        "delegation.token.expiry.time.ms",
        "long",
        86_400_000,
        "How long a delegation token lives without renewal.",
        at_least(1),
        idle=NO_TOKENS,
    ),
    ConfigKey(
        "delegation.token.max.lifetime.ms",
        "long",
        604_800_000,
        "How long a delegation token lives at most.",
        at_least(1),
        idle=NO_TOKENS,
    ),
    ConfigKey(
        "delegation.token.secret.key",
        "password",
        None,
        "The secret that delegation tokens are made with.",
        idle=NO_TOKENS,
    ),
    ConfigKey(
        "principal.builder.class",
        "class",
        _PRINCIPAL,
        "The class that names the principal of a connection.",
        None,
        "per-broker",
        idle=NO_JAVA,
    ),
    ConfigKey(
        "security.inter.broker.protocol",
        "string",
        "PLAINTEXT",
        "The protocol that brokers use among themselves when inter.broker.listener.name is not set.",
        one_of(*PROTOCOLS),
    ),
    ConfigKey(
        "security.providers", "string", None, "Classes that provide security algorithms.", idle=NO_JAVA
    ),
)
