"""How a broker follows the controller: it asks for what changed, applies it, and asks again.

The controller is found through the registry. An answer of an older controller than one heard before is
refused. After a second of silence, in which no question was put that was answered, or where something does
not fit, the broker asks for everything. What it has applied is told with the next question, so that the
controller knows who is up to date.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from millstream.cluster.metadata import PartitionState, Topic, TopicChange
from millstream.controller import tree
from millstream.controller.answers import brokers_in, deleted_in, topics_in
from millstream.controller.broker_requests import AT_WORK_MS
from millstream.controller.reading import read_broker
from millstream.errors import KafkaError, NotController, StaleControllerEpoch, error_for
from millstream.protocol.messages import ClusterStateRequest, ClusterStateResponse
from millstream.registry.contract import NoNode, RegistryError

if TYPE_CHECKING:
    from millstream.broker.server import Broker
    from millstream.cluster.partition import Partition

log = logging.getLogger(__name__)

PURPOSE = "controller"
MAX_WAIT_MS = 500
ANSWER_MS = 3000
"""How long an answer may take once there is a connection: brokers may be far apart."""
SILENCE_S = 1.0
"""How long after an answer a question may be put of which the answer tells changes only."""
PAUSE_S = 0.02
MAX_PAUSE_S = 0.5
START_QUIET_S = 5.0
"""How often a start that waits says so."""
AT_WORK_S = 2.0
"""How often the controller hears that a long answer is still applied: it takes brokers for cut off that it
does not hear of for five seconds or more.
"""
AGAIN_S = 3.0
"""How long after replicas could not be held that is tried again: a disk may have room by then."""


class _Gap(Exception):
    """A change does not fit to what is known."""


class ClusterState:
    """Keeps one broker's metadata and replicas as the controller says."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sequence = -1
        self._terms = 0
        """How often this broker began to ask anew."""
        self._heard_at = self._as_of = float("-inf")
        self._is_first = True
        self._taken = 0
        """How many topics of answers have been applied."""
        self.unreadable: set[str] = set()
        """Topics that the controller knows by name alone. What is held of them stays as it is."""
        self._undeleted: set[UUID] = set()
        """Deleted topics of which it was said that something of them is left here."""
        self._unheld: set[UUID] = set()
        """Topics of which it was said that not all that belongs here can be held."""
        self._again_at = float("inf")
        """When everything is asked for again on their account: else nobody may tell of them any more."""
        self._configured: tuple[dict[str, str], dict[str, str]] = ({}, {})
        """What was last told of the configuration that is set while running."""
        self._refused: dict[str, str] = {}
        """What of that it was said that it is not valid here, and why."""
        self._task: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._moves = 0
        """How often another broker may have become the controller."""
        self._controller_id: int | None = None
        """The broker that is the controller, as far as the registry was asked."""
        self._cancel_watch: Callable[[], None] = lambda: None
        self.applied: asyncio.Future[None] | None = None
        """Done when the first full state has been applied."""

    async def start(self) -> None:
        """Follow from now on; returns when the first full state has been applied."""
        loop = asyncio.get_running_loop()
        self.applied = loop.create_future()
        self._cancel_watch = self._broker.registry.watch(tree.CONTROLLER, lambda _: self._move())
        self._task = loop.create_task(self._run())
        done, _ = await asyncio.wait([self.applied, self._task], return_when=asyncio.FIRST_COMPLETED)
        if self._task in done:
            await self._task

    async def stop(self) -> None:
        self._cancel_watch()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def has_applied(self) -> bool:
        """Whether the controller's word has been heard since the start."""
        return not self._is_first

    def knows_all_since(self, moment: float) -> bool:
        """Whether all that the controller knew at a moment of the loop's time has been applied here."""
        return self._as_of >= moment

    def begin_anew(self) -> None:
        """Ask for everything, and take no answer to what was asked before: the session was lost.

        Until there is one, nobody is told of a controller: there may be none, as where the registry is gone.
        """
        self._broker.metadata.controller_id = -1
        self._sequence = -1
        self._terms += 1

    def wake(self) -> None:
        """Ask again now."""
        self._moved.set()

    def _move(self) -> None:
        """Another broker may be the controller: what this one was asked need not be awaited any more."""
        if self._controller_id is not None:
            self._broker.peers.cut(self._controller_id, PURPOSE)
        self._controller_id = None
        self._moves += 1
        self._moved.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s, is_said, began_at = PAUSE_S, False, loop.time()
        while True:
            self._moved.clear()
            try:
                terms, asked_at = self._terms, loop.time()
                response = await self._ask()
                if terms != self._terms:
                    continue
                if asked_at - self._heard_at > SILENCE_S and not response.is_full:
                    raise _Gap("it was silent for too long")
                await self._apply_in_touch(response)
                self._heard_at = loop.time()
                self._as_of = asked_at
                if self._heard_at >= self._again_at:
                    self._sequence = -1
            except _Gap as error:
                log.info("asking the controller for everything: %s", error)
                self._sequence = -1
            except (KafkaError, RegistryError) as error:
                if self._is_first and loop.time() - began_at > START_QUIET_S:
                    log.warning("the start waits for word from the controller: %s", error)
                    began_at = loop.time()
                elif not is_said:
                    log.info("no word from the controller: %s", error)
                    is_said = True
                self._controller_id = None
                await self._pause(pause_s)
                pause_s = min(pause_s * 2, MAX_PAUSE_S)
            except Exception:
                if self._is_first:
                    raise  # the broker cannot start
                log.exception("what the controller said could not be applied; asking for everything")
                self._sequence = -1
                await self._pause(MAX_PAUSE_S)
            else:
                pause_s, is_said = PAUSE_S, False

    async def _pause(self, pause_s: float) -> None:
        """Wait a while, or until another broker is the controller, as it may be since the last question."""
        try:
            async with asyncio.timeout(pause_s):
                await self._moved.wait()
        except TimeoutError:
            pass

    # Asking

    async def _ask(self) -> ClusterStateResponse:
        broker = self._broker
        metadata = broker.metadata
        request = ClusterStateRequest(
            broker_id=broker.config.node_id,
            broker_epoch=broker.broker_epoch,
            controller_epoch=metadata.controller_epoch,
            sequence=self._sequence,
            max_wait_ms=MAX_WAIT_MS,
            failed=_named(broker.replicas.failed()),
            damaged=_damaged(broker.replicas.damaged()),
            full=_named((each.topic_id, each.name.partition) for each in broker.replicas.full()),
            doubted=_doubted(broker.replicas.doubted()),
        )
        response = await self._send(request)
        if response.controller_epoch < metadata.controller_epoch:
            raise StaleControllerEpoch(f"an answer of epoch {response.controller_epoch} is refused")
        return response

    async def _send(self, request: ClusterStateRequest) -> ClusterStateResponse:
        broker = self._broker
        if broker.controller.is_active:
            response = await broker.controller.requests.poll(request)
        else:
            controller_id = self._controller_id
            if controller_id is None:
                controller_id = await self._locate()
            peers = broker.peers
            await peers.link(controller_id, PURPOSE).reach(peers.connect_timeout_ms)
            response = await peers.request(controller_id, PURPOSE, request, ClusterStateResponse, ANSWER_MS)
        if response.error_code:
            raise error_for(response.error_code)(response.error_message)
        return response

    async def _locate(self) -> int:
        """The broker that is the controller, by the registry; its address is known afterwards."""
        registry, metadata, moves = self._broker.registry, self._broker.metadata, self._moves
        try:
            data = (await registry.get(tree.CONTROLLER)).data
        except NoNode:
            raise NotController("there is no controller at the moment") from None
        controller_id = int(msgspec.json.decode(data)["brokerid"])
        if controller_id == self._broker.config.node_id:
            raise NotController("this broker is about to be the controller")
        node = await read_broker(registry, controller_id)
        if node is None:
            raise NotController(f"the controller, broker {controller_id}, is not there")
        if metadata.brokers.get(controller_id) != node:
            metadata.brokers[controller_id] = node
            self._broker.peers.brokers_changed()
        if self._moves != moves:
            raise NotController("another broker may be the controller by now")
        self._controller_id = controller_id
        return controller_id

    # Applying

    async def _apply_in_touch(self, response: ClusterStateResponse) -> None:
        """Apply an answer, and have the controller know that this is under way."""
        at_work = asyncio.get_running_loop().create_task(self._say_at_work())
        at_work.add_done_callback(_seen)
        try:
            await self._apply(response)
        finally:
            at_work.cancel()

    async def _say_at_work(self) -> None:
        """Tell the controller for as long as this gets on.

        One that only waits for its disk may be taken for cut off.
        """
        broker = self._broker
        while True:
            before = self._taken, len(broker.replicas)
            await asyncio.sleep(AT_WORK_S)
            if (self._taken, len(broker.replicas)) == before:
                continue
            request = ClusterStateRequest(
                broker_id=broker.config.node_id,
                broker_epoch=broker.broker_epoch,
                controller_epoch=broker.metadata.controller_epoch,
                max_wait_ms=AT_WORK_MS,
            )
            try:
                await self._send(request)
            except (KafkaError, RegistryError) as error:
                log.info("the controller cannot be told that its answer is still applied: %s", error)

    async def _apply(self, response: ClusterStateResponse) -> None:
        broker = self._broker
        metadata, replicas = broker.metadata, broker.replicas
        terms = self._terms
        is_new_term = response.controller_epoch != metadata.controller_epoch
        if is_new_term and not response.is_full:
            raise _Gap("another controller sent changes only")
        changes = topics_in(response)
        merged = [(self._merged(change, response.is_full), change) for change in changes]
        if is_new_term:
            self._sequence = -1  # it counts the changes of the controller before
        metadata.controller_id, metadata.controller_epoch = response.controller_id, response.controller_epoch
        brokers = brokers_in(response)
        if brokers != metadata.brokers:
            metadata.brokers = brokers
            replicas.brokers_changed()
        self._configure(response)
        for name, topic_id in deleted_in(response):
            await self._delete(name, topic_id)
            self._taken += 1
            self._check_term(terms)
        if response.is_full:
            self._again_at = float("inf")
        if self._is_first:  # nobody asks yet, and what is led first may have to do with what comes last
            metadata.put(topic for topic, _ in merged)
        for topic, change in merged:
            await self._take(topic, change)
            self._check_term(terms)
        self.unreadable = set(response.unreadable)
        if response.is_full:
            self._forget_others({topic.topic_id for topic, _ in merged})
        self._sequence = response.sequence
        await broker.answered_for()
        self._is_first = False
        if self.applied is not None and not self.applied.done():
            self.applied.set_result(None)

    def _check_term(self, terms: int) -> None:
        """Raise if the session was lost meanwhile: another broker may lead by now what this one should."""
        if terms != self._terms:
            raise _Gap("the session was lost while an answer was applied")

    def _merged(self, change: TopicChange, is_full: bool) -> Topic:
        """A topic with what changed of it."""
        known = self._broker.metadata.topics.get(change.name)
        partitions: list[PartitionState] = []
        if known is not None and known.topic_id == change.topic_id and not is_full:
            partitions = list(known.partitions)
        for index, state in sorted(change.partitions.items()):
            if index < len(partitions):
                partitions[index] = state
            elif index == len(partitions):
                partitions.append(state)
            else:
                raise _Gap(f"{change.name} has a partition {index}, but {len(partitions)} are known")
        if not partitions:
            raise _Gap(f"the topic {change.name} is not known")
        return Topic(change.name, change.topic_id, partitions, change.overrides)

    async def _take(self, topic: Topic, change: TopicChange) -> None:
        broker = self._broker
        known = broker.metadata.topics.get(topic.name)
        if known is not None and known.topic_id == topic.topic_id and known.overrides != topic.overrides:
            broker.replicas.configure(topic)  # before it leads anything under the rules of before
        try:
            is_new = not self._is_first and topic.name not in self.unreadable
            await broker.replicas.apply(topic, sorted(change.partitions), is_new=is_new)
            self._unheld.discard(topic.topic_id)
        except KafkaError as error:
            if topic.topic_id not in self._unheld:
                self._unheld.add(topic.topic_id)
                log.error("partitions of %s cannot be held: %s", topic.name, error.message)
            self._again_at = min(self._again_at, asyncio.get_running_loop().time() + AGAIN_S)
        if known != topic:
            broker.metadata.put([topic])
        self._taken += 1

    async def _delete(self, name: str, topic_id: UUID) -> None:
        broker = self._broker
        self._unheld.discard(topic_id)
        known = broker.metadata.find_by_id(topic_id)
        if known is not None:
            broker.metadata.remove(name)
        else:  # deleted while this broker was away
            count = broker.store.count_of(name, topic_id)
            known = Topic(name, topic_id, [PartitionState([], [], -1, 0)] * count)
        try:
            if known.partitions:
                await broker.replicas.drop(known)
            self._undeleted.discard(topic_id)
        except KafkaError as error:  # a log dir has failed: that must not hold up what else is told
            if topic_id not in self._undeleted:
                self._undeleted.add(topic_id)
                log.error("not all of the deleted topic %s could be removed here: %s", name, error.message)

    def _forget_others(self, topic_ids: set[UUID]) -> None:
        metadata, kept = self._broker.metadata, self.unreadable
        for topic in [each for each in metadata.topics.values() if each.topic_id not in topic_ids]:
            if topic.name not in kept:
                metadata.remove(topic.name)
        self._broker.replicas.keep_only(topic_ids, kept)

    def _configure(self, response: ClusterStateResponse) -> None:
        broker = self._broker
        own = {config.name: config.value for config in response.broker_configs}
        default = {config.name: config.value for config in response.default_configs}
        if self._configured == (own, default):
            return
        self._configured = own, default
        refused: dict[str, str] = {}
        try:
            changed = broker.config.set_dynamic(own, default)
        except KafkaError:
            own, default, refused = broker.config.valid_part(own, default)
            changed = broker.config.set_dynamic(own, default)
            for name, reason in refused.items():
                if self._refused.get(name) != reason:
                    log.warning("what is set for %s does not hold on this broker: %s", name, reason)
        self._refused = refused
        if changed:
            broker.cleaner.configure()
            for topic in broker.metadata.topics.values():
                broker.replicas.configure(topic)


def _seen(at_work: asyncio.Task[None]) -> None:
    if not at_work.cancelled() and (failure := at_work.exception()):
        log.error("the controller was no longer told that its answer is applied", exc_info=failure)


def _by_topic(partitions: Iterable[Partition]) -> Iterator[tuple[UUID, list[Partition]]]:
    found: dict[UUID, list[Partition]] = {}
    for partition in partitions:
        found.setdefault(partition.topic_id, []).append(partition)
    return iter(found.items())


def _indexes(partitions: Iterable[Partition]) -> list[int]:
    return [partition.name.partition for partition in partitions]


def _named(replicas: Iterable[tuple[UUID, int]]) -> list[ClusterStateRequest.FailedTopic]:
    return [
        ClusterStateRequest.FailedTopic(topic_id=topic_id, partitions=[index for _, index in those])
        for topic_id, those in groupby(sorted(replicas), lambda each: each[0])
    ]


def _damaged(epochs: Mapping[Partition, int]) -> list[ClusterStateRequest.DamagedTopic]:
    return [
        ClusterStateRequest.DamagedTopic(
            topic_id=topic_id, partitions=_indexes(those), epochs=[epochs[each] for each in those]
        )
        for topic_id, those in _by_topic(epochs)
    ]


def _doubted(ends: Mapping[Partition, tuple[int, int]]) -> list[ClusterStateRequest.DoubtedTopic]:
    return [
        ClusterStateRequest.DoubtedTopic(
            topic_id=topic_id,
            partitions=[
                ClusterStateRequest.DoubtedPartition(
                    index=each.name.partition,
                    leader_epoch=each.state.leader_epoch,
                    epoch=ends[each][0],
                    end_offset=ends[each][1],
                )
                for each in those
            ],
        )
        for topic_id, those in _by_topic(ends)
    ]
