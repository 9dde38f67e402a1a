"""Who a producer is to the brokers: an id and an epoch."""

from __future__ import annotations

from typing import NamedTuple

from millstream.client.cluster import Cluster, OnRetry
from millstream.client.errors import raise_for
from millstream.deadline import Deadline
from millstream.protocol.messages import InitProducerIdRequest, InitProducerIdResponse

NO_PRODUCER_ID = -1
NO_EPOCH = -1


class HandedOver(NamedTuple):
    """An open transaction without an owner. `is_version_2`: its end raises the epoch (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_version_2: bool = True


class Identity:
    """An idempotent producer's id, which any broker gives; a transactional one's coordinator gives it."""

    __slots__ = ("producer_epoch", "producer_id")

    def __init__(self) -> None:
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = NO_EPOCH

    @property
    def is_known(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    def take(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id, self.producer_epoch = producer_id, producer_epoch

    async def ask(self, cluster: Cluster, deadline: Deadline, on_retry: OnRetry | None = None) -> None:
        """Get a new id."""

        async def attempt() -> InitProducerIdResponse:
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            response = await cluster.request(None, request, InitProducerIdResponse, deadline)
            raise_for(response.error_code, None, "a producer id")
            return response

        response = await cluster.retrying(attempt, deadline, on_retry=on_retry)
        self.take(response.producer_id, response.producer_epoch)
