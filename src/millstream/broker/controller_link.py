"""What a broker asks of the controller, wherever that is: in process if it is this one."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, TypeVar

from millstream.cluster.metadata import Topic
from millstream.controller.topics import NewTopic
from millstream.deadline import Deadline
from millstream.errors import KafkaError, NotController, RequestTimedOut, TopicAlreadyExists, error_for
from millstream.protocol.messages import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.protocol.schema import Request, Response

if TYPE_CHECKING:
    from millstream.broker.server import Broker

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

PURPOSE = "requests"
PASSING = "passed-on"
"""How the names of links end by which is passed on what clients ask for.

A controller answers one request of a link after another, and some take seconds: there is one under way on
each, so that none is given up because of another, or waits behind one whose client has gone.
"""
CREATING = f"creating-{PASSING}"
"""The link for topics that clients name, or that coordinators need."""
LINES = [f"{number}-{PASSING}" for number in range(4)]
LARGE_LINE = f"large-{PASSING}"
STOP_SECONDS = 5.0
"""How long a broker that stops waits for others to take over what it leads."""
STOP_PAUSE_S = 0.1
KNOWN_SECONDS = 2.0
PATIENCE_MS = 10_000.0
"""How long a client's request waits for a controller to be elected."""
RETRY_S = 0.1


class ControllerLink:
    """Asks the controller on behalf of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._free_lines: asyncio.LifoQueue[str] = asyncio.LifoQueue()
        for line in LINES:
            self._free_lines.put_nowait(line)
        self.is_passing_large = False
        """Whether a large request is with the controller; in memory it becomes many times its size."""

    async def ask(self, request: Request, answer: type[R], timeout_ms: float, purpose: str = PURPOSE) -> R:
        """Send a request to another broker that is the controller."""
        return await self._broker.peers.request(self._controller_id, purpose, request, answer, timeout_ms)

    @property
    def _controller_id(self) -> int:
        controller_id = self._broker.metadata.controller_id
        if controller_id < 0 or controller_id == self._broker.config.node_id:
            raise NotController("there is no controller at the moment")
        return controller_id

    async def pass_on(self, request: Request, answer: type[R], *, is_large: bool = False) -> R | None:
        """The controller's answer to a client's request; None if it is for this broker to answer: it is the
        controller, none can be reached, or others have all that may be passed on at once.

        One that is about to be elected is waited for. What was sent, and not answered, may have been done: it
        is not sent again, and RequestTimedOut. Of those that are large there is one at a time: the next may
        come when it `is_passing_large` no more.
        """
        timeout_ms: int = self._broker.config["controller.socket.timeout.ms"]
        deadline = Deadline(min(timeout_ms, PATIENCE_MS))
        if is_large:
            self.is_passing_large = True
            try:
                return await self._pass_on(request, answer, LARGE_LINE, deadline, timeout_ms)
            finally:
                self.is_passing_large = False
        try:
            async with asyncio.timeout(deadline.remaining_ms / 1000):
                line = await self._free_lines.get()
        except TimeoutError:
            return None
        try:
            return await self._pass_on(request, answer, line, deadline, timeout_ms)
        finally:
            self._free_lines.put_nowait(line)

    async def _pass_on(
        self, request: Request, answer: type[R], line: str, deadline: Deadline, timeout_ms: float
    ) -> R | None:
        broker = self._broker
        while not broker.controller.is_active and not broker.is_stopping:
            try:
                controller_id = self._controller_id
                await broker.peers.link(controller_id, line).reach(deadline.remaining_ms)
            except KafkaError:
                pass
            else:
                try:
                    return await broker.peers.request(controller_id, line, request, answer, timeout_ms)
                except asyncio.CancelledError:
                    broker.peers.cut(controller_id, line)  # the controller need not go on, either
                    raise
                except KafkaError as error:
                    log.info("broker %d did not answer what was passed on to it: %s", controller_id, error)
                    raise RequestTimedOut(
                        "the controller did not answer; look whether it was done before you ask again"
                    ) from error
            if deadline.remaining_ms <= 0:
                break
            await asyncio.sleep(RETRY_S)
        return None

    async def create_topic(self, wanted: NewTopic) -> Topic:
        """Have a topic made, and wait until this broker knows it."""
        broker = self._broker
        if broker.controller.is_active:
            try:
                await broker.controller.create_topic(wanted)
            except TopicAlreadyExists:
                pass
            return await self._known(wanted.name)
        timeout_ms: int = broker.config["controller.socket.timeout.ms"]
        response = await self.ask(_creation(wanted, timeout_ms), CreateTopicsResponse, timeout_ms, CREATING)
        (result,) = response.topics
        if result.error_code not in (0, TopicAlreadyExists.code):
            raise error_for(result.error_code)(result.error_message)
        return await self._known(wanted.name)

    async def until_known(self, name: str, partitions: int = 1) -> None:
        """Wait, not for long, until this broker knows a topic that was made, or has grown.

        A controller's answer waits for that already, but not once it holds the office no more.
        """
        try:
            await self._known(name, partitions)
        except RequestTimedOut as error:
            log.warning("%s", error.message)

    async def _known(self, name: str, partitions: int = 1) -> Topic:
        """A topic that the controller knows, as soon as this broker does."""
        try:
            async with asyncio.timeout(KNOWN_SECONDS):
                return await self._broker.metadata.when_known(name, partitions)
        except TimeoutError:
            raise RequestTimedOut(f"no word of the topic {name!r} yet") from None

    async def hand_over(self) -> None:
        """Before this broker stops: have others lead what it leads, as far as they can."""
        broker = self._broker
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_SECONDS
        others = [id_ for id_ in broker.metadata.brokers if id_ != broker.config.node_id]
        if not others or not broker.config["controlled.shutdown.enable"]:
            return
        while loop.time() < deadline:
            try:
                remaining = await self._step_down(deadline - loop.time())
                if not remaining:
                    return
                log.info("%d partitions wait for another leader", remaining)
            except KafkaError as error:
                log.info("leadership cannot be handed over: %s", error.message)
            await asyncio.sleep(STOP_PAUSE_S)
        log.warning("stopping without another leader for all partitions")

    async def _step_down(self, timeout_s: float) -> int:
        broker = self._broker
        request = ControlledShutdownRequest(broker_id=broker.config.node_id, broker_epoch=broker.broker_epoch)
        if broker.controller.is_active:
            response = await broker.controller.requests.stop_broker(request)
        else:
            response = await self.ask(request, ControlledShutdownResponse, timeout_s * 1000)
        if response.error_code:
            raise error_for(response.error_code)(response.error_message)
        return response.remaining


def _creation(wanted: NewTopic, timeout_ms: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=wanted.name,
                num_partitions=wanted.partitions,
                replication_factor=wanted.replication_factor,
                configs=[
                    CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
                    for name, value in wanted.configs.items()
                ],
            )
        ],
        timeout_ms=timeout_ms,
    )
