"""Millstream: a distributed streaming platform that speaks the Kafka protocol.

Names are imported when they are first used, so that `import millstream` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.client.admin import AsyncAdmin as AsyncAdmin
    from millstream.client.admin_blocking import Admin as Admin
    from millstream.client.consumer import AsyncConsumer as AsyncConsumer
    from millstream.client.consumer_blocking import Consumer as Consumer
    from millstream.client.consumer_errors import LogTruncated as LogTruncated
    from millstream.client.consumer_errors import NoOffset as NoOffset
    from millstream.client.consumer_errors import NotSubscribed as NotSubscribed
    from millstream.client.errors import NoSuchTopic as NoSuchTopic
    from millstream.client.errors import Unreachable as Unreachable
    from millstream.client.face import Closed as Closed
    from millstream.client.group_metadata import GroupMetadata as GroupMetadata
    from millstream.client.producer import AsyncProducer as AsyncProducer
    from millstream.client.producer_blocking import Producer as Producer
    from millstream.client.producer_buffer import BufferFull as BufferFull
    from millstream.client.producer_columns import DeliveredRange as DeliveredRange
    from millstream.client.producer_columns import Deliveries as Deliveries
    from millstream.client.producer_coordinator import OffsetAndMetadata as OffsetAndMetadata
    from millstream.client.producer_delivery import Delivered as Delivered
    from millstream.client.producer_delivery import Delivery as Delivery
    from millstream.client.record import ReadBatch as ReadBatch
    from millstream.client.transactions_client import NoTransaction as NoTransaction
    from millstream.client.transactions_client import TransactionAborted as TransactionAborted
    from millstream.client.transactions_client import TransactionFailed as TransactionFailed
    from millstream.errors import BadRecords as BadRecords
    from millstream.errors import KafkaError as KafkaError
    from millstream.errors import MillstreamError as MillstreamError
    from millstream.model import TopicPartition as TopicPartition
    from millstream.protocol.consumer_kernel import Record as Record

_MODULES = {
    "Admin": "millstream.client.admin_blocking",
    "AsyncAdmin": "millstream.client.admin",
    "AsyncConsumer": "millstream.client.consumer",
    "AsyncProducer": "millstream.client.producer",
    "BadRecords": "millstream.errors",
    "BufferFull": "millstream.client.producer_buffer",
    "Closed": "millstream.client.face",
    "Consumer": "millstream.client.consumer_blocking",
    "Delivered": "millstream.client.producer_delivery",
    "DeliveredRange": "millstream.client.producer_columns",
    "Deliveries": "millstream.client.producer_columns",
    "Delivery": "millstream.client.producer_delivery",
    "GroupMetadata": "millstream.client.group_metadata",
    "KafkaError": "millstream.errors",
    "LogTruncated": "millstream.client.consumer_errors",
    "MillstreamError": "millstream.errors",
    "NoOffset": "millstream.client.consumer_errors",
    "NoSuchTopic": "millstream.client.errors",
    "NoTransaction": "millstream.client.transactions_client",
    "NotSubscribed": "millstream.client.consumer_errors",
    "OffsetAndMetadata": "millstream.client.producer_coordinator",
    "Producer": "millstream.client.producer_blocking",
    "ReadBatch": "millstream.client.record",
    "Record": "millstream.protocol.consumer_kernel",
    "TopicPartition": "millstream.model",
    "TransactionAborted": "millstream.client.transactions_client",
    "TransactionFailed": "millstream.client.transactions_client",
    "Unreachable": "millstream.client.errors",
}

__all__ = [*_MODULES]


if not TYPE_CHECKING:  # a type checker is to know every name

    def __getattr__(name: str) -> object:
        module = _MODULES.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(module), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
