"""The driver's part of a write: one decision for a batch, then the end of its transactions.

Every step may be done again by a driver that follows: a decision stands once it is written, committing
twice is committing once, and what was not decided is committed by nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from millstream.client.cluster import Cluster
from millstream.client.deadline import Deadline
from millstream.client.handover import end_transaction, take_over
from millstream.client.producer_identity import HandedOver
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
)
from millstream.streams import sink_failpoints
from millstream.streams.sink_decisions import Decision, Owner, forget, last_decision
from millstream.streams.sink_errors import CheckpointBehind, LostTransaction, TornBatch
from millstream.streams.sink_message import Attempt
from millstream.streams.sink_names import Run, prefix_of

AT_ONCE = 16
"""How many transactions are ended at the same time."""

GONE = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState)
"""What the coordinator says of a transaction that was ended in another way, or followed by another."""


class Committer:
    """Ends the writes of one run of a query."""

    def __init__(self, bootstrap: str, run: Run, timeout_ms: float) -> None:
        self._bootstrap = bootstrap
        self._run = run
        self._timeout_ms = timeout_ms

    async def commit(self, batch: int, attempts: Sequence[Attempt]) -> None:
        """Have a batch committed, and once, whatever drivers before this one did of it."""
        query = self._run.query
        async with Cluster(self._bootstrap) as cluster:
            deadline = Deadline(self._timeout_ms)
            if not transactions_of(attempts):
                last = await last_decision(cluster, query, deadline)
                if last is None or (last.is_done and last.batch < batch):
                    return
            async with Owner(cluster, self._bootstrap, query, deadline) as owner:
                open_before = await take_over(cluster, prefix_of(query), deadline)
                await finish(cluster, owner, deadline)
                check_order(query, batch, owner.last)
                if owner.last is None or owner.last.batch < batch:
                    self._check_open(batch, attempts, open_before)
                    sink_failpoints.reached(sink_failpoints.BEFORE_DECISION)
                    await owner.write(decision_of(batch, self._run, attempts))
                    sink_failpoints.reached(sink_failpoints.AFTER_DECISION)
                    await finish(cluster, owner, deadline)
                await self._abort_losers(cluster, open_before, deadline)
        sink_failpoints.reached(sink_failpoints.BEFORE_RETURN)

    async def abort(self, batch: int) -> bool:
        """Abort what a run has written of a batch; False, and nothing is done, if it was decided."""
        async with Cluster(self._bootstrap) as cluster:
            deadline = Deadline(self._timeout_ms)
            async with Owner(cluster, self._bootstrap, self._run.query, deadline) as owner:
                if owner.last is not None and owner.last.batch >= batch:
                    return False
                await self._abort_losers(cluster, [], deadline)
                return True

    async def forget(self) -> None:
        """Delete the decisions: nobody will come with these batches again."""
        async with Cluster(self._bootstrap) as cluster:
            await forget(cluster, self._run.query, Deadline(self._timeout_ms))

    def _check_open(self, batch: int, attempts: Sequence[Attempt], open_before: Iterable[HandedOver]) -> None:
        """A transaction that is gone already must not be decided upon."""
        lost = set(transactions_of(attempts)) - set(open_before)
        if lost:
            raise LostTransaction(
                f"batch {batch} of query {self._run.query} was not written: {len(lost)} of its transactions, "
                f"one of them {min(lost).transactional_id}, ended before the batch was decided (did it take "
                "longer than the brokers' transaction.max.timeout.ms?). Nothing of it was committed; start "
                "the query again."
            )

    async def _abort_losers(
        self, cluster: Cluster, open_before: Iterable[HandedOver], deadline: Deadline
    ) -> None:
        """Abort what is open and undecided: attempts that lost, and what dead drivers left.

        Those of other runs only if they were open before the decision: one that was opened after it may
        belong to a driver that has followed this one, and to the next batch.
        """
        known = set(open_before)
        still_open = await take_over(cluster, prefix_of(self._run.query), deadline)
        await end_all(
            cluster,
            [
                each
                for each in still_open
                if each in known or each.transactional_id.startswith(self._run.prefix)
            ],
            deadline,
            is_commit=False,
        )


def transactions_of(attempts: Iterable[Attempt]) -> list[HandedOver]:
    return [each.transaction for each in attempts if each.transaction is not None]


def decision_of(batch: int, run: Run, attempts: Iterable[Attempt]) -> Decision:
    """The decision for a batch that these attempts have written."""
    return Decision(
        batch,
        run.run,
        is_done=False,
        transactions=[
            (each.partition, each.attempt, handed.producer_id, handed.producer_epoch, handed.is_version_2 + 1)
            for each in attempts
            if (handed := each.transaction) is not None
        ],
    )


def check_order(query: str, batch: int, last: Decision | None) -> None:
    """Batches are decided in order; only the last one may come again."""
    if last is not None and last.batch > batch:
        raise CheckpointBehind(
            f"query {query} comes with batch {batch}, but has written up to batch {last.batch}: its "
            "checkpoint is an old copy, or another driver runs the same query. Go on with the newest "
            "checkpoint, or start over with a new one."
        )


async def finish(cluster: Cluster, owner: Owner, deadline: Deadline) -> None:
    """Commit the transactions of the last decision, and write down that it is done."""
    decision = owner.last
    if decision is None or decision.is_done:
        return
    lost = await end_all(cluster, decision.handed_over(owner.query), deadline, is_commit=True)
    if lost:
        raise TornBatch(
            f"batch {decision.batch} of query {owner.query} is torn: {len(lost)} of its "
            f"{len(decision.transactions)} transactions, one of them {min(lost).transactional_id}, timed out "
            "after the batch was decided, and their rows are not in the output; the others are. The query "
            "stops here. To have the batch written again as a whole, with duplicates of what is there, call "
            "millstream.streams.sink_reset.reset_sink and start the query."
        )
    await owner.write(decision.done())


async def end_all(
    cluster: Cluster, transactions: Iterable[HandedOver], deadline: Deadline, *, is_commit: bool
) -> list[HandedOver]:
    """End transactions, some at a time; those that are gone, or ended the other way, are returned."""
    turn = asyncio.Semaphore(1 if sink_failpoints.are_on() else AT_ONCE)
    lost: list[HandedOver] = []
    ended = 0

    async def end(transaction: HandedOver) -> None:
        nonlocal ended
        async with turn:
            try:
                await end_transaction(cluster, transaction, deadline, is_commit=is_commit)
            except GONE:
                lost.append(transaction)
                return
            if is_commit:
                ended += 1
                sink_failpoints.reached(f"{sink_failpoints.AFTER_END}{ended}")

    results = await asyncio.gather(*(end(each) for each in transactions), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return lost
