"""A transaction that one process writes and another one ends.

The writer sends its records, waits until all are written and leaves the transaction open
(`hand_over_transaction`). What it hands over says all that the end needs: who the producer was. Whoever has
it may commit or abort, and may ask again after a lost answer. Nobody can end a later transaction of the same
id with it, since that one has another epoch.
"""

from __future__ import annotations

from millstream.client.cluster import Cluster
from millstream.client.producer_coordinator import TransactionCoordinator, speaks_version_2
from millstream.client.producer_identity import HandedOver, Identity
from millstream.client.transactions import ONGOING, describe_transaction, ongoing_transactions
from millstream.deadline import Deadline
from millstream.errors import TransactionalIdNotFound


async def end_transaction(
    cluster: Cluster, transaction: HandedOver, deadline: Deadline, *, is_commit: bool
) -> None:
    """Commit or abort a transaction that was handed over.

    ProducerFenced, InvalidProducerEpoch or InvalidProducerIdMapping say that it is gone: it took too long, or
    its id has another producer. InvalidTxnState says that it was ended the other way.
    """
    identity = Identity()
    identity.take(transaction.producer_id, transaction.producer_epoch)
    coordinator = TransactionCoordinator(cluster, transaction.transactional_id, 0, identity)
    coordinator.is_version_2 = transaction.is_version_2
    await coordinator.end(deadline, is_commit=is_commit)


async def is_open(cluster: Cluster, transaction: HandedOver, deadline: Deadline) -> bool:
    """Whether a transaction that was handed over can still be ended; its coordinator itself is asked."""
    try:
        found = await describe_transaction(cluster, transaction.transactional_id, deadline)
    except TransactionalIdNotFound:
        return False
    return (found.state, found.producer_id, found.producer_epoch) == (
        ONGOING,
        transaction.producer_id,
        transaction.producer_epoch,
    )


async def take_over(cluster: Cluster, prefix: str, deadline: Deadline) -> list[HandedOver]:
    """The open transactions whose ids begin with `prefix`, as if their producers had handed them over."""
    is_version_2 = speaks_version_2(await cluster.any_connection(deadline))
    return [
        HandedOver(each.transactional_id, each.producer_id, each.producer_epoch, is_version_2)
        for each in await ongoing_transactions(cluster, prefix, deadline)
    ]
