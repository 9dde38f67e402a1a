"""The controller: the one broker that changes what topics exist and who leads their partitions.

Every broker has one; the one that holds the office decides, the others refuse with NotController. It has
one queue and one task, so that decisions never interleave. Every write to the registry is a multi that
checks the controller's epoch: a controller that was replaced writes nothing more.

Where it is not known whether a write was made (the registry did not answer, the session was lost),
everything is read again before the next decision. Brokers follow by asking for what changed (`poll`);
answers to clients wait, for a while, until all live brokers have applied what they tell.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TypeVar
from uuid import UUID

from millstream.clock import Clock
from millstream.cluster.metadata import PartitionState, Topic
from millstream.config.broker import BrokerConfig
from millstream.controller import tree
from millstream.controller.broker_requests import BrokerRequests
from millstream.controller.candidacy import Candidacy
from millstream.controller.listening import Listening, silent_rounds
from millstream.controller.office import Office
from millstream.controller.partition_changes import Outcome
from millstream.controller.patience import Patience
from millstream.controller.term import Term
from millstream.controller.topic_changes import Alteration, OwnReplicas
from millstream.controller.topics import NewTopic
from millstream.controller.turns import Turns
from millstream.errors import KafkaError, NotController, StaleControllerEpoch
from millstream.metrics import Counter
from millstream.model import TopicPartition
from millstream.net.silence import Silence
from millstream.registry.contract import BadVersion, Registry, RegistryError, SessionLost, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

APPLY_SECONDS = 2.0
"""How long an answer waits for brokers to apply what it tells."""

UPKEEP_SECONDS = 0.5
"""How often the controller looks for something that it could not do before."""


class Controller:
    """Decides, while this broker holds the office."""

    def __init__(
        self, registry: Registry, replicas: OwnReplicas, config: BrokerConfig, clock: Clock, random: Random
    ) -> None:
        self._registry = registry
        self._config = config
        self._replicas = replicas
        self._random = random
        self._office = Office(registry, config.node_id, clock)
        self._silence = Silence(clock)
        self._candidacy = Candidacy(registry, self._seek)
        self._turns = Turns()
        self.unclean_elections = Counter()
        self.term = self._new_term()
        self.requests = BrokerRequests(self)
        self._is_member = True
        """Whether its own broker is registered, as it is before `start`: a controller counts on it."""
        self._is_ready = False
        """Whether the picture has been read in this term."""
        self._is_unsure = False
        """Whether the registry may hold something else than the picture."""
        self._must_look = False
        """Whether brokers may have come or gone."""
        self._is_looking = False
        self._looking: asyncio.Task[None] | None = None
        self._reasons: dict[str, str] = {}
        """Why deletions could not be finished, as it was last logged."""
        self._next_balance = 0.0
        self._patience = Patience()
        self._listening = Listening(self, self._patience)
        self._upkeep: asyncio.Task[None] | None = None
        self._cancel_watch: Callable[[], None] = lambda: None

    def _new_term(self) -> Term:
        return Term(
            self._registry,
            self._office,
            self._replicas,
            self._config,
            self._random,
            self.unclean_elections,
            silent_rounds(self._registry.session_timeout_s, UPKEEP_SECONDS),
        )

    @property
    def broker_id(self) -> int:
        return self._config.node_id

    @property
    def epoch(self) -> int:
        """The epoch of this controller's term; it grows each time the office is taken."""
        return self._office.epoch

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, and has read what there is."""
        return self._office.is_held and self._is_ready

    # The office

    async def start(self) -> None:
        """Seek the office, now and whenever it is free."""
        self._turns.start()
        self._cancel_watch = self._registry.watch(tree.BROKERS, lambda _: self._brokers_changed())
        self._upkeep = asyncio.get_running_loop().create_task(self._keep_up())
        self._candidacy.start()

    def session_lost(self) -> None:
        """Decide nothing more: somebody else may be the controller."""
        self._is_member = False
        self._resign("the session with the registry is lost")

    def joined_again(self) -> None:
        """The broker is registered in a new session, and may seek the office."""
        self._is_member = True
        self._candidacy.wake()

    def _resign(self, reason: str) -> None:
        if self._office.is_held:
            log.warning("no longer the controller of epoch %d: %s", self.epoch, reason)
        self._office.leave()
        self._is_ready = False
        self.term.feed.close()
        self._candidacy.wake()

    async def stop(self) -> None:
        """Decide nothing more."""
        self._cancel_watch()
        await self._candidacy.stop()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        await self._turns.stop(NotController("this broker is stopping"))
        self._is_ready = False
        self.term.feed.close()

    async def give_up(self) -> None:
        """Let another broker be the controller."""
        try:
            await self._office.give_up()
        except RegistryError as error:
            log.info("the office was not given up: %s", error)

    async def make_room(self) -> None:
        """In a turn: let another broker be the controller, while this one goes on."""
        try:
            await self._office.give_up()
        finally:
            self._resign("")  # if it could not be given up, it is taken again

    async def _seek(self) -> None:
        """Take the office if it is free, after what was under way has ended."""
        await self._turns.take(self._begin)

    async def _begin(self) -> None:
        """Begin a term, if the office is free: read everything, and decide what was left undecided."""
        if self._office.is_held:
            if await self._office.is_kept():
                return
            self._resign("the registry does not say so any more")
        if not self._is_member or await self._stands_back():
            return
        self._patience.sought()
        if not await self._office.take():
            return
        log.info("this broker is the controller, in epoch %d", self.epoch)
        self.term.feed.close()
        self.term = self._new_term()
        self._is_unsure = True
        interval_s = self._config["leader.imbalance.check.interval.seconds"]
        self._next_balance = asyncio.get_running_loop().time() + interval_s
        await self._read_everything()

    async def _stands_back(self) -> bool:
        """Whether others are to be the controller, if they can: this broker could not reach them."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._patience.is_tried(now):
            return False
        is_free = await self._office.holder() in (None, self.broker_id)
        until = self._patience.seeks_at(now, is_free=is_free)
        if until <= now:
            return False
        loop.call_at(until, self._candidacy.wake)
        return True

    async def _read_everything(self) -> None:
        self._is_ready = self._must_look = False
        await self.term.read()
        self._is_unsure = False
        self._is_ready = True

    def check_epoch(self, epoch: int) -> None:
        """Raise unless this is the controller, as far as someone knows who has heard of one of `epoch`."""
        if epoch > self.epoch:
            if self._office.is_held:
                self._resign(f"a broker follows one of epoch {epoch}")
            raise StaleControllerEpoch
        if not self.is_active:
            raise NotController("this broker is not the controller")

    # Turns

    async def in_turn(self, decide: Callable[[], Awaitable[T]]) -> T:
        """Have a decision made when those before it are done; NotController if it cannot be."""

        async def decide_in_office() -> T:
            if not self._office.is_held:
                raise NotController("this broker is not the controller")
            try:
                if self._is_unsure:
                    await self._read_everything()
                if self._must_look:
                    self._must_look = False
                    await self.term.look_at_brokers()
                if not self._office.is_certain:  # what is not written down is not fenced by the epoch
                    raise NotController("this broker does not know whether it still is the controller")
                return await decide()
            except RegistryError as error:
                self._is_unsure = True
                if isinstance(error, BadVersion) and error.path == tree.CONTROLLER_EPOCH:
                    self._resign("another one has taken its place")
                raise
            except KafkaError:
                raise
            except Exception:  # a defect: what was being decided may be half done
                self._is_unsure = True
                raise

        try:
            return await self._turns.take(decide_in_office)
        except RegistryError as error:
            is_expected = isinstance(error, SessionLost | Unavailable | BadVersion)
            if not is_expected or self._silence.is_over(str(error)):
                log.warning(
                    "the registry refused a decision: %s", error, exc_info=None if is_expected else error
                )
            raise NotController(f"the registry cannot be used at the moment: {error}") from error

    async def and_applied(self, decide: Callable[[], Awaitable[T]]) -> T:
        """Have a decision made, and wait until the brokers have applied what it rests on."""
        try:
            return await self.in_turn(decide)
        finally:
            if self.is_active:
                feed = self.term.feed
                await feed.until_applied(feed.sequence, self._awaited, APPLY_SECONDS)

    async def _until_followed(self) -> None:
        """Wait until every live broker follows: those that do not yet are given no replicas."""
        if not self.is_active:
            await self.in_turn(_nothing)  # it may be about to be
        await self.term.feed.until_applied(0, self._awaited, APPLY_SECONDS)

    def _awaited(self) -> dict[int, int]:
        """The brokers that are waited for until they have applied something."""
        term = self.term
        return term.presence.without_noted(term.picture.epochs) if self.is_active else {}

    def _brokers_changed(self) -> None:
        self._must_look = True
        if self._office.is_held and not self._is_looking:
            self._is_looking = True
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        try:
            while self._must_look and self._office.is_held:
                await self.in_turn(_nothing)
        except KafkaError as error:
            log.info("brokers are looked at later: %s", error.message)
        except Exception:
            log.exception("looking at the brokers failed; it will be tried again")
        finally:
            self._is_looking = False

    async def _keep_up(self) -> None:
        """Try again what could not be done, and balance leaders."""
        while True:
            await asyncio.sleep(UPKEEP_SECONDS)
            try:
                if not self._office.is_held:
                    continue
                if self.term.picture.unreadable:
                    await self._look_at_unreadable()
                if self._is_unsure or self._must_look:
                    await self.in_turn(_nothing)
                if self.is_active:
                    await self._listening.next_round()
                await self._balance()
            except KafkaError as error:
                log.info("the controller tries again later: %s", error.message)
            except Exception:
                log.exception("the controller's upkeep failed; it will be tried again")

    async def _look_at_unreadable(self) -> None:
        if await self.in_turn(self.term.is_mended):
            self._is_unsure = True

    async def _balance(self) -> None:
        config, now = self._config, asyncio.get_running_loop().time()
        if not self.is_active or now < self._next_balance:
            return
        self._next_balance = now + config["leader.imbalance.check.interval.seconds"]
        if config["auto.leader.rebalance.enable"]:
            count = await self.in_turn(lambda: self.term.partitions.balance())
            if count:
                log.info("gave %d partitions back to their preferred leaders", count)

    # What clients ask for

    async def create_topic(self, wanted: NewTopic, *, validate_only: bool = False) -> Topic:
        """Make a topic, and answer when it can be produced to."""
        await self._until_followed()
        return await self.and_applied(lambda: self.term.topics.create(wanted, validate_only))

    async def topic(self, name: str | None, topic_id: UUID) -> Topic:
        """The topic of a name, or of an id where there is none, as the controller knows it."""

        async def find() -> Topic:
            picture = self.term.picture
            return picture.topic_by_id(topic_id) if name is None else picture.topic(name)

        return await self.in_turn(find)

    async def delete_topic(self, topic: Topic) -> None:
        await self.and_applied(lambda: self.term.topics.delete(topic))

    async def add_partitions(
        self, name: str, total: int, assignments: Sequence[Sequence[int]] | None, *, validate_only: bool
    ) -> None:
        await self._until_followed()
        await self.and_applied(lambda: self.term.topics.grow(name, total, assignments, validate_only))

    async def set_topic_config(self, name: str, change: Alteration, *, validate_only: bool) -> None:
        """Change what a topic sets itself, by a function from what it sets now."""

        async def configure() -> None:
            await self.term.topics.set_topic_config(name, change, validate_only)
            await self._elect_missing()

        await self.and_applied(configure)
        await self._afterwards(self._complete)  # another min.insync.replicas may be the end of a move

    async def set_broker_config(self, broker: str, change: Alteration, *, validate_only: bool) -> None:
        """Change what is set while running for a broker, or for all (DEFAULT_BROKER)."""
        await self.and_applied(lambda: self.term.topics.set_broker_config(broker, change, validate_only))
        await self._afterwards(self._elect_missing)  # by now this broker has applied it too
        await self._afterwards(self._complete)

    async def _elect_missing(self) -> None:
        await self.term.partitions.elect_missing()

    async def _complete(self) -> None:
        await self.term.partitions.complete()

    async def _afterwards(self, decide: Callable[[], Awaitable[None]]) -> None:
        """Decide what follows from a change that was made. If this controller cannot, the next one will."""
        try:
            await self.in_turn(decide)
        except KafkaError as error:
            log.info("what follows from a change is left to the next controller: %s", error.message)

    async def elect(
        self, wanted: Sequence[TopicPartition] | None, *, is_unclean: bool
    ) -> dict[TopicPartition, Outcome]:
        """Elect preferred leaders, or any where there is none; None is for all partitions."""
        return await self.and_applied(lambda: self.term.partitions.elect(wanted, is_unclean=is_unclean))

    async def reassign(
        self, wanted: Mapping[TopicPartition, Sequence[int] | None], *, may_resize: bool
    ) -> dict[TopicPartition, Outcome]:
        """Begin to move partitions to other brokers; None takes a move back."""
        return await self.and_applied(lambda: self.term.partitions.reassign(wanted, may_resize=may_resize))

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that is away for good."""

        async def forget() -> None:
            await self.term.look_at_brokers()
            await self.term.partitions.unregister(broker_id)

        await self.in_turn(forget)

    async def reassignments(self) -> dict[TopicPartition, PartitionState]:
        """The partitions that are being moved."""

        async def moving() -> dict[TopicPartition, PartitionState]:
            return dict(self.term.partitions.moving())

        return await self.in_turn(moving)

    async def finish_deletions(self) -> None:
        """Go on with deletions that were cut short, by a crash or a disk that failed."""
        if not self.is_active:
            return
        for topic in list(self.term.picture.deleted.values()):
            try:
                await self.in_turn(lambda topic=topic: self.term.topics.finish_deletion(topic))  # type: ignore[misc]
            except KafkaError as error:
                if self._reasons.get(topic.name) != error.message:
                    self._reasons[topic.name] = error.message
                    log.warning("the topic %s could not be removed yet: %s", topic.name, error.message)
            else:
                self._reasons.pop(topic.name, None)


async def _nothing() -> None:
    """A turn that only brings the picture up to date."""
