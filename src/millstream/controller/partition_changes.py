"""Leaders, in-sync replicas and moves: what the controller decides when brokers come, go, and ask."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from millstream.cluster.metadata import NO_LEADER, BrokerNode, PartitionState, Topic
from millstream.controller import reassignment, tree
from millstream.controller.elections import (
    NOBODY,
    after_changes,
    elected,
    preferred,
    settled,
    stepping_down,
    uncleanly,
)
from millstream.controller.feed import Feed
from millstream.controller.isr import Proposal, altered
from millstream.controller.ledger import Decision, Ledger
from millstream.controller.picture import Picture, Replica, ToldEnd
from millstream.errors import BrokerIdNotRegistered, InvalidRequest, KafkaError, UnknownTopicOrPartition
from millstream.model import TopicPartition
from millstream.registry.contract import Create, Delete, Operation, Set

log = logging.getLogger(__name__)

Outcome = KafkaError | None
"""Why something was not done, if it was not."""


class PartitionChanges:
    """Decides about partitions, and writes that down."""

    def __init__(self, picture: Picture, feed: Feed, ledger: Ledger) -> None:
        self._picture = picture
        self._feed = feed
        self._ledger = ledger
        self._compared_at: dict[int, int] = {}
        """As of which number of the feed each broker's doubted replicas were last looked at."""

    # Brokers

    async def brokers_are(self, found: Mapping[int, tuple[BrokerNode, bool]]) -> None:
        """Draw the consequences of who is there, and in which registration.

        The registrations that are new are noted as seen in the last write, so that a controller that is
        cut short is followed by one that does it all again. So is one that could not read all topics.
        Of a broker that is not known, or no more, nothing is certain either, whatever it says.
        """
        picture = self._picture
        fresh = {id_: node for id_, (node, _) in found.items() if picture.seen.get(id_) != node.epoch}
        unclean = frozenset(
            id_ for id_ in fresh if not found[id_][1] or id_ in picture.doubted or id_ not in picture.seen
        )
        restarted = frozenset(id_ for id_ in fresh if id_ not in unclean)
        gone = picture.brokers.keys() - found.keys()
        picture.brokers = {broker_id: node for broker_id, (node, _) in found.items()}
        picture.was_clean = {broker_id: was_clean for broker_id, (_, was_clean) in found.items()}
        picture.failed = {
            id_: was for id_, was in picture.failed.items() if id_ in found and id_ not in fresh
        }
        picture.hindered = {
            id_: was for id_, was in picture.hindered.items() if id_ in found and id_ not in fresh
        }
        picture.ends = {id_: was for id_, was in picture.ends.items() if id_ in found and id_ not in fresh}
        picture.stopping = {id_: epoch for id_, epoch in picture.stopping.items() if self._is_in(id_, epoch)}
        if gone or fresh:
            log.info("brokers: %s; gone: %s; new: %s", sorted(found), sorted(gone), sorted(fresh))
        self._feed.publish()
        is_all = not picture.unreadable
        picture.doubted = (picture.doubted - fresh.keys()) if is_all else (picture.doubted | unclean)
        seen: list[Operation] = [
            (Set if broker_id in picture.seen else Create)(
                f"{tree.SEEN_BROKERS}/{broker_id}",
                tree.dump(
                    tree.SeenNode(
                        node.epoch if is_all else -1,
                        is_doubted=broker_id in picture.doubted,
                        rack=node.rack,
                    )
                ),
            )
            for broker_id, node in fresh.items()
        ]
        live, candidates = picture.brokers.keys(), picture.candidates
        await self._ledger.decide(
            self._changed(
                lambda topic, index, state: after_changes(
                    state,
                    live,
                    picture.candidates_for(topic, index, candidates),
                    picture.rules(topic),
                    unclean=unclean,
                    restarted=restarted,
                    ends=picture.ends_for(topic, index),
                    stopping=picture.stopping_for(topic, index),
                )
            ),
            seen,
        )
        picture.seen.update({broker_id: node.epoch for broker_id, node in fresh.items()})
        picture.seen_racks.update({broker_id: node.rack for broker_id, node in fresh.items()})

    async def unregister(self, broker_id: int) -> None:
        """Forget a broker that will not come back: new replicas wait for it no more.

        Its replicas stay its own until they are moved. If it does come back, nothing is certain of it.
        """
        picture = self._picture
        if broker_id not in picture.seen:
            raise BrokerIdNotRegistered(f"broker {broker_id} does not belong to the cluster")
        if broker_id in picture.brokers:
            raise InvalidRequest(f"broker {broker_id} is there: stop it first")
        await self._ledger.decide((), [Delete(f"{tree.SEEN_BROKERS}/{broker_id}")])
        del picture.seen[broker_id], picture.seen_racks[broker_id]
        picture.doubted.discard(broker_id)
        log.info("broker %d does not belong to the cluster any more", broker_id)

    def _is_in(self, broker_id: int, epoch: int) -> bool:
        node = self._picture.brokers.get(broker_id)
        return node is not None and node.epoch == epoch

    def is_news(self, broker_id: int, failed: frozenset[Replica]) -> bool:
        return self._picture.failed.get(broker_id, NOBODY) != failed

    async def replicas_failed(self, broker_id: int, failed: frozenset[Replica]) -> None:
        """A broker says which of its replicas it cannot serve: others lead and are in sync without it."""
        picture = self._picture
        before = picture.failed.pop(broker_id, frozenset())
        if failed:
            picture.failed[broker_id] = failed
        await self._ledger.decide(self._changed(self._without_failed, self._places(before | failed)))

    def _without_failed(self, topic: Topic, index: int, state: PartitionState) -> PartitionState:
        picture = self._picture
        fit = self._picture.candidates_for(topic, index, picture.candidates)
        live = picture.brokers.keys() - picture.failed_for(topic, index)
        return after_changes(
            state,
            live,
            fit,
            picture.rules(topic),
            ends=picture.ends_for(topic, index),
            stopping=picture.stopping_for(topic, index),
        )

    def is_news_of_ends(self, broker_id: int, told: Mapping[Replica, ToldEnd]) -> bool:
        """Whether something is to be done: another may have come since the same was last said."""
        if self._picture.ends.get(broker_id, {}) != told:
            return True
        if not told or self._compared_at.get(broker_id) == self._feed.sequence:
            return False
        if next(self._elections(told), None) is not None:
            return True
        self._compared_at[broker_id] = self._feed.sequence
        return False

    async def ends_are(self, broker_id: int, told: Mapping[Replica, ToldEnd]) -> None:
        """A broker says where its doubted replicas end: one may be elected, once all have said it."""
        picture = self._picture
        picture.ends.pop(broker_id, None)
        if told:
            picture.ends[broker_id] = told
        await self._ledger.decide(self._elections(told))

    async def stop_broker(self, broker_id: int, epoch: int) -> int:
        """Move what a broker leads to others; how much it still leads that others could lead later."""
        await self.stop_brokers({broker_id: epoch})
        candidates = self._picture.candidates
        return sum(
            state.leader == broker_id and any(each in candidates for each in state.replicas)
            for _, _, state in self._picture.partitions()
        )

    async def stop_brokers(self, epochs: Mapping[int, int]) -> None:
        """Move what brokers lead to others, who do not wait for them; what only these can lead stays as it
        is.

        Leaders hear of it once it is written down that they are in sync no more: from then on they do not
        wait for them when records are deleted.
        """
        picture = self._picture
        candidates = picture.candidates - epochs.keys()

        def step_down(topic: Topic, index: int, state: PartitionState) -> PartitionState:
            fit, rules = picture.candidates_for(topic, index, candidates), picture.rules(topic)
            found = state
            for broker_id in epochs:
                found = stepping_down(found, broker_id, fit, rules)
            return state if found.leader in epochs else found

        await self._ledger.decide(self._changed(step_down))
        picture.stopping.update(epochs)
        self._feed.publish()

    async def broker_is_back(self, broker_id: int) -> None:
        """A broker that was about to stop, or cut off, stays: what nobody leads it may lead."""
        self._picture.stopping.pop(broker_id, None)
        self._feed.publish()
        await self._ledger.decide(self._elections())

    # What leaders propose

    async def alter(
        self, proposals: Sequence[tuple[UUID, int, Proposal]]
    ) -> list[PartitionState | KafkaError]:
        """Answer each proposal with the partition's new state, or why it was refused; all in one write."""
        picture = self._picture
        epochs, stopping = picture.epochs, picture.stopping.keys()
        decisions: dict[Replica, Decision] = {}
        answers: list[tuple[Topic, int] | KafkaError] = []
        for topic_id, index, proposal in proposals:
            try:
                topic = picture.topic_by_id(topic_id)
                state = picture.partition(topic, index)
                if (topic_id, index) in decisions:
                    raise UnknownTopicOrPartition("the partition is in the request twice")
                unfit = stopping | picture.failed_for(topic, index) | picture.hindered_for(topic, index)
                rules = picture.rules(topic)
                state = altered(state, proposal, epochs, unfit, rules)
                fit = picture.candidates_for(topic, index, picture.candidates)
                state = settled(reassignment.finished(state, fit, rules), rules)
                decisions[topic_id, index] = Decision(topic, index, state)
                answers.append((topic, index))
            except KafkaError as error:
                answers.append(error)
        await self._ledger.decide(decisions.values())
        return [
            found if isinstance(found, KafkaError) else found[0].partitions[found[1]] for found in answers
        ]

    # What operators ask for

    async def elect(
        self, wanted: Sequence[TopicPartition] | None, *, is_unclean: bool
    ) -> dict[TopicPartition, Outcome]:
        """Elect the preferred leaders, or any where there is none; None is for all partitions."""
        picture = self._picture
        places = (
            [TopicPartition(topic.name, index) for topic, index, _ in picture.partitions()]
            if wanted is None
            else dict.fromkeys(wanted)  # one that is named twice is elected once
        )
        outcomes: dict[TopicPartition, Outcome] = {}
        decisions = []
        for place in places:
            try:
                topic = picture.topic(place.topic)
                state = picture.partition(topic, place.partition)
                fit = picture.candidates_for(topic, place.partition, picture.candidates)
                rules = picture.rules(topic)
                if is_unclean:
                    ends = picture.ends_for(topic, place.partition)
                    stopping = picture.stopping_for(topic, place.partition)
                    state = uncleanly(state, fit, rules, ends=ends, stopping=stopping)
                else:
                    state = preferred(state, fit)
                outcomes[place] = None
                decisions.append(self._election(topic, place.partition, settled(state, rules)))
            except KafkaError as error:
                outcomes[place] = error
        await self._ledger.decide(decisions)
        return outcomes

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, may_resize: bool
    ) -> dict[TopicPartition, Outcome]:
        """Begin to move partitions to other brokers; None takes a move back."""
        picture = self._picture
        outcomes: dict[TopicPartition, Outcome] = {}
        decisions = []
        for place, target in wanted.items():
            try:
                topic = picture.topic(place.topic)
                state = picture.partition(topic, place.partition)
                fit = picture.candidates_for(topic, place.partition, picture.candidates)
                rules = picture.rules(topic)
                if target is None:
                    moved = reassignment.cancelled(state, fit, rules)
                else:
                    known = picture.brokers.keys() | reassignment.original(state)
                    reassignment.check_target(state, target, known, may_resize=may_resize)
                    moved = reassignment.begun(state, target, fit, rules)
                outcomes[place] = None
                moved = settled(moved, rules)
                if moved != state:
                    decisions.append(Decision(topic, place.partition, moved))
            except KafkaError as error:
                outcomes[place] = error
        await self._ledger.decide(decisions)
        return outcomes

    def moving(self) -> Iterator[tuple[TopicPartition, PartitionState]]:
        """The partitions that are being moved."""
        for topic, index, state in self._picture.partitions():
            if reassignment.is_moving(state):
                yield TopicPartition(topic.name, index), state

    async def balance(self) -> int:
        """Give leadership back to the preferred leaders that can take it; how often."""
        picture = self._picture
        candidates = picture.candidates
        decisions = []
        for topic, index, state in picture.partitions():
            if state.leader != state.replicas[0] and not reassignment.is_moving(state):
                try:
                    fit = picture.candidates_for(topic, index, candidates)
                    fit = fit - picture.hindered_for(topic, index)
                    led = settled(preferred(state, fit), picture.rules(topic))
                    decisions.append(Decision(topic, index, led))
                except KafkaError:
                    continue
        await self._ledger.decide(decisions)
        return len(decisions)

    # All partitions

    async def complete(self) -> None:
        """Give partitions their first state where a creation was cut short; end moves that can end."""
        picture = self._picture
        candidates = picture.candidates

        def complete(topic: Topic, index: int, state: PartitionState) -> PartitionState:
            fit = picture.candidates_for(topic, index, candidates)
            if state.version < 0:
                there = [each for each in state.replicas if each in fit] or list(state.replicas)
                fresh = PartitionState(state.replicas, there, -1, -1, -1, state.adding, state.removing)
                made = elected(fresh, fit, picture.rules(topic))
                return replace(made, leader_epoch=0)
            return reassignment.finished(state, fit, picture.rules(topic))

        await self._ledger.decide(self._changed(complete))

    async def elect_missing(self) -> None:
        """Elect leaders where there are none, under rules that may have changed."""
        await self._ledger.decide(self._elections())

    def _elections(self, among: Iterable[Replica] | None = None) -> Iterator[Decision]:
        """Leaders for those of the partitions, or of all, that have none."""
        picture = self._picture
        candidates = picture.candidates

        def elect(topic: Topic, index: int, state: PartitionState) -> PartitionState:
            if state.leader != NO_LEADER:
                return state
            fit = picture.candidates_for(topic, index, candidates)
            return elected(state, fit, picture.rules(topic), ends=picture.ends_for(topic, index))

        return self._changed(elect, None if among is None else self._places(among))

    def _places(self, replicas: Iterable[Replica]) -> Iterator[tuple[Topic, int, PartitionState]]:
        """Those of the partitions that there are."""
        for topic_id, index in sorted(replicas):
            topic = self._picture.ids.get(topic_id)
            if topic is not None and 0 <= index < len(topic.partitions):
                yield topic, index, topic.partitions[index]

    def _changed(
        self,
        decide: Callable[[Topic, int, PartitionState], PartitionState],
        among: Iterator[tuple[Topic, int, PartitionState]] | None = None,
    ) -> Iterator[Decision]:
        for topic, index, state in self._picture.partitions() if among is None else among:
            decided = decide(topic, index, state)
            if decided.leader != NO_LEADER:
                decided = settled(decided, self._picture.rules(topic))
            if decided is not state and decided != state:
                yield self._election(topic, index, decided)

    def _election(self, topic: Topic, index: int, state: PartitionState) -> Decision:
        """The decision, with whether its leader could not have been chosen cleanly."""
        picture, before = self._picture, topic.partitions[index]
        if before.version < 0 or state.leader in {NO_LEADER, before.leader, *before.isr, *before.eligible}:
            return Decision(topic, index, state)
        rules = replace(picture.rules(topic), allows_unclean=False)
        fit = picture.candidates_for(topic, index, picture.candidates)
        cleanly = elected(before, fit, rules, ends=picture.ends_for(topic, index))
        return Decision(topic, index, state, is_unclean=cleanly.leader != state.leader)
