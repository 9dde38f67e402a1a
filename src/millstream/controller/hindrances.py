"""Replicas that others should lead: records of theirs cannot be read, or no more can be written.

Unlike one whose log dir failed, such a replica goes on where nobody else can: all that is sound of it can be
read. Where others are in sync they go on without it, until it says that it can again.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.controller.elections import settled, stepping_down, without_damaged
from millstream.controller.ledger import Decision, Ledger
from millstream.controller.picture import NOT_HINDERED, Hindered, Picture


class Hindrances:
    """Decides what follows from what brokers say of their replicas."""

    def __init__(self, picture: Picture, ledger: Ledger) -> None:
        self._picture = picture
        self._ledger = ledger

    def is_news(self, broker_id: int, hindered: Hindered) -> bool:
        """Whether something is to be done: others may have come in sync since the same was last said."""
        if self._picture.hindered.get(broker_id, NOT_HINDERED) != hindered:
            return True
        return any(hindered) and next(self._decisions(broker_id, hindered), None) is not None

    async def note(self, broker_id: int, hindered: Hindered) -> None:
        """A broker says which of its replicas are hindered; those it said it of before are no more."""
        await self._ledger.decide(self._decisions(broker_id, hindered))
        self._picture.hindered.pop(broker_id, None)
        if any(hindered):
            self._picture.hindered[broker_id] = hindered

    def _decisions(self, broker_id: int, hindered: Hindered) -> Iterator[Decision]:
        picture = self._picture
        candidates = picture.candidates
        for place in sorted({*hindered.damaged, *hindered.full}):
            topic_id, index = place
            topic = picture.ids.get(topic_id)
            if topic is None or index >= len(topic.partitions):
                continue
            state, rules = topic.partitions[index], picture.rules(topic)
            if broker_id not in state.replicas:
                continue
            fit = picture.candidates_for(topic, index, candidates) - picture.hindered_for(topic, index)
            epoch = hindered.damaged.get(place)
            if epoch is None:
                if state.leader not in (broker_id, *fit):
                    continue  # who leads is no better off, and can commit nothing without this one
                decided = stepping_down(state, broker_id, fit, rules)
            elif broker_id in {*state.isr, *state.eligible, *state.doubted} or epoch >= state.leader_epoch:
                decided = without_damaged(state, broker_id, fit, rules)
            else:
                continue
            decided = settled(decided, rules)
            if decided != state:
                yield Decision(topic, index, decided)
