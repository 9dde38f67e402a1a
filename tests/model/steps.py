"""What can happen next in the model. The decisions are the cluster's own: `cluster.rules` for leaders and
followers, `controller.elections` and `controller.isr` for the controller.

A record is committed when a leader counts it so. No such record may ever be missing from a log that is led
with, as long as no more than min.insync.replicas - 1 replicas have lost the ends of their logs at a time,
however many others were stopped: a broker that was killed comes back with all of it, but nobody can tell.

A step names itself and gives the next state; a broken promise is raised. Messages between brokers and
controller may be late, lost or overtaken; a fetch is one step, but what a leader heard stays with it
while the follower goes on, or dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from millstream.cluster import rules
from millstream.cluster.metadata import PartitionState
from millstream.controller import elections
from millstream.controller.isr import Member, altered
from millstream.controller.isr import Proposal as ProposedIsr
from millstream.errors import KafkaError
from tests.model.state import (
    REPLICAS,
    UNHEARD,
    Answer,
    Broker,
    Log,
    Partition,
    Proposal,
    State,
    epochs_of,
)

Step = tuple[str, State]
NOBODY: frozenset[int] = frozenset()


class Promise(Exception):
    """A promise that a state breaks."""


class Rules(NamedTuple):
    """What is explored, and which rules are broken on purpose."""

    min_isr: int = 2
    counts_union: bool = True
    checks_broker_epochs: bool = True
    truncates_by_epoch: bool = True
    distrusts_unclean: bool = True
    mends_in_a_new_epoch: bool = True
    compares_ends: bool = True

    @property
    def elections(self) -> elections.Rules:
        return elections.Rules(min_isr=self.min_isr)


class Model:
    """The steps under some rules."""

    def __init__(self, chosen: Rules) -> None:
        self.rules = chosen

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that may happen in a state."""
        for text, following in self._steps(state):
            yield text, _without_idle_messages(following)

    def _steps(self, state: State) -> Iterator[Step]:
        for number, broker in enumerate(state.brokers):
            if broker.is_up:
                yield from self._leading(state, number, broker)
                yield from self._following(state, number, broker)
                yield from self._told(state, number, broker)
                yield from self._damaged(state, number, broker)
            yield from self._befalls(state, number, broker)
        yield from self._controller(state)

    # Leaders

    def _leads(self, number: int, broker: Broker) -> bool:
        return broker.is_up and broker.partition is not None and broker.partition.leader == number

    def _leading(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        known = broker.partition
        if known is None or not self._leads(number, broker):
            return
        if state.records_left:
            record = (known.leader_epoch, number)
            longer = broker._replace(log=(*broker.log, record))
            left = state._replace(records_left=state.records_left - 1)
            yield f"{number} appends", self._advanced(left, number, longer)
        if broker.proposed is None and state.proposals_left:
            for follower in REPLICAS:
                if follower == number:
                    continue
                end, _ = broker.heard[follower]
                if follower in known.isr:
                    smaller = rules.without(known.isr, {follower}, REPLICAS)
                    yield self._propose(state, number, broker, smaller, f"to go on without {follower}")
                elif end >= 0 and rules.may_join(end, broker.high_watermark, broker.epoch_start):
                    larger = rules.with_member(known.isr, follower, REPLICAS)
                    yield self._propose(state, number, broker, larger, f"to take {follower} in")

    def _propose(self, state: State, number: int, broker: Broker, isr: list[int], text: str) -> Step:
        known = broker.partition
        assert known is not None
        members = tuple((one, broker.epoch if one == number else broker.heard[one][1]) for one in isr)
        proposal = Proposal(number, known.leader_epoch, known.version, members)
        asked = state._replace(
            requests=state.requests | {proposal}, proposals_left=state.proposals_left - 1
        ).with_broker(number, broker._replace(proposed=tuple(isr)))
        return f"{number} proposes {text}", asked

    def _advanced(self, state: State, number: int, broker: Broker) -> State:
        """A leader works out the high watermark anew; what it passes is committed."""
        known = broker.partition
        assert known is not None
        if not self._leads(number, broker):
            return state.with_broker(number, broker)
        proposed = broker.proposed if self.rules.counts_union else None
        isr = known.isr
        if not self.rules.counts_union and broker.proposed is not None:
            isr = broker.proposed
        others = rules.counted(isr, proposed) - {number}
        watermark = rules.high_watermark(
            broker.high_watermark,
            broker.end,
            (broker.heard[one][0] for one in others),
            has_enough=rules.has_enough(known.isr, self.rules.min_isr, REPLICAS),
        )
        if watermark == broker.high_watermark:
            return state.with_broker(number, broker)
        found = broker.log[:watermark]
        common = min(len(found), len(state.committed))
        if found[:common] != state.committed[:common]:
            text = f"{number} commits {_show(found)}, though {_show(state.committed)} was committed"
            raise Promise(text)
        committed = max(found, state.committed, key=len)
        moved = broker._replace(high_watermark=watermark)
        return state._replace(committed=committed).with_broker(number, moved)

    # Followers

    def _following(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        known = broker.partition
        if known is None or known.leader in (number, -1):
            return
        if broker.damaged is not None and self.rules.mends_in_a_new_epoch:
            if number not in (*known.isr, *known.eligible, *known.doubted):
                return
            broker = broker._replace(damaged=known.leader_epoch)
        leader = state.brokers[known.leader]
        if (
            not leader.is_up
            or leader.partition is None
            or leader.partition.leader != known.leader
            or leader.partition.leader_epoch != known.leader_epoch
        ):
            return
        last_epoch = broker.log[-1][0] if broker.log else -1
        epochs = epochs_of(leader.log)
        if not epochs or epochs[-1][0] != known.leader_epoch:
            epochs.append((known.leader_epoch, leader.end))
        told = None
        if broker.log and self.rules.truncates_by_epoch:
            told = rules.divergence(epochs, leader.end, last_epoch, broker.end)
        elif broker.end > leader.end:
            told = (last_epoch, leader.end)
        if told is not None:
            end = rules.truncation(epochs_of(broker.log), broker.end, *told)
            cut = broker._replace(log=broker.log[:end])
            yield f"{number} cuts its log at {end}", state.with_broker(number, cut)
            return
        heard = list(leader.heard)
        if heard[number][1] > broker.epoch:
            return
        heard[number] = (broker.end, broker.epoch)
        noted = leader._replace(heard=tuple(heard))
        after = self._advanced(state, known.leader, noted)
        after = after.with_broker(number, broker._replace(log=(*broker.log, *leader.log[broker.end :][:1])))
        if after != state:
            yield f"{number} fetches from {known.leader} at {broker.end}", after

    # The controller

    def _controller(self, state: State) -> Iterator[Step]:
        yield from self._compared(state)
        epochs = {number: state.brokers[number].epoch for number in state.live}
        for proposal in state.requests:
            rest = state._replace(requests=state.requests - {proposal})
            members = [Member(one, epoch) for one, epoch in proposal.isr]
            if not self.rules.checks_broker_epochs:
                members = [Member(one, epochs.get(one, -1)) for one, _ in proposal.isr]
            asked = ProposedIsr(proposal.leader, proposal.leader_epoch, proposal.version, members)
            who = f"the controller, asked by {proposal.leader} for {[one for one, _ in proposal.isr]},"
            try:
                found = altered(state.partition.state(), asked, epochs, frozenset(), self.rules.elections)
            except KafkaError as error:
                answer = Answer(proposal, None, 0)
                yield f"{who} refuses: {type(error).__name__}", _answered(rest, answer)
                continue
            partition = self._written(state, found)
            answer = Answer(proposal, partition.isr, partition.version)
            after = _healed(_answered(rest._replace(partition=partition), answer))
            _check_members(after)
            yield f"{who} agrees", after

    def _compared(self, state: State) -> Iterator[Step]:
        """The brokers whose replicas are doubted have all told where these end."""
        now = state.partition
        if now.leader >= 0:
            return
        told = [one for one in now.doubted if self._knows_epoch(state, one)]
        ends = {one: _end(state.brokers[one].log) if self.rules.compares_ends else (-1, 0) for one in told}
        found = elections.elected(now.state(), state.live, self.rules.elections, ends=ends)
        partition = self._written(state, found)
        if partition != now:
            yield f"doubted are {told}: they tell their ends", _healed(state._replace(partition=partition))

    def _knows_epoch(self, state: State, number: int) -> bool:
        known = state.brokers[number].partition
        return known is not None and known.leader_epoch == state.partition.leader_epoch

    def _written(self, state: State, decided: PartitionState) -> Partition:
        return state.partition.written(elections.settled(decided, self.rules.elections))

    def _told(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        """News of the controller, and its answers."""
        known, now = broker.partition, state.partition
        for answer in state.answers:
            proposal = answer.proposal
            if proposal.leader != number:
                continue
            rest = state._replace(answers=state.answers - {answer})
            if answer.isr is None:
                taken = broker._replace(proposed=None)
                yield f"{number} hears a refusal", self._advanced(rest, number, taken)
            else:
                assert known is not None
                changed = known._replace(isr=answer.isr, version=answer.version)
                taken = broker._replace(partition=changed, proposed=None)
                yield (
                    f"{number} hears that {list(answer.isr)} are in sync",
                    self._advanced(rest, number, taken),
                )
        if not broker.is_registered or (known is not None and known.version >= now.version):
            return
        if known is not None and known.leader_epoch == now.leader_epoch:
            same = broker._replace(partition=now, proposed=None)
            if now.leader == number:
                yield f"{number} is told of {_describe(now)}", self._advanced(state, number, same)
            else:
                yield f"{number} is told of {_describe(now)}", state.with_broker(number, same)
            return
        begun = broker._replace(
            partition=now,
            proposed=None,
            heard=(UNHEARD, UNHEARD, UNHEARD),
            epoch_start=broker.end,
            high_watermark=0,
        )
        if now.leader != number:
            begun = begun._replace(epoch_start=0)
            yield f"{number} is told of {_describe(now)}", state.with_broker(number, begun)
            return
        if broker.log[: len(state.committed)] != state.committed:
            text = f"{number} leads with {_show(broker.log)}, though {_show(state.committed)} was committed"
            raise Promise(text)
        yield f"{number} is told that it leads: {_describe(now)}", self._advanced(state, number, begun)

    # Damage

    def _damaged(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        """Records that cannot be read are met, told of, and cut off: see `cluster.mending`."""
        known = broker.partition
        if broker.damaged is None:
            if state.damages_left and known is not None and broker.log and self._is_bearable(state, number):
                met = broker._replace(damaged=known.leader_epoch)
                left = state._replace(damages_left=state.damages_left - 1)
                yield f"{number} meets damage", left.with_broker(number, met)
            return
        now = state.partition
        is_counted = number in {*now.isr, *now.eligible, *now.doubted}
        if broker.is_registered and (is_counted or broker.damaged >= now.leader_epoch):
            found = elections.without_damaged(now.state(), number, state.live, self.rules.elections)
            after = state._replace(partition=self._written(state, found))
            if after != state:
                yield f"{number} tells of damage", after
        if known is None or known.leader in (number, -1):
            return
        if number in (*known.isr, *known.eligible, *known.doubted):
            return
        if known.leader_epoch > broker.damaged or not self.rules.mends_in_a_new_epoch:
            for kept in range(broker.end):
                cut = broker._replace(log=broker.log[:kept], damaged=None)
                doubted = state._replace(unclean=state.unclean | {number}, hurt=state.hurt | {number})
                yield f"{number} mends damage, and keeps {kept} records", doubted.with_broker(number, cut)

    def _is_bearable(self, state: State, number: int) -> bool:
        """Whether one more may lose records: fewer than are needed to commit one."""
        damaged = {one for one, broker in enumerate(state.brokers) if broker.damaged is not None}
        return len(state.hurt | damaged | {number}) < self.rules.min_isr

    # Faults

    def _befalls(self, state: State, number: int, broker: Broker) -> Iterator[Step]:
        if broker.is_up and state.faults_left:
            left = state._replace(faults_left=state.faults_left - 1)
            dead = broker._replace(
                is_up=False,
                partition=None,
                proposed=None,
                heard=(UNHEARD, UNHEARD, UNHEARD),
                epoch_start=0,
                high_watermark=0,
                damaged=None,
            )
            unclean = state.unclean | {number}
            killed = left._replace(unclean=unclean)
            yield f"{number} is killed", killed.with_broker(number, dead)
            if self._is_bearable(state, number):
                hurt = left._replace(unclean=unclean, hurt=state.hurt | {number})
                for kept in range(broker.end):
                    torn = dead._replace(log=broker.log[:kept])
                    text = f"{number} loses power, and keeps {kept} of {broker.end} records"
                    yield text, hurt.with_broker(number, torn)
            if broker.is_registered:
                yield f"the session of {number} ends, though it lives", self._expired(left, number)
        elif not broker.is_up and broker.is_registered:
            yield f"the session of {number} ends", self._expired(state, number)
        if not broker.is_up:
            started = broker._replace(is_up=True, is_registered=True, epoch=broker.epoch + 1)
            is_doubted = self.rules.distrusts_unclean
            after = self._changed(
                state.with_broker(number, started),
                unclean={number} if is_doubted else set(),
                restarted={number} if broker.is_registered and not is_doubted else set(),
            )
            if number in after.partition.isr:  # nobody else was left, so that nothing is lost with it
                after = _healed(after)
            yield f"{number} starts again", after
        elif not broker.is_registered:
            back = broker._replace(is_registered=True, epoch=broker.epoch + 1)
            yield f"{number} has a session again", self._changed(state.with_broker(number, back))

    def _expired(self, state: State, number: int) -> State:
        gone = state.brokers[number]._replace(is_registered=False)
        return self._changed(state.with_broker(number, gone))

    def _changed(
        self, state: State, unclean: AbstractSet[int] = NOBODY, restarted: AbstractSet[int] = NOBODY
    ) -> State:
        """The controller sees brokers come and go."""
        live = state.live
        found = elections.after_changes(
            state.partition.state(),
            live,
            live,
            self.rules.elections,
            unclean=unclean,
            restarted=restarted,
        )
        return state._replace(partition=self._written(state, found))


def _without_idle_messages(state: State) -> State:
    """The state without messages that can change nothing any more.

    Answers to what a leader no longer asks, which it passes over, and requests that the controller will
    refuse, to whomever no longer asks.
    """
    if not state.answers and not state.requests:
        return state
    answers = frozenset(answer for answer in state.answers if _is_awaited(state, answer.proposal))
    requests = frozenset(
        request
        for request in state.requests
        if _is_awaited(state, request)
        or (request.leader_epoch, request.version) >= (state.partition.leader_epoch, state.partition.version)
    )
    if len(answers) == len(state.answers) and len(requests) == len(state.requests):
        return state
    return state._replace(answers=answers, requests=requests)


def _is_awaited(state: State, proposal: Proposal) -> bool:
    broker = state.brokers[proposal.leader]
    known = broker.partition
    return (
        known is not None
        and broker.proposed is not None
        and known.leader == proposal.leader
        and known.leader_epoch == proposal.leader_epoch
        and known.version == proposal.version
    )


def _check_members(state: State) -> None:
    """Who is in sync and not doubted has all that is committed."""
    for one in state.partition.isr:
        log = state.brokers[one].log
        if one not in state.unclean and log[: len(state.committed)] != state.committed:
            text = f"{one} is in sync with {_show(log)}, though {_show(state.committed)} was committed"
            raise Promise(text)


def _healed(state: State) -> State:
    """Who is there and in sync has all that is committed."""
    isr = [one for one in state.partition.isr if state.brokers[one].is_up]
    return state._replace(unclean=state.unclean.difference(isr), hurt=state.hurt.difference(isr))


def _answered(state: State, answer: Answer) -> State:
    return state._replace(answers=state.answers | {answer})


def _describe(partition: Partition) -> str:
    leader = "nobody" if partition.leader < 0 else str(partition.leader)
    return f"{leader} leads in epoch {partition.leader_epoch}, in sync are {list(partition.isr)}"


def _show(log: Log) -> str:
    return "[" + " ".join(f"{epoch}.{writer}" for epoch, writer in log) + "]"


def _end(log: Log) -> elections.End:
    return (log[-1][0] if log else -1), len(log)
