"""How a consumer group moves on when one of its members has something to say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from millstream.clock import Clock
from millstream.coordinator.groups.assignor import ASSIGNORS
from millstream.coordinator.groups.consumer_entries import (
    Matched,
    assignment_entry,
    group_entry,
    member_entry,
    regex_entry,
    regex_tombstone,
    target_entry,
    target_epoch_entry,
)
from millstream.coordinator.groups.consumer_group import UNWRITTEN_EPOCH, ConsumerGroup
from millstream.coordinator.groups.consumer_member import ConsumerMember, Partitions
from millstream.coordinator.groups.reconciliation import reconcile
from millstream.coordinator.groups.settings import Settings
from millstream.coordinator.groups.target_assignment import Subscriptions, make_target
from millstream.coordinator.groups.topics import Topics, metadata_hash
from millstream.coordinator.shard import Entry

log = logging.getLogger(__name__)


class Said(NamedTuple):
    """What a member said, as far as its group cares.

    `before` is the member as it was, `after` as it describes itself now. It owns `owned`, None if it does
    not say; `matched` are the topics of its regular expression. `replaces` is the member id of the static
    member whose place it takes.
    """

    before: ConsumerMember
    after: ConsumerMember
    owned: Partitions | None = None
    matched: Matched | None = None
    replaces: str | None = None

    @property
    def has_new_subscription(self) -> bool:
        return self.before.topics != self.after.topics or self.before.regex != self.after.regex


class Progress:
    """Nothing is changed here: the entries say what is to change."""

    def __init__(self, topics: Topics, settings: Settings, clock: Clock) -> None:
        self._topics = topics
        self._settings = settings
        self._clock = clock

    def advance(self, group: ConsumerGroup, said: Said) -> tuple[ConsumerMember, list[Entry]]:
        """The member after what it said, and the entries that make it so.

        Its group gets a new epoch if its subscription is another, a new target assignment if there is none
        for the group's epoch yet, and the member is brought a step nearer to its part in it.
        """
        entries: list[Entry] = []
        after = said.after
        if after is said.before and self._is_at_rest(group, said):
            return after, entries
        if after != said.before or after.member_id not in group.members:
            entries.append(member_entry(group.group_id, after))
        regexes = self._regexes(group, said, entries)
        members = {**group.members, after.member_id: after}
        if said.replaces is not None:
            members.pop(said.replaces, None)
        subscriptions = Subscriptions(regexes, self._topics)
        epoch = group.epoch
        if epoch <= UNWRITTEN_EPOCH or said.has_new_subscription or regexes != group.regexes:
            epoch += 1
            names = group.subscribed(members.values(), regexes)
            entries.append(group_entry(group.group_id, epoch, metadata_hash(names, self._topics)))
        target_epoch, target = group.assignment_epoch, group.target_of(after)
        if epoch > target_epoch and self._may_assign(group):
            target_epoch, target = epoch, self._assign(group, epoch, members, after, subscriptions, entries)
        moved = after
        if said.has_new_subscription or not after.is_reconciled_to(target_epoch):
            moved = reconcile(
                after,
                target_epoch,
                target,
                subscriptions.of(after),
                said.owned,
                group.is_free,
                has_new_subscription=said.has_new_subscription,
            )
        if moved != after:
            entries.append(assignment_entry(group.group_id, moved))
        return moved, entries

    def _is_at_rest(self, group: ConsumerGroup, said: Said) -> bool:
        """Whether a member that says nothing new has nothing to wait for either, as most of the time."""
        member = said.after
        return (
            member.is_reconciled_to(group.assignment_epoch)
            and member.member_id in group.members
            and (not member.regex or member.regex in group.regexes)
            and (group.epoch == group.assignment_epoch or not self._may_assign(group))
        )

    def _regexes(self, group: ConsumerGroup, said: Said, entries: list[Entry]) -> Mapping[str, Matched]:
        """The regular expressions of the group with what the member said."""
        former, regex = said.before.regex, said.after.regex
        regexes = dict(group.regexes)
        if former and former != regex and group.regex_users(former) == 1 and former in regexes:
            del regexes[former]
            entries.append(regex_tombstone(group.group_id, former))
        if regex and regex not in regexes and said.matched is not None:
            regexes[regex] = said.matched
            entries.append(regex_entry(group.group_id, regex, said.matched))
        return regexes

    def is_behind(self, group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Whether a member would come further if it asked: to the last assignment, or to one that is due."""
        if member.epoch < group.assignment_epoch:
            return True
        return group.epoch > group.assignment_epoch and self._may_assign(group)

    def _may_assign(self, group: ConsumerGroup) -> bool:
        """Whether the last assignment was made long enough ago."""
        elapsed_ms = self._clock.now_ms() - group.assignment_timestamp_ms
        own = self._topics.config_of(group.group_id)
        return not 0 <= elapsed_ms < self._settings.consumer_assignment_interval_ms(own)

    def _assign(
        self,
        group: ConsumerGroup,
        epoch: int,
        members: Mapping[str, ConsumerMember],
        member: ConsumerMember,
        subscriptions: Subscriptions,
        entries: list[Entry],
    ) -> Partitions:
        """Make a target assignment for an epoch; the member's part in it."""
        name = group.preferred_assignor(members.values()) or self._settings.consumer_assignors[0]
        target = make_target(group, members.values(), subscriptions, ASSIGNORS[name])
        entries += [
            target_entry(group.group_id, member_id, partitions)
            for member_id, partitions in target.items()
            if group.target.get(member_id) != partitions
        ]
        # An assignment of nothing does not make the next one wait.
        now_ms = self._clock.now_ms() if any(target.values()) else 0
        entries.append(target_epoch_entry(group.group_id, epoch, now_ms))
        log.debug("group %s has an assignment for epoch %d by %s", group.group_id, epoch, name)
        return target.get(member.member_id, {})

    # What others cause

    def refreshed(self, group: ConsumerGroup) -> list[Entry]:
        """Topics are others: the group gets a new epoch if it is subscribed to one of them."""
        current = metadata_hash(group.topics, self._topics)
        if group.is_empty or current == group.metadata_hash:
            return []
        return [group_entry(group.group_id, group.epoch + 1, current)]

    def matched(self, group: ConsumerGroup, found: Mapping[str, Matched]) -> list[Entry]:
        """Regular expressions match other topics than before: the group gets a new epoch."""
        changed = {
            regex: matched
            for regex, matched in found.items()
            if group.regex_users(regex)
            and (regex not in group.regexes or group.regexes[regex].topics != matched.topics)
        }
        if not changed:
            return []
        names = group.subscribed(group.members.values(), {**group.regexes, **changed})
        return [
            *(regex_entry(group.group_id, regex, matched) for regex, matched in changed.items()),
            group_entry(group.group_id, group.epoch + 1, metadata_hash(names, self._topics)),
        ]
