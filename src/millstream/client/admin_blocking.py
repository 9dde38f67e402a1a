"""Admin: the blocking face of AsyncAdmin.

Signatures are written out here as in admin.py, so that editors and type checkers know them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType

from millstream.client.admin import AsyncAdmin, Kind
from millstream.client.admin_views import ActiveProducer, ClusterView, LogDir
from millstream.client.configs import Config
from millstream.client.face import LoopThread
from millstream.client.group_offsets import Committed
from millstream.client.groups import Group, ListedGroup
from millstream.client.metadata import Topic
from millstream.client.offsets import Found
from millstream.client.producer_identity import HandedOver
from millstream.client.replicas import Reassignment
from millstream.client.topics import BROKER_DEFAULT, Created
from millstream.client.transactions import ListedTransaction, OpenTransaction, Transaction
from millstream.client.unclosed import MustClose
from millstream.errors import KafkaError
from millstream.model import TopicPartition


class Admin(MustClose):
    """Looks at a cluster and changes it; what AsyncAdmin does, for threads that wait.

    with Admin("localhost:9092") as admin:
        admin.create_topic("orders", 3)
    """

    def __init__(
        self,
        bootstrap: str | list[str] = "localhost:9092",
        *,
        client_id: str = "millstream",
        request_timeout_ms: int = 30_000,
        must_answer_at_once: bool = False,
    ) -> None:
        self._core = AsyncAdmin(
            bootstrap,
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            must_answer_at_once=must_answer_at_once,
        )
        self._core._released()
        self._thread = LoopThread("millstream-admin")
        self._holds()

    def _let_go(self) -> None:
        self._thread.abandon(self._core.close)

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._released()
        if not self._thread.is_closed:
            try:
                self._thread.run(self._core.close())
            finally:
                self._thread.close()

    # ---------------------------------------------------------------- the cluster

    def describe_cluster(self, timeout: float | None = None) -> ClusterView:
        """The cluster's id, brokers, controller and features."""
        return self._thread.run(self._core.describe_cluster(timeout=timeout))

    def describe_log_dirs(self, broker: int, timeout: float | None = None) -> list[LogDir]:
        """The folders of a broker, and how many bytes of each partition lie there."""
        return self._thread.run(self._core.describe_log_dirs(broker, timeout=timeout))

    # ---------------------------------------------------------------- topics

    def list_topics(self, *, with_internal: bool = False, timeout: float | None = None) -> list[str]:
        """The names of all topics."""
        return self._thread.run(self._core.list_topics(with_internal=with_internal, timeout=timeout))

    def describe_topic(self, name: str, timeout: float | None = None) -> Topic:
        """A topic: its id, and leader, replicas and in-sync replicas of each partition."""
        return self._thread.run(self._core.describe_topic(name, timeout=timeout))

    def create_topic(
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
        return self._thread.run(
            self._core.create_topic(
                name,
                partitions,
                replication_factor=replication_factor,
                assignment=assignment,
                configs=configs,
                validate_only=validate_only,
                timeout=timeout,
            )
        )

    def delete_topic(self, name: str, timeout: float | None = None) -> None:
        """Delete a topic and wait until the cluster does not know it any more."""
        self._thread.run(self._core.delete_topic(name, timeout=timeout))

    def add_partitions(
        self, name: str, total: int, *, validate_only: bool = False, timeout: float | None = None
    ) -> None:
        """Grow a topic to `total` partitions and wait until each has a leader."""
        self._thread.run(self._core.add_partitions(name, total, validate_only=validate_only, timeout=timeout))

    def delete_records(
        self, offsets: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> dict[TopicPartition, int | KafkaError]:
        """Delete what lies before each offset (-1: all); gives the new first offsets, or errors."""
        return self._thread.run(self._core.delete_records(offsets, timeout=timeout))

    def offsets_at(
        self,
        times_ms: Mapping[TopicPartition, int],
        *,
        only_committed: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, Found]:
        """The first offset at or after each time, which may be EARLIEST, LATEST or MAX_TIMESTAMP."""
        return self._thread.run(
            self._core.offsets_at(times_ms, only_committed=only_committed, timeout=timeout)
        )

    # ---------------------------------------------------------------- configurations

    def describe_config(
        self, kind: Kind, name: str, *, keys: Sequence[str] | None = None, timeout: float | None = None
    ) -> dict[str, Config]:
        """The configuration of a topic, a broker (by its number) or a group, by key."""
        return self._thread.run(self._core.describe_config(kind, name, keys=keys, timeout=timeout))

    def alter_config(
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
        """Change single keys, all or none of them: set or delete them, add to lists or take from them."""
        self._thread.run(
            self._core.alter_config(
                kind,
                name,
                values=values,
                delete=delete,
                append=append,
                subtract=subtract,
                validate_only=validate_only,
                timeout=timeout,
            )
        )

    # ---------------------------------------------------------------- groups

    def list_groups(
        self, *, states: Sequence[str] = (), types: Sequence[str] = (), timeout: float | None = None
    ) -> list[ListedGroup]:
        """All groups of all brokers, by name; of some states or types, where they are named."""
        return self._thread.run(self._core.list_groups(states=states, types=types, timeout=timeout))

    def describe_group(self, name: str, timeout: float | None = None) -> Group:
        """A group of either protocol with its members; GroupIdNotFound if there is none."""
        return self._thread.run(self._core.describe_group(name, timeout=timeout))

    def delete_group(self, name: str, timeout: float | None = None) -> None:
        """Delete a group that has no members, with all its offsets."""
        self._thread.run(self._core.delete_group(name, timeout=timeout))

    def remove_members(
        self,
        group: str,
        *,
        member_ids: Iterable[str] = (),
        instance_ids: Iterable[str] = (),
        timeout: float | None = None,
    ) -> None:
        """Take members out of a classic group, by their ids or, static ones, by their names."""
        self._thread.run(
            self._core.remove_members(
                group, member_ids=member_ids, instance_ids=instance_ids, timeout=timeout
            )
        )

    def group_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """Where a group is, in some partitions or in all; those without a commit are left out."""
        return self._thread.run(self._core.group_offsets(group, partitions, timeout=timeout))

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], timeout: float | None = None
    ) -> None:
        """Set the offsets of a group that has no members."""
        self._thread.run(self._core.alter_group_offsets(group, offsets, timeout=timeout))

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> None:
        """Forget where a group was in partitions that none of its members is subscribed to."""
        self._thread.run(self._core.delete_group_offsets(group, partitions, timeout=timeout))

    def group_lag(self, group: str, timeout: float | None = None) -> dict[TopicPartition, int]:
        """How many offsets lie between a group's commits and the ends of the partitions that exist."""
        return self._thread.run(self._core.group_lag(group, timeout=timeout))

    # ---------------------------------------------------------------- transactions and producers

    def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int | None = None,
        pattern: str | None = None,
        timeout: float | None = None,
    ) -> list[ListedTransaction]:
        """The transactional ids of all coordinators, by name; AsyncAdmin.list_transactions tells more."""
        return self._thread.run(
            self._core.list_transactions(
                states=states,
                producer_ids=producer_ids,
                longer_than_ms=longer_than_ms,
                pattern=pattern,
                timeout=timeout,
            )
        )

    def describe_transaction(self, transactional_id: str, timeout: float | None = None) -> Transaction:
        """What the coordinator knows of one id; TransactionalIdNotFound if that is nothing."""
        return self._thread.run(self._core.describe_transaction(transactional_id, timeout=timeout))

    def open_transactions(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[OpenTransaction]:
        """The transactions that are open in some partitions, by partition and place."""
        return self._thread.run(self._core.open_transactions(partitions, timeout=timeout))

    def hanging_transactions(
        self,
        partitions: Iterable[TopicPartition],
        *,
        min_age_ms: int = 0,
        timeout: float | None = None,
    ) -> list[OpenTransaction]:
        """The transactions in some partitions that no coordinator will ever end."""
        return self._thread.run(
            self._core.hanging_transactions(partitions, min_age_ms=min_age_ms, timeout=timeout)
        )

    def abort_transaction(self, transaction: OpenTransaction, timeout: float | None = None) -> None:
        """End a transaction that hangs in its partition, as its coordinator would."""
        self._thread.run(self._core.abort_transaction(transaction, timeout=timeout))

    def end_transaction(
        self, transaction: HandedOver, *, is_commit: bool, timeout: float | None = None
    ) -> None:
        """Commit or abort what a producer's `hand_over_transaction` gave."""
        self._thread.run(self._core.end_transaction(transaction, is_commit=is_commit, timeout=timeout))

    def fence_producer(self, transactional_id: str, timeout: float | None = None) -> None:
        """Abort the open transaction of an id, if there is one, and shut its producer out."""
        self._thread.run(self._core.fence_producer(transactional_id, timeout=timeout))

    def describe_producers(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """The producers that partitions remember."""
        return self._thread.run(self._core.describe_producers(partitions, timeout=timeout))

    # ---------------------------------------------------------------- replicas

    def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None], timeout: float | None = None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Begin to move partitions to these brokers, the preferred leader first; None cancels a move."""
        return self._thread.run(self._core.reassign(targets, timeout=timeout))

    def list_reassignments(self, timeout: float | None = None) -> dict[TopicPartition, Reassignment]:
        """The partitions that are on their way to other brokers."""
        return self._thread.run(self._core.list_reassignments(timeout=timeout))

    def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        is_unclean: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, KafkaError | None]:
        """Have partitions (all, where None) led by their preferred replica, or by any that is alive."""
        return self._thread.run(self._core.elect_leaders(partitions, is_unclean=is_unclean, timeout=timeout))

    def unregister_broker(self, broker_id: int, timeout: float | None = None) -> None:
        """Say that a broker, which is not there, will not come back: it gets no more new replicas.

        Those that it has stay assigned to it until they are moved (`reassign`).
        """
        self._thread.run(self._core.unregister_broker(broker_id, timeout=timeout))
