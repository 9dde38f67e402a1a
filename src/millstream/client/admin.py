"""AsyncAdmin: everything that can be asked of a cluster and changed in it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal, TypeAlias

from millstream.client.admin_views import (
    ActiveProducer,
    ClusterView,
    LogDir,
    describe_cluster,
    describe_log_dirs,
    describe_producers,
    remove_members,
)
from millstream.client.cluster import UNKNOWN_TOPIC_WAIT_MS, Cluster
from millstream.client.configs import Change, Config, Resource, alter_configs, describe_configs
from millstream.client.face import Closed
from millstream.client.group_offsets import Committed, commit_offsets, delete_offsets, fetch_committed
from millstream.client.groups import Group, ListedGroup, delete_group, describe_group, list_groups
from millstream.client.handover import end_transaction
from millstream.client.metadata import Topic
from millstream.client.offsets import LATEST, READ_COMMITTED, READ_UNCOMMITTED, Found, list_offsets
from millstream.client.producer_identity import HandedOver
from millstream.client.record_deletion import delete_records
from millstream.client.replicas import (
    Reassignment,
    elect_leaders,
    list_reassignments,
    reassign,
    unregister_broker,
)
from millstream.client.topics import (
    BROKER_DEFAULT,
    Created,
    add_partitions,
    create_topic,
    delete_topic,
)
from millstream.client.transactions import (
    ListedTransaction,
    OpenTransaction,
    Transaction,
    describe_transaction,
    fence_producer,
    hanging_transactions,
    list_transactions,
    open_transactions,
    write_abort_marker,
)
from millstream.client.unclosed import MustClose
from millstream.deadline import Deadline
from millstream.errors import KafkaError
from millstream.model import TopicPartition

Kind: TypeAlias = Literal["topic", "broker", "logger", "group"]
KINDS = {
    "topic": Resource.TOPIC,
    "broker": Resource.BROKER,
    "logger": Resource.BROKER_LOGGER,
    "group": Resource.GROUP,
}


class AsyncAdmin(MustClose):
    """Looks at a cluster and changes it. It belongs to one event loop.

        async with AsyncAdmin("localhost:9092") as admin:
            await admin.create_topic("orders", 3)

    Results are plain values, and what goes wrong is raised, as the class of Kafka's error; where a call
    is about many partitions, errors of single ones are values in the result. Errors that pass are tried
    again until `timeout` seconds are over, if none are given until the `request_timeout_ms` of the admin.
    With `must_answer_at_once` a cluster that was never reached is an error after the first try.
    """

    def __init__(
        self,
        bootstrap: str | list[str] = "localhost:9092",
        *,
        client_id: str = "millstream",
        request_timeout_ms: int = 30_000,
        must_answer_at_once: bool = False,
    ) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._cluster = Cluster(bootstrap, client_id=client_id, must_answer_at_once=must_answer_at_once)
        self._is_closed = False
        self._holds()

    def _let_go(self) -> None:
        self._cluster.abandon()

    async def __aenter__(self) -> AsyncAdmin:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        self._released()
        await self._cluster.close()

    def _deadline(self, timeout: float | None) -> Deadline:
        if self._is_closed:
            raise Closed("the admin is closed")
        return Deadline(self._request_timeout_ms if timeout is None else timeout * 1000)

    # ---------------------------------------------------------------- the cluster

    async def describe_cluster(self, timeout: float | None = None) -> ClusterView:
        """The cluster's id, brokers, controller and features."""
        deadline = self._deadline(timeout)
        return await describe_cluster(self._cluster, deadline)

    async def describe_log_dirs(self, broker: int, timeout: float | None = None) -> list[LogDir]:
        """The folders of a broker, and how many bytes of each partition lie there."""
        deadline = self._deadline(timeout)
        return await describe_log_dirs(self._cluster, broker, deadline)

    # ---------------------------------------------------------------- topics

    async def list_topics(self, *, with_internal: bool = False, timeout: float | None = None) -> list[str]:
        """The names of all topics."""
        metadata = await self._cluster.refresh(None, self._deadline(timeout))
        found = metadata.topics.values()
        return sorted(topic.name for topic in found if with_internal or not topic.is_internal)

    async def describe_topic(self, name: str, timeout: float | None = None) -> Topic:
        """A topic: its id, and leader, replicas and in-sync replicas of each partition."""
        deadline = self._deadline(timeout)

        async def attempt() -> Topic:
            return (await self._cluster.refresh([name], deadline)).topic(name)

        return await self._cluster.retrying(attempt, deadline, unknown_topic_wait_ms=UNKNOWN_TOPIC_WAIT_MS)

    async def create_topic(
        self,
        name: str,
        partitions: int = BROKER_DEFAULT,
        *,
        replication_factor: int = BROKER_DEFAULT,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> Created:
        """Create a topic and wait until every partition of it has a leader."""
        deadline = self._deadline(timeout)
        return await create_topic(
            self._cluster,
            name,
            deadline,
            partitions=partitions,
            replication_factor=replication_factor,
            assignment=assignment,
            configs=configs,
            validate_only=validate_only,
        )

    async def delete_topic(self, name: str, timeout: float | None = None) -> None:
        """Delete a topic and wait until the cluster does not know it any more."""
        deadline = self._deadline(timeout)
        await delete_topic(self._cluster, name, deadline)

    async def add_partitions(
        self, name: str, total: int, *, validate_only: bool = False, timeout: float | None = None
    ) -> None:
        """Grow a topic to `total` partitions and wait until each has a leader."""
        deadline = self._deadline(timeout)
        await add_partitions(self._cluster, name, total, deadline, validate_only=validate_only)

    async def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete what lies before each offset (-1: all there is now); gives the new starts, or errors."""
        deadline = self._deadline(timeout)
        return await delete_records(self._cluster, offsets, deadline)

    async def offsets_at(
        self,
        times_ms: Mapping[TopicPartition, int],
        *,
        only_committed: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, Found]:
        """The first offset at or after each time, which may be EARLIEST, LATEST or MAX_TIMESTAMP."""
        deadline = self._deadline(timeout)
        return await list_offsets(
            self._cluster,
            times_ms,
            deadline,
            isolation_level=READ_COMMITTED if only_committed else READ_UNCOMMITTED,
        )

    # ---------------------------------------------------------------- configurations

    async def describe_config(
        self, kind: Kind, name: str, *, keys: Sequence[str] | None = None, timeout: float | None = None
    ) -> dict[str, Config]:
        """The configuration of a topic, a broker (by its number) or a group, by key.

        That of `logger` is what a broker (by its number) logs: a level for each logger.
        """
        found = await describe_configs(self._cluster, KINDS[kind], name, self._deadline(timeout), keys=keys)
        return {config.name: config for config in found}

    async def alter_config(
        self,
        kind: Kind,
        name: str,
        *,
        values: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change single keys, all or none of them: set or delete them, add to lists or take from them.

        Brokers apply a change one after the other once it is decided: one that is asked right after may
        still show the old value.
        """
        changes: list[tuple[str, Change, str | None]] = []
        for change, pairs in ((Change.SET, values), (Change.APPEND, append), (Change.SUBTRACT, subtract)):
            changes += [(key, change, value) for key, value in (pairs or {}).items()]
        changes += [(key, Change.DELETE, None) for key in delete]
        await alter_configs(
            self._cluster,
            KINDS[kind],
            name,
            changes,
            self._deadline(timeout),
            validate_only=validate_only,
        )

    # ---------------------------------------------------------------- groups

    async def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout: float | None = None
    ) -> list[ListedGroup]:
        """All groups of all brokers, by name; of some states or types, where they are named."""
        deadline = self._deadline(timeout)
        return await list_groups(self._cluster, deadline, states=states, types=types)

    async def describe_group(self, name: str, timeout: float | None = None) -> Group:
        """A group of either protocol with its members; GroupIdNotFound if there is none."""
        deadline = self._deadline(timeout)
        return await describe_group(self._cluster, name, deadline)

    async def delete_group(self, name: str, timeout: float | None = None) -> None:
        """Delete a group that has no members, with all its offsets."""
        deadline = self._deadline(timeout)
        await delete_group(self._cluster, name, deadline)

    async def remove_members(
        self,
        group: str,
        *,
        member_ids: Iterable[str] = (),
        instance_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> None:
        """Take members out of a classic group, by their ids or, static ones, by their names."""
        deadline = self._deadline(timeout)
        await remove_members(self._cluster, group, deadline, member_ids=member_ids, instance_ids=instance_ids)

    async def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """Where a group is, in some partitions or in all; those without a commit are left out."""
        deadline = self._deadline(timeout)
        return await fetch_committed(self._cluster, group, deadline, partitions=partitions)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> None:
        """Set the offsets of a group that has no members."""
        deadline = self._deadline(timeout)
        await commit_offsets(self._cluster, group, offsets, deadline)

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> None:
        """Forget where a group was in partitions that none of its members is subscribed to."""
        deadline = self._deadline(timeout)
        await delete_offsets(self._cluster, group, partitions, deadline)

    async def group_lag(self, group: str, timeout: float | None = None) -> dict[TopicPartition, int]:
        """How many offsets lie between a group's commits and the ends of the partitions that exist."""
        deadline = self._deadline(timeout)
        committed = await fetch_committed(self._cluster, group, deadline)
        topics = (await self._cluster.refresh({each.topic for each in committed}, deadline)).topics
        there = [
            each
            for each in committed
            if each.topic in topics and each.partition in topics[each.topic].partitions
        ]
        ends = await list_offsets(self._cluster, dict.fromkeys(there, LATEST), deadline)
        return {where: max(0, ends[where].offset - committed[where].offset) for where in there}

    # ---------------------------------------------------------------- transactions and producers

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[ListedTransaction]:
        """The transactional ids of all coordinators, by name; those that pass every filter that is given.

        With `longer_than_ms` the transaction has been open for longer. `pattern` is met by whole ids and
        written as RE2 has it. UnsupportedVersion where a broker is too old for these two.
        """
        return await list_transactions(
            self._cluster,
            self._deadline(timeout),
            states=states,
            producer_ids=producer_ids,
            longer_than_ms=longer_than_ms,
            pattern=pattern,
        )

    async def describe_transaction(self, transactional_id: str, timeout: float | None = None) -> Transaction:
        """What the coordinator knows of one id; TransactionalIdNotFound if that is nothing."""
        deadline = self._deadline(timeout)
        return await describe_transaction(self._cluster, transactional_id, deadline)

    async def open_transactions(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[OpenTransaction]:
        """The transactions that are open in some partitions, by partition and place."""
        deadline = self._deadline(timeout)
        return await open_transactions(self._cluster, partitions, deadline)

    async def hanging_transactions(
        self,
        partitions: Iterable[TopicPartition],
        *,
        min_age_ms: int = 0,
        timeout: float | None = None,
    ) -> list[OpenTransaction]:
        """The transactions in some partitions that no coordinator will ever end."""
        now_ms = int(time.time() * 1000)
        return await hanging_transactions(
            self._cluster, partitions, self._deadline(timeout), now_ms=now_ms, min_age_ms=min_age_ms
        )

    async def abort_transaction(self, transaction: OpenTransaction, timeout: float | None = None) -> None:
        """End a transaction that hangs in its partition, as its coordinator would."""
        deadline = self._deadline(timeout)
        await write_abort_marker(self._cluster, transaction, deadline)

    async def end_transaction(
        self, transaction: HandedOver, *, is_commit: bool, timeout: float | None = None
    ) -> None:
        """Commit or abort what a producer's `hand_over_transaction` gave."""
        await end_transaction(self._cluster, transaction, self._deadline(timeout), is_commit=is_commit)

    async def fence_producer(self, transactional_id: str, timeout: float | None = None) -> None:
        """Abort the open transaction of an id, if there is one, and shut its producer out."""
        deadline = self._deadline(timeout)
        await fence_producer(self._cluster, transactional_id, deadline)

    async def describe_producers(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """The producers that partitions remember."""
        deadline = self._deadline(timeout)
        return await describe_producers(self._cluster, partitions, deadline)

    # ---------------------------------------------------------------- replicas

    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], timeout: float | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin to move partitions to these brokers, the preferred leader first; None cancels a move."""
        deadline = self._deadline(timeout)
        return await reassign(self._cluster, targets, deadline)

    async def list_reassignments(self, timeout: float | None = None) -> dict[TopicPartition, Reassignment]:
        """The partitions that are on their way to other brokers."""
        deadline = self._deadline(timeout)
        return await list_reassignments(self._cluster, deadline)

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        is_unclean: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Have partitions (all, where None) led by their preferred replica, or by any that is alive."""
        deadline = self._deadline(timeout)
        return await elect_leaders(self._cluster, partitions, deadline, is_unclean=is_unclean)

    async def unregister_broker(self, broker_id: int, timeout: float | None = None) -> None:
        """Say that a broker, which is not there, will not come back: it gets no more new replicas.

        Those that it has stay assigned to it until they are moved (`reassign`).
        """
        deadline = self._deadline(timeout)
        await unregister_broker(self._cluster, broker_id, deadline)
