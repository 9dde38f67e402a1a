"""Brokers that are alive by the registry, and cannot be reached: others go on without them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from millstream.broker import cluster_state
from millstream.broker.server import Broker
from millstream.cluster.metadata import Topic
from millstream.controller import listening, tree
from millstream.controller.controller import Controller
from millstream.controller.presence import QUIET_ROUNDS, Presence
from millstream.errors import NetworkException
from millstream.protocol.messages import ControlledShutdownRequest
from millstream.registry.contract import Operation, Unavailable
from tests.controller.cluster import Cluster


def test_silence_is_counted_in_rounds() -> None:
    presence = Presence(1, max_rounds=3)
    epochs = {1: 10, 2: 20, 3: 30}
    for _ in range(2):
        presence.next_round(epochs)
    assert (presence.silent, presence.is_in_touch) == ({}, False)
    presence.heard(2)
    presence.heard(9)  # nobody knows it
    presence.next_round(epochs)
    assert (presence.silent, presence.has_news, presence.is_in_touch) == ({3: 30}, True, True)
    presence.note({3: 30})
    presence.next_round(epochs)
    assert not presence.has_news
    assert presence.is_parted_with(3, 30)
    assert presence.without_noted(epochs) == {1: 10, 2: 20}
    epochs[3] = 31  # it has begun again
    presence.next_round(epochs)
    assert not presence.is_parted_with(3, 30)
    assert presence.without_noted(epochs) == epochs
    assert presence.silent == {2: 20}
    for rounds in range(3):
        assert presence.cut_off_rounds == max(rounds - 1, 0)
        presence.next_round(epochs)
    assert (presence.silent, presence.cut_off_rounds, presence.is_in_touch) == ({2: 20, 3: 31}, 2, False)
    presence.heard(2)
    assert not presence.is_cut_off
    for _ in range(3):
        presence.next_round({1: 10, 2: 20})
    assert (presence.silent, presence.cut_off_rounds) == ({2: 20}, 0)  # of two, either may be


def test_nobody_is_parted_with_while_it_may_turn_out_that_the_controller_is_cut_off() -> None:
    """No cut silences all the others in the same round."""
    presence = Presence(1, max_rounds=QUIET_ROUNDS + 2)
    epochs = {1: 10, 2: 20, 3: 30}
    for _ in range(2):
        presence.next_round(epochs)
    presence.heard(3)
    for _ in range(QUIET_ROUNDS):
        presence.next_round(epochs)
    assert (presence.silent, presence.is_in_doubt) == ({2: 20}, True)
    presence.heard(3)
    assert not presence.is_in_doubt
    for _ in range(QUIET_ROUNDS + 1):
        presence.next_round(epochs)
    assert (presence.is_in_doubt, presence.is_cut_off) == (True, False)
    presence.next_round(epochs)
    assert (presence.is_in_doubt, presence.is_cut_off) == (False, True)


def test_two_brokers_are_never_in_doubt() -> None:
    presence = Presence(1, max_rounds=QUIET_ROUNDS + 2)
    for _ in range(presence.max_rounds):
        assert not presence.is_in_doubt
        presence.next_round({1: 10, 2: 20})
    assert (presence.silent, presence.is_in_doubt) == ({2: 20}, False)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers of these clusters count as silent after two short sessions, not after five seconds."""
    monkeypatch.setattr(listening, "LEAST_SILENCE_S", 0.0)


def part(brokers: Iterable[Broker], monkeypatch: pytest.MonkeyPatch, side: Callable[[int], object]) -> None:
    """Brokers on different sides do not reach each other; all of them reach the registry."""
    for each in brokers:
        place = each.peers.place

        def reached(broker_id: int, own: int = each.config.node_id, place=place):  # type: ignore[no-untyped-def]
            if side(broker_id) != side(own):
                raise NetworkException("cut off")
            return place(broker_id)

        monkeypatch.setattr(each.peers, "place", reached)
        for link in list(each.peers._links.values()):
            link.abort()
        each.peers._links.clear()


@pytest.mark.parametrize("is_controller", [True, False])
def test_a_broker_that_is_cut_off_from_the_others_is_replaced(
    is_controller: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            broker = await cluster.until_controller() if is_controller else cluster.follower
            number = broker.config.node_id
            others = [id_ for id_ in cluster.brokers if id_ != number]
            await cluster.create("t", assignment={0: [number, *others], 1: [*others, number]})
            await cluster.until(lambda: cluster.states("t")[0].leader == number)
            with monkeypatch.context() as patched:
                part(cluster.brokers.values(), patched, lambda broker_id: broker_id == number)
                reached = cluster.brokers[others[0]]
                await cluster.until(
                    lambda: (
                        [state.leader for state in cluster.states("t", others[0])] == [others[0]] * 2
                        and all(number not in state.isr for state in cluster.states("t", others[0]))
                    )
                )
                active = [id_ for id_, each in cluster.brokers.items() if each.controller.is_active]
                assert len(active) == 1
                assert active[0] in others
                assert number in reached.metadata.brokers  # its session goes on
                await asyncio.sleep(1)
                assert [id_ for id_, each in cluster.brokers.items() if each.controller.is_active] == active
            await cluster.until_in_sync("t", cluster.brokers)

    asyncio.run(main())


def test_a_controller_whose_links_break_one_after_another_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have in its own hands, out of the others' reach, what one of them leads."""

    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            head = await cluster.until_controller()
            first = head.config.node_id
            one, other = (id_ for id_ in cluster.brokers if id_ != first)
            await cluster.create("t", assignment={0: [one, first]})
            await cluster.until(lambda: cluster.states("t")[0].isr == [one, first])
            presence = head.controller.term.presence
            sides = {first: 0, one: 1, other: 0}
            part(cluster.brokers.values(), monkeypatch, lambda broker_id: sides[broker_id])
            await cluster.until(lambda: presence._rounds.get(one, (0, 0))[1] == 2)
            sides[other] = 1
            for each in (head, cluster.brokers[other]):
                for link in list(each.peers._links.values()):
                    link.abort()
                each.peers._links.clear()
            await cluster.until(lambda: cluster.states("t", one)[0].isr == [one])
            assert cluster.states("t", one)[0].leader == one
            assert cluster.states("t", one)[0].leader_epoch == cluster.states("t", first)[0].leader_epoch
            assert active(cluster) != [first]

    asyncio.run(main())


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_broker_that_takes_long_to_apply_what_it_is_told(
    gets_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there for as long as it gets on; one whose disk hangs is not."""
    monkeypatch.setattr(cluster_state, "AT_WORK_S", 0.3)

    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            head, broker = await cluster.until_controller(), cluster.follower
            number, first = broker.config.node_id, head.config.node_id
            await cluster.create("t", assignment={0: [number, first]})
            await cluster.until(lambda: cluster.states("t")[0].leader == number)
            before = cluster.states("t")[0]
            apply, steps = broker.replicas.apply, 0

            async def slowly(topic: Topic, indexes: Iterable[int], *, is_new: bool = True) -> None:
                nonlocal steps
                for index in indexes:
                    await asyncio.sleep(0.4)
                    steps += topic.name == "large"
                    if gets_on:
                        await apply(topic, [index], is_new=is_new)
                await apply(topic, indexes, is_new=is_new)

            monkeypatch.setattr(broker.replicas, "apply", slowly)
            made = asyncio.ensure_future(cluster.create("large", 12))
            await cluster.until(lambda: steps == 12)
            found = head.controller.term.picture.topics["t"].partitions[0]
            assert (found == before) is gets_on
            await made
            assert cluster.controller is head

    asyncio.run(main())


def test_a_broker_that_applies_a_long_answer_is_heard_by_the_next_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_state, "AT_WORK_S", 0.3)

    async def nothing() -> bool:
        return False

    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            first, broker = await cluster.until_controller(), cluster.follower
            number = broker.config.node_id
            monkeypatch.setattr(broker.controller._office, "take", nothing)
            (other,) = set(cluster.ids) - {number, first.config.node_id}
            await cluster.create("t", assignment={0: [number, other]})
            await cluster.until(lambda: cluster.states("t")[0].isr == [number, other])
            apply, steps = broker.replicas.apply, 0

            async def slowly(topic: Topic, indexes: Iterable[int], *, is_new: bool = True) -> None:
                nonlocal steps
                for index in indexes:
                    await asyncio.sleep(0.4)
                    steps += topic.name == "large"
                    await apply(topic, [index], is_new=is_new)
                await apply(topic, indexes, is_new=is_new)

            monkeypatch.setattr(broker.replicas, "apply", slowly)
            assignment = {index: [number] for index in range(20)}
            made = asyncio.ensure_future(cluster.create("large", assignment=assignment))
            await cluster.until(lambda: steps == 2)
            cluster.lose(first.config.node_id)
            await cluster.until(lambda: not first.controller.is_active and bool(active(cluster)))
            await cluster.until(lambda: steps >= 20)
            found = cluster.controller.controller.term.picture.topics["t"].partitions[0]
            assert (found.leader, found.isr) == (number, [number, other])
            await asyncio.gather(made, return_exceptions=True)

    asyncio.run(main())


def active(cluster: Cluster) -> list[int]:
    return [id_ for id_, broker in cluster.brokers.items() if broker.controller.is_active]


def test_an_office_that_could_not_be_given_up_does_not_stay_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            first = await cluster.until_controller()
            office, refused = first.controller._office, []
            write = office.write

            async def refuse(operations: Sequence[Operation]) -> list[int]:
                if any(each.path == tree.CONTROLLER for each in operations):
                    refused.append(operations)
                    raise Unavailable("the registry does not answer")
                return await write(operations)

            monkeypatch.setattr(office, "write", refuse)
            with monkeypatch.context() as patched:
                number = first.config.node_id
                part(cluster.brokers.values(), patched, lambda broker_id: broker_id == number)
                await cluster.until(lambda: bool(refused))
            await cluster.until(lambda: len(active(cluster)) == 1)

    asyncio.run(main())


@pytest.mark.parametrize("are_mute", [False, True], ids=["all parted", "mute"])
def test_who_does_best_stays_in_office_and_goes_on_without_the_others(
    are_mute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody reaches the others, or these hang, another controller would do no better."""
    monkeypatch.setattr(listening, "SILENT_SESSIONS", 1)

    async def never() -> bool:
        return False

    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            first = await cluster.until_controller()
            others = [id_ for id_ in cluster.brokers if id_ != first.config.node_id]
            await cluster.create("t", assignment={0: [others[0], first.config.node_id, others[1]]})
            await cluster.until_in_sync("t", cluster.brokers)
            with monkeypatch.context() as patched:
                for id_ in others if are_mute else ():
                    patched.setattr(cluster.brokers[id_].controller._office, "take", never)
                part(cluster.brokers.values(), patched, lambda broker_id: broker_id)

                def goes_on() -> bool:
                    (number,) = active(cluster) or (0,)
                    if not number:
                        return False
                    state = cluster.brokers[number].controller.term.picture.topics["t"].partitions[0]
                    return (state.leader, state.isr) == (number, [number])

                await cluster.until(goes_on)
            await cluster.until(lambda: len(active(cluster)) == 1)
            await cluster.until_in_sync("t", cluster.brokers)

    asyncio.run(main())


def test_nothing_is_given_to_another_broker_that_is_silent(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            first = (await cluster.until_controller()).config.node_id
            one, other = (id_ for id_ in cluster.brokers if id_ != first)
            await cluster.create("t", assignment={0: [one, other]})
            await cluster.create("u", assignment={0: [one, other, first]})
            term = cluster.controller.controller.term
            epochs = {id_: cluster.brokers[id_].broker_epoch for id_ in (one, other)}

            async def stop() -> None:
                await term.partitions.stop_brokers(epochs)

            before = term.picture.topics["t"].partitions[0]
            await cluster.controller.controller.in_turn(stop)
            assert term.picture.topics["t"].partitions[0] == before
            moved = term.picture.topics["u"].partitions[0]
            assert (moved.leader, moved.isr) == (first, [first])

    asyncio.run(main())


async def part_with(head: Controller, brokers: Mapping[int, int]) -> None:
    """Have a controller go on without brokers, by their epochs, as if they had been silent."""

    async def part_with_them() -> None:
        await head.term.partitions.stop_brokers(brokers)
        head.term.presence.note(brokers)

    await head.in_turn(part_with_them)


@pytest.mark.parametrize("is_silent_first", [True, False])
def test_a_broker_that_stops_does_not_come_back_by_asking_for_news(
    tmp_path: Path, is_silent_first: bool
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.until_controller()
            head, broker = cluster.controller.controller, cluster.follower
            number, epoch = broker.config.node_id, broker.broker_epoch
            if is_silent_first:
                await part_with(head, {number: epoch})
            request = ControlledShutdownRequest(broker_id=number, broker_epoch=epoch)
            assert (await head.requests.stop_broker(request)).error_code == 0
            if not is_silent_first:
                await part_with(head, {number: epoch})
            sequence = head.term.feed.sequence
            await cluster.until(lambda: head.term.feed.is_applied(sequence, {number: epoch}))
            await asyncio.sleep(1)  # it asks twice a second
            assert head.term.picture.stopping == {number: epoch}

    asyncio.run(main())


def test_a_broker_that_could_not_be_taken_back_is_parted_with_when_it_falls_silent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with Cluster(tmp_path) as cluster:
            await cluster.until_controller()
            head, broker = cluster.controller.controller, cluster.follower
            number, epoch = broker.config.node_id, broker.broker_epoch

            def refuse() -> NoReturn:
                part(cluster.brokers.values(), monkeypatch, lambda broker_id: broker_id == number)
                raise Unavailable("the registry is out of reach")

            monkeypatch.setattr(head.term.partitions, "_elections", refuse)
            await part_with(head, {number: epoch})
            await cluster.until(lambda: not head.term.picture.stopping)
            await cluster.until(lambda: number in head.term.picture.stopping)

    asyncio.run(main())
