"""A coordinator of long ago whose markers come late: they end transactions that have ended before.

Since transaction version 2 a marker carries an epoch that the producer has left behind by then, so that
it must change nothing, though the producer may have begun its next transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from millstream.protocol.messages import WriteTxnMarkersRequest
from tests.simulation.brokers import Brokers
from tests.simulation.ledger import Fate, Ledger, Place, Transaction

MARKERS_VERSION = 2


class LateCoordinator:
    """Sends markers of ended transactions again. `epoch_of(name)` is the coordinator's epoch now, or None."""

    def __init__(
        self, brokers: Brokers, ledger: Ledger, random: Random, epoch_of: Callable[[str], int | None]
    ) -> None:
        self.is_over = False
        self.sent = 0
        self._brokers = brokers
        self._ledger = ledger
        self._random = random
        self._epoch_of = epoch_of

    async def run(self, of_new_protocol: Callable[[str], bool]) -> None:
        while not self.is_over:
            await asyncio.sleep(self._random.uniform(0.0, 0.5))
            ended = [
                transaction
                for transaction in list(self._ledger.transactions.values())[-10:]
                if transaction.fate in (Fate.COMMITTED, Fate.ABORTED)
                and transaction.values
                and of_new_protocol(transaction.name)
            ]
            if ended:
                transaction = self._random.choice(ended)
                place = self._random.choice(list(transaction.values))
                epoch = self._epoch_of(transaction.name)
                if epoch is not None:
                    await self._send(transaction, place, epoch)

    async def _send(self, transaction: Transaction, place: Place, coordinator_epoch: int) -> None:
        topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=place[0], partition_indexes=[place[1]])
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch + 1,
            transaction_result=transaction.fate is Fate.COMMITTED,
            topics=[topic],
            coordinator_epoch=coordinator_epoch,
            transaction_version=2,
        )
        self.sent += 1
        try:
            await self._brokers.ask_leader(*place, WriteTxnMarkersRequest(markers=[marker]), MARKERS_VERSION)
        except OSError:
            pass
