"""OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from millstream.clock import Clock
from millstream.coordinator.entry_format import fits
from millstream.coordinator.groups.classic_group import ClassicGroup, State
from millstream.coordinator.groups.consumer_commits import (
    check_fetch,
    refused_commits,
    refused_in_transaction,
)
from millstream.coordinator.groups.consumer_group import ConsumerGroup
from millstream.coordinator.groups.offset_format import (
    NO_EXPIRY,
    Committed,
    offset_entry,
    offset_tombstone,
)
from millstream.coordinator.groups.offsets import Offsets
from millstream.coordinator.groups.rebalance import Rebalances
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.topics import Topics
from millstream.coordinator.shard import Entry, Producer, Result
from millstream.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    UnknownMemberId,
)
from millstream.model import TopicPartition


class Caller(NamedTuple):
    """Who commits: a member in a generation, or somebody outside of the group (-1 and no id)."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


class Commit(NamedTuple):
    """A position to be committed."""

    partition: TopicPartition
    offset: int
    leader_epoch: int
    metadata: str


Errors = dict[TopicPartition, int]
"""The error codes of the partitions that were refused; the others are done."""

NO_RETENTION = -1
MAX_TIME_MS = (1 << 63) - 1

STRICT_SINCE = 9
"""From this version on OffsetCommit tells a group that is not there from a wrong generation (KIP-848)."""


class Commits:
    """What is done with offsets. KafkaError where a whole request is refused."""

    def __init__(
        self,
        known: Callable[[str], ClassicGroup | ConsumerGroup | None],
        find: Callable[[str], ClassicGroup | ConsumerGroup | None],
        offsets: Offsets,
        rebalances: Rebalances,
        clock: Clock,
        settings: Settings,
        topics: Topics,
    ) -> None:
        """`known` finds a group that has or had members, `find` also one that only has offsets."""
        self._known = known
        self._find = find
        self._topics = topics
        self._offsets = offsets
        self._rebalances = rebalances
        self._clock = clock
        self._settings = settings

    def commit(
        self,
        group_id: str,
        caller: Caller,
        commits: Iterable[Commit],
        *,
        retention_ms: int = NO_RETENTION,
        version: int = STRICT_SINCE,
    ) -> Result[Errors]:
        """Commit offsets: those of a member in the current generation, or of anybody if there are none."""
        group = self._known(group_id)
        if group is None and caller.generation >= 0:
            group = self._find(group_id)
            if group is None:
                raise GroupIdNotFound if version >= STRICT_SINCE else IllegalGeneration
        if group is None:
            pass  # nobody is in it: everybody may
        elif isinstance(group, ConsumerGroup):
            commits = list(commits)
            partitions = (commit.partition for commit in commits)
            refused = refused_commits(group, caller, partitions, self._topics, version)
            return self._write(group_id, commits, retention_ms, None, refused)
        else:
            _check_caller(group, caller, is_transactional=False)
            member = group.members.get(caller.member_id)
            if member is not None:
                self._rebalances.heard(group, member)
        return self._write(group_id, commits, retention_ms, None)

    def commit_in_transaction(
        self, group_id: str, caller: Caller, producer: Producer, commits: Iterable[Commit]
    ) -> Result[Errors]:
        """Commit offsets as part of a transaction: they count when it is committed."""
        group = self._find(group_id)
        if isinstance(group, ConsumerGroup):
            commits = list(commits)
            partitions = (commit.partition for commit in commits)
            refused = refused_in_transaction(group, caller, partitions, self._topics)
            return self._write(group_id, commits, NO_RETENTION, producer, refused)
        if group is not None:
            _check_caller(group, caller, is_transactional=True)
        elif caller.generation >= 0:
            raise IllegalGeneration
        return self._write(group_id, commits, NO_RETENTION, producer)

    def _write(
        self,
        group_id: str,
        commits: Iterable[Commit],
        retention_ms: int,
        producer: Producer | None,
        refused: Errors | None = None,
    ) -> Result[Errors]:
        now_ms = self._clock.now_ms()
        expire_ms = NO_EXPIRY if retention_ms == NO_RETENTION else min(now_ms + retention_ms, MAX_TIME_MS)
        errors: Errors = refused or {}
        entries = []
        for partition, offset, leader_epoch, metadata in commits:
            if errors and partition in errors:
                continue
            if metadata and (len(metadata) > self._settings.max_metadata_bytes or not fits(metadata)):
                errors[partition] = OffsetMetadataTooLarge.code
            else:
                entries.append(
                    offset_entry(group_id, partition, offset, leader_epoch, metadata, now_ms, expire_ms)
                )
        return Result(errors, entries, producer)

    # Looking

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Refuse a member that is not in the epoch that it believes to be in (KIP-848)."""
        group = self._find(group_id)
        if isinstance(group, ConsumerGroup):
            check_fetch(group, member_id, epoch)

    def committed(self, group_id: str, partition: TopicPartition) -> Committed | None:
        return self._offsets.get(group_id, partition)

    def is_unstable(self, group_id: str, partition: TopicPartition) -> bool:
        return self._offsets.is_unstable(group_id, partition)

    def all_partitions(self, group_id: str) -> list[TopicPartition]:
        """Where a group has a position, or may get one from an open transaction."""
        return list(dict.fromkeys((*self._offsets.partitions(group_id), *self._offsets.unstable(group_id))))

    # Removing

    def delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> Result[Errors]:
        """Forget positions in topics that no member is subscribed to (KIP-496), and those that open
        transactions would bring there."""
        group = self._find(group_id)
        if group is None:
            raise GroupIdNotFound
        if not group.is_empty and not group.is_consumer:
            raise NonEmptyGroup
        errors: Errors = {}
        entries: list[Entry] = []
        known = set(self.all_partitions(group_id))
        for partition in partitions:
            if not group.is_empty and group.reads(partition.topic):
                errors[partition] = GroupSubscribedToTopic.code
            elif partition in known:
                entries.append(offset_tombstone(group_id, partition))
        return Result(errors, entries)

    def delete_all(self, group_id: str) -> list[Entry]:
        """What removes all positions of a group, and keeps open transactions from bringing some back."""
        return [offset_tombstone(group_id, partition) for partition in self.all_partitions(group_id)]


def _check_caller(group: ClassicGroup, caller: Caller, *, is_transactional: bool) -> None:
    """Whether somebody may commit now.

    Without a generation it is an admin or a consumer that assigns itself: it may while the group is
    empty. Transactional producers of old versions tell neither member nor generation, and are let in.
    """
    if caller.generation < 0 and group.is_empty:
        return
    if caller.generation >= 0 or caller.member_id or caller.instance_id is not None:
        group.check_member(caller.member_id, caller.instance_id)
        if caller.generation != group.generation:
            raise IllegalGeneration
    elif not is_transactional:
        raise UnknownMemberId
    if not is_transactional and group.state is State.COMPLETING:
        raise RebalanceInProgress
