"""The driver's part of a write: one decision for a batch, then the end of its transactions.

Every step may be done again by a driver that follows: a decision stands once it is written, committing
twice is committing once, and what was not decided is committed by nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from millstream.client.cluster import Cluster
from millstream.client.handover import end_transaction, is_open, take_over
from millstream.client.producer_identity import HandedOver
from millstream.deadline import Deadline
from millstream.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
)
from millstream.streams import sink_failpoints
from millstream.streams.sink_decisions import Decision, Owner, forget, last_decision
from millstream.streams.sink_errors import (
    CheckpointBehind,
    LostDecision,
    LostTransaction,
    TornBatch,
    WrittenTwice,
)
from millstream.streams.sink_message import Attempt
from millstream.streams.sink_names import Run, is_attempt_of, prefix_of, topic_of

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
            was_decided = any(each.was_decided for each in attempts)
            if not transactions_of(attempts) and not was_decided:
                last = await last_decision(cluster, query, deadline)
                has_ended = last is None or (last.is_done and last.batch < batch)
                if has_ended and not await self._has_left(cluster, last, deadline):
                    return
            async with Owner(cluster, self._bootstrap, query, deadline) as owner:
                open_before = await open_attempts(cluster, query, deadline)
                is_second = self._is_second(batch, owner.last)
                await finish(cluster, owner, deadline)
                check_order(query, batch, owner.last)
                if owner.last is None or owner.last.batch < batch:
                    if was_decided:
                        raise LostDecision(
                            f"batch {batch} of query {query} was decided when its tasks began, and is not "
                            f"any more: topic {topic_of(query)} was deleted, or lost records. When the query "
                            "is started again it writes the batch again, with duplicates of what is there."
                        )
                    await self._check_open(cluster, batch, attempts, open_before, deadline)
                    sink_failpoints.reached(sink_failpoints.BEFORE_DECISION)
                    await owner.write(decision_of(batch, self._run, attempts))
                    sink_failpoints.reached(sink_failpoints.AFTER_DECISION)
                    await finish(cluster, owner, deadline)
                await self._abort_losers(cluster, open_before, deadline)
                if is_second:
                    raise WrittenTwice(
                        f"batch {batch} of {query} was written already, by another write of this batch: its "
                        "rows are in the output, those of this write are not. Each write in a function for "
                        "foreachBatch needs an outputName of its own."
                    )
        sink_failpoints.reached(sink_failpoints.BEFORE_RETURN)

    async def abort(self, batch: int, *, linger_s: float = 0.0) -> bool:
        """Abort what a run has written of a batch; False, and nothing is done, if it was decided.

        After `linger_s` also what tasks have begun meanwhile, which are being killed.
        """
        async with Cluster(self._bootstrap) as cluster:
            deadline = Deadline(self._timeout_ms)
            async with Owner(cluster, self._bootstrap, self._run.query, deadline) as owner:
                if owner.last is not None and owner.last.batch >= batch:
                    return False
                await self._abort_losers(cluster, [], deadline)
                if linger_s:
                    await asyncio.sleep(linger_s)
                    await self._abort_losers(cluster, [], deadline)
                return True

    async def forget(self) -> None:
        """Delete the decisions: nobody will come with these batches again."""
        async with Cluster(self._bootstrap) as cluster:
            await forget(cluster, self._run.query, Deadline(self._timeout_ms))

    async def _has_left(self, cluster: Cluster, last: Decision | None, deadline: Deadline) -> bool:
        """Whether something is open that readers would wait for: of this run, or, where this one has not
        decided yet, of those before it."""
        is_first = last is None or last.run != self._run.run
        found = await open_attempts(cluster, self._run.query, deadline)
        return any(is_first or each.transactional_id.startswith(self._run.prefix) for each in found)

    def _is_second(self, batch: int, last: Decision | None) -> bool:
        """Whether this very run has written the batch before. A batch comes again in another run only, so
        this is another write under the same name, and its rows are not the ones that were written.
        """
        return (
            last is not None
            and last.is_done
            and (last.batch, last.run) == (batch, self._run.run)
            and self._run.is_one_start
        )

    async def _check_open(
        self,
        cluster: Cluster,
        batch: int,
        attempts: Sequence[Attempt],
        open_before: Iterable[HandedOver],
        deadline: Deadline,
    ) -> None:
        """A transaction that is gone already must not be decided upon.

        A list of what is open may lack some while coordinators move; their own word counts.
        """
        missing = set(transactions_of(attempts)) - set(open_before)
        lost = [each for each in missing if not await is_open(cluster, each, deadline)]
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
        still_open = await open_attempts(cluster, self._run.query, deadline)
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


async def open_attempts(cluster: Cluster, query: str, deadline: Deadline) -> list[HandedOver]:
    """The open transactions of a query's attempts."""
    return [
        each
        for each in await take_over(cluster, prefix_of(query), deadline)
        if is_attempt_of(query, each.transactional_id)
    ]


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
