"""The options of a sink, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millstream.client.producer_settings import ProducerSettings
from millstream.streams.options import (
    BadOption,
    Setting,
    bootstrap_of,
    check_names,
    client_settings,
    get,
    text,
)

EXACTLY_ONCE = "exactly-once"
AT_LEAST_ONCE = "at-least-once"

KNOWN = ("topic", "guarantee", "outputName", "includeHeaders")


def _flag(given: str) -> bool:
    if given.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return given.lower() == "true"


def _acks(given: str) -> str | int:
    return given if given == "all" else int(given)


SETTINGS = {
    "acks": Setting("acks", _acks),
    "batch.size": Setting("batch_bytes", int),
    "buffer.memory": Setting("buffer_bytes", int),
    "client.id": Setting("client_id", str),
    "compression.type": Setting("compression", str),
    "delivery.timeout.ms": Setting("delivery_timeout_ms", int),
    "enable.idempotence": Setting("idempotent", _flag),
    "linger.ms": Setting("linger_ms", float),
    "max.block.ms": Setting("max_block_ms", int),
    "max.in.flight.requests.per.connection": Setting("max_in_flight", int),
    "max.request.size": Setting("max_request_bytes", int),
    "request.timeout.ms": Setting("request_timeout_ms", int),
    "retries": Setting("retries", int),
    "retry.backoff.ms": Setting("retry_backoff_ms", float),
    "retry.backoff.max.ms": Setting("retry_backoff_max_ms", float),
    "transaction.timeout.ms": Setting("transaction_timeout_ms", int),
}

_OURS = "keys and values are written as the columns hold them; cast the columns instead"
FORBIDDEN = {
    "key.serializer": _OURS,
    "value.serializer": _OURS,
    "interceptor.classes": "Java's interceptors cannot run here",
    "partitioner.class": "no Java runs here; name each row's partition in a column partition",
    "transactional.id": "the sink makes its own, from the query, the partition and the attempt",
}


@dataclass(frozen=True)
class SinkOptions:
    """What a sink was told.

    `output_name`: which output of a function for foreachBatch a batch write is. `producer`: keywords of
    Millstream's producer.
    """

    bootstrap: str
    topic: str | None
    is_exactly_once: bool
    output_name: str | None = None
    producer: dict[str, Any] = field(default_factory=dict)

    @property
    def timeout_ms(self) -> int:
        """How long the driver tries to end a batch."""
        return int(self.producer.get("delivery_timeout_ms", ProducerSettings().delivery_timeout_ms))


def fitting(producer: dict[str, Any]) -> dict[str, Any]:
    """Sizes that go together: Kafka's producers take any, so a query that moves over may have any.

    A buffer that is given holds the largest request, else it is made to; no batch is larger than a request.
    """
    usual = ProducerSettings()
    buffer_bytes = producer.get("buffer_bytes", usual.buffer_bytes)
    request_bytes = producer.get("max_request_bytes", usual.max_request_bytes)
    batch_bytes = producer.get("batch_bytes", usual.batch_bytes)
    if "buffer_bytes" in producer:
        request_bytes = min(request_bytes, buffer_bytes)
    sizes = {
        "buffer_bytes": max(buffer_bytes, request_bytes),
        "max_request_bytes": request_bytes,
        "batch_bytes": min(batch_bytes, request_bytes),
    }
    return producer | {name: size for name, size in sizes.items() if size != getattr(usual, name)}


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Read a sink's options; BadOption says what is wrong with one."""
    check_names(options, KNOWN, "sink")
    guarantee = text(options, "guarantee", EXACTLY_ONCE, (EXACTLY_ONCE, AT_LEAST_ONCE))
    topic = get(options, "topic")
    if topic == "":
        raise BadOption('option topic is empty: write .option("topic", "NAME"), or leave it out')
    producer = fitting(client_settings(options, SETTINGS, FORBIDDEN, "sink"))
    is_exactly_once = guarantee == EXACTLY_ONCE
    if is_exactly_once and (
        producer.get("acks", "all") not in ("all", -1) or producer.get("idempotent") is False
    ):
        raise BadOption(
            "exactly-once needs kafka.acks=all and kafka.enable.idempotence=true: leave them out, or set "
            f'.option("guarantee", "{AT_LEAST_ONCE}")'
        )
    try:
        ProducerSettings(**producer)
    except ValueError as error:
        raise BadOption(f"the sink's kafka.* options do not go together: {error}") from None
    name = get(options, "outputName")
    if name is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,80}", name):
        raise BadOption(f"option outputName is a word of letters, digits, '.', '_' and '-', not {name!r}")
    return SinkOptions(bootstrap_of(options), topic, is_exactly_once, name, producer)
