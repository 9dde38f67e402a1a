"""Broker keys of TLS."""

from __future__ import annotations

from millstream.config.checks import Check, Value, one_of
from millstream.config.keys import ConfigKey, Kind

NOT_YET = "TLS is not served yet"
NO_JAVA = "it names a part of the Java platform"


def _fixed(
    name: str, kind: Kind, default: Value, doc: str, check: Check | None = None, idle: str = NOT_YET
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, idle=idle)


def _per_broker(
    name: str, kind: Kind, default: Value, doc: str, check: Check | None = None, idle: str = NOT_YET
) -> ConfigKey:
    return ConfigKey(name, kind, default, doc, check, "per-broker", idle=idle)


TLS_KEYS = (
    _fixed(
        "ssl.allow.dn.changes",
        "boolean",
        False,
        "Let a new certificate have another distinguished name.",
        None,
        NOT_YET,
    ),
    _fixed(
        "ssl.allow.san.changes",
        "boolean",
        False,
        "Let a new certificate have other alternative names.",
        None,
        NOT_YET,
    ),
    _per_broker(
        "ssl.cipher.suites",
        "list",
        (),
        "The cipher suites that may be used; by default those of the platform.",
    ),
    _per_broker(
        "ssl.client.auth",
        "string",
        "none",
        "Whether clients must ('required'), may ('requested') or need not ('none') show a certificate.",
        one_of("required", "requested", "none"),
    ),
    _per_broker(
        "ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "The versions of TLS that are spoken."
    ),
    _per_broker(
        "ssl.endpoint.identification.algorithm",
        "string",
        "https",
        "How the broker checks the name in another broker's certificate; empty does not check.",
    ),
    _per_broker(
        "ssl.engine.factory.class", "class", None, "The class that makes TLS engines.", None, NO_JAVA
    ),
    _per_broker("ssl.key.password", "password", None, "The password of the private key."),
    _per_broker(
        "ssl.keymanager.algorithm",
        "string",
        "SunX509",
        "The Java platform's algorithm for keys.",
        None,
        NO_JAVA,
    ),
    _per_broker(
        "ssl.keystore.certificate.chain", "password", None, "The certificate chain itself, as PEM text."
    ),
    _per_broker("ssl.keystore.key", "password", None, "The private key itself, as PEM text."),
    _per_broker(
        "ssl.keystore.location", "string", None, "The file that holds the private key and its certificate."
    ),
    _per_broker("ssl.keystore.password", "password", None, "The password of the key store."),
    _per_broker("ssl.keystore.type", "string", "JKS", "The format of the key store."),
    _fixed(
        "ssl.principal.mapping.rules",
        "string",
        "DEFAULT",
        "How a certificate's distinguished name becomes a user name.",
        None,
        NOT_YET,
    ),
    _per_broker("ssl.protocol", "string", "TLSv1.3", "The version of TLS to begin with."),
    _per_broker("ssl.provider", "string", None, "The Java platform's provider of TLS.", None, NO_JAVA),
    _per_broker(
        "ssl.secure.random.implementation",
        "string",
        None,
        "The Java platform's source of random numbers.",
        None,
        NO_JAVA,
    ),
    _per_broker(
        "ssl.trustmanager.algorithm",
        "string",
        "PKIX",
        "The Java platform's algorithm for trust.",
        None,
        NO_JAVA,
    ),
    _per_broker(
        "ssl.truststore.certificates", "password", None, "The trusted certificates themselves, as PEM text."
    ),
    _per_broker("ssl.truststore.location", "string", None, "The file that holds the trusted certificates."),
    _per_broker("ssl.truststore.password", "password", None, "The password of the trust store."),
    _per_broker("ssl.truststore.type", "string", "JKS", "The format of the trust store."),
)
