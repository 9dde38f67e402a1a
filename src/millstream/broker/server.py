"""One broker, put together: the parts start in the order of `start` and stop in reverse."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from random import Random, SystemRandom
from uuid import UUID

import msgspec

from millstream.broker import handlers
from millstream.broker.all_topics import AllTopics
from millstream.broker.background import Background
from millstream.broker.broker_metrics import BrokerMetrics
from millstream.broker.cleaner import Cleaner
from millstream.broker.cluster_state import ClusterState
from millstream.broker.controller_link import ControllerLink
from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC, Coordinators
from millstream.broker.editions import Editions
from millstream.broker.fetch_session import FetchSessions
from millstream.broker.group_metrics import GroupMetrics
from millstream.broker.group_nodes import SHOW_GROUPS_MS, GroupNodes
from millstream.broker.group_topics import GroupTopics
from millstream.broker.housekeeping import Housekeeping
from millstream.broker.ip_limits import IpLimits
from millstream.broker.membership import Membership
from millstream.broker.metrics_endpoint import MetricsEndpoint
from millstream.broker.own_registry import registry_folder
from millstream.broker.places import occupancies
from millstream.broker.producer_ids import ProducerIds
from millstream.broker.remote_ends import ASK_MS
from millstream.broker.router import Router
from millstream.broker.transaction_admission import TransactionAdmission
from millstream.broker.transaction_markers import TransactionMarkers
from millstream.clock import Clock, SystemClock
from millstream.cluster.metadata import Endpoint, Metadata
from millstream.cluster.peers import Peers
from millstream.cluster.replicas import Replicas
from millstream.config.broker import BrokerConfig
from millstream.config.keys import MAX_LONG
from millstream.config.listeners import Listener as ListenerConfig
from millstream.controller import tree
from millstream.controller.controller import Controller
from millstream.coordinator.groups.settings import Settings as GroupSettings
from millstream.coordinator.groups.shard import GroupShard
from millstream.coordinator.runtime import Runtime
from millstream.coordinator.shard import Timers
from millstream.coordinator.transactions.settings import Settings as TransactionSettings
from millstream.coordinator.transactions.shard import TransactionShard
from millstream.errors import KafkaError, KafkaStorageError
from millstream.metrics import Metrics
from millstream.model import encode_uuid
from millstream.net.listener import Limits, Listener
from millstream.net.occupancy import MANY
from millstream.net.unsent import Unsent
from millstream.protocol.messages import ApiVersionsResponse
from millstream.registry.choice import make_registry
from millstream.registry.contract import NodeExists, NoNode, Registry
from millstream.storage.disk import Disk
from millstream.storage.os_disk import OsDisk, read_boot_id
from millstream.storage.store import Store
from millstream.storage.threads import Threads

log = logging.getLogger(__name__)

MAX_REPORTED = 1000
"""How many different damages are remembered as already said."""

PEER_LISTENER = "BROKERS"
"""The name of the listener for brokers, where inter.broker.listener.name names no other."""

LOAD_SECONDS = 0.2
"""How long a start waits for coordinators to load their logs; clients are asked to wait afterwards."""

COMMIT_TIMEOUT_MS = 15_000
"""How long who asks for something in a transaction waits until it is committed; then it has to ask again."""

PEER_GRACE_SECONDS = 0.2
"""How long other brokers may take for their last answers; what they wait for will not come."""

WORKER_THREADS = 8
"""Threads for work in the background; requests wait in others (storage/threads.py)."""


class Broker:
    """A broker on one event loop. `async with Broker(config)`, or `start` and `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        registry: Registry | None = None,
        disk: Disk | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        boot_id: str | None = None,
    ) -> None:
        """`boot_id` changes whenever the machine starts; the machine's own if it is not given."""
        self.config = config
        self._is_on_one_machine = registry is None and not config["registry"].startswith("zookeeper:")
        """Whether the registry says that all brokers of the cluster are on this machine."""
        self.clock = clock or SystemClock()
        self.random = random or SystemRandom()
        self.disk = disk or OsDisk(max_open_files=config["max.open.files"])
        if boot_id is None:
            boot_id = read_boot_id() if isinstance(self.disk, OsDisk) else ""
        self._boot_id = boot_id
        self.metrics = Metrics()
        self.registry = registry or self._make_registry()
        self.router = Router(self, handlers.MODULES)
        self.api_keys = [
            ApiVersionsResponse.ApiVersion(
                api_key=key, min_version=route.request.advertised[0], max_version=route.request.advertised[1]
            )
            for key, route in sorted(self.router.routes.items())
            if not route.is_internal
        ]
        self.listeners: dict[str, Listener] = {}
        self.ip_limits = IpLimits(config)
        descriptors = self.disk.spare_descriptors if isinstance(self.disk, OsDisk) else MANY
        self._occupancy, self._peer_occupancy = occupancies(config, self.ip_limits.of, descriptors)
        self.unsent = Unsent(self.clock, lambda: config["max.unsent.bytes"])
        self.endpoints: tuple[Endpoint, ...] = ()
        self.is_rack_aware = config["replica.selector.class"] is not None
        """Whether consumers are sent to a replica in their rack."""
        self.fetch_sessions = FetchSessions(
            config["max.incremental.fetch.session.cache.slots"],
            config["min.incremental.fetch.session.eviction.ms"] / 1000,
            self.clock,
            self.random,
        )
        self.all_topics = AllTopics()
        self.cold_bytes = 0
        """What fetches that wait for disks have read so far."""
        self.large_fetches = 0
        """How many large requests wait for records."""
        self.local_fetch_bytes: int = config["fetch.local.bytes"]
        self.coordinators = Coordinators(self)
        settings = GroupSettings(config)
        self.group_topics = GroupTopics(self)
        self.group_nodes = GroupNodes(
            self.registry, self.clock, self.group_topics, self.coordinators.group_shard
        )
        self.groups: Runtime[GroupShard] = Runtime(
            GROUPS_TOPIC,
            lambda _, timers: GroupShard(
                settings, self.clock, self.random, timers, self.group_nodes, self.group_topics
            ),
            config["offsets.commit.timeout.ms"],
        )
        self.coordinators.add(GROUPS_TOPIC, self.groups)
        self.group_metrics = GroupMetrics(self)
        self.transaction_admission = TransactionAdmission(self)
        self.transaction_markers = TransactionMarkers(self)
        self.transactions: Runtime[TransactionShard] = Runtime(
            TRANSACTIONS_TOPIC, self._transaction_shard, COMMIT_TIMEOUT_MS
        )
        self.coordinators.add(TRANSACTIONS_TOPIC, self.transactions)
        self.background = Background(self.metrics.background_failures)
        self.cleaner = Cleaner(self)
        self.metrics_endpoint = MetricsEndpoint(self.metrics.exposition, self.clock)
        self.threads = Threads()
        self.store: Store
        self.metadata: Metadata
        self.replicas: Replicas
        self.controller: Controller
        self.peers: Peers
        self.membership: Membership | None = None
        self.editions = Editions(self.registry, config.node_id, self.clock)
        self.cluster_state = ClusterState(self)
        self.controller_link = ControllerLink(self)
        self.producer_ids: ProducerIds
        self._is_started = False
        self.is_stopping = False
        self._reported: set[str] = set()
        BrokerMetrics(self)

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def port(self) -> int:
        """The port of the first listener."""
        return next(iter(self.listeners.values())).port

    async def start(self) -> None:
        """Start every part; if one fails, those before it are stopped and its error is raised."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        self._use_threads(loop)
        await self.registry.start()
        await self._prepare_registry()
        cluster_id = await self._cluster_id()
        self.metadata = Metadata(cluster_id)
        self.metadata.on_topic_change = self.group_topics.changed
        self.store = Store(
            config.log_dirs,
            self.disk,
            self.clock,
            config.log_config,
            cluster_id=cluster_id,
            broker_id=config.node_id,
            random=self.random,
            boot_id=self._boot_id,
            lost_dirs=config["lost.log.dirs"],
        )
        self.threads = Threads(
            (folder.path for folder in self.store.dirs),
            reads=config["log.dir.read.threads"],
            flushes=config["log.dir.flush.threads"],
            checks=config["batch.check.threads"],
        )
        await loop.run_in_executor(None, self.store.open)
        self._is_started = True
        self.peers = Peers(self.metadata, config, self.clock, self.random)
        self.replicas = Replicas(
            self.store,
            config,
            self.clock,
            self.metrics,
            self.transaction_admission.for_batch,
            metadata=self.metadata,
            peers=self.peers,
            is_lease_held=self._is_lease_held,
            broker_epoch=lambda: self.broker_epoch,
            threads=self.threads,
        )

        def dir_failed(path: str) -> None:
            loop.call_soon_threadsafe(self.replicas.dir_failed, path)

        self.store.on_dir_failure = dir_failed
        self.replicas.on_lead = self.coordinators.lead
        self.replicas.on_resign = self.coordinators.resign
        self.producer_ids = ProducerIds(self.registry, config.node_id, self.clock)
        self.controller = Controller(self.registry, self.replicas, config, self.clock, self.random)
        await self.ip_limits.start()
        for listener in (*config.listeners, *self._own_peer_listener()):
            await self._listen(listener)
        await self._join()
        if self.config.peer_listener is None:
            self.listeners[PEER_LISTENER].open()
        await self.controller.start()
        await self.cluster_state.start()
        await self.controller.finish_deletions()
        await loop.run_in_executor(None, self.store.accept_new_dirs)
        self.store.set_aside_strays(
            (topic.topic_id for topic in self.metadata.topics.values()),
            self.replicas.is_assigned,
            self.cluster_state.unreadable,
        )
        for partition in self.replicas:
            await partition.settle()  # what a crash left unflushed is flushed before anyone asks for it
        await self.coordinators.until_loaded(LOAD_SECONDS)
        for opened in self.listeners.values():
            if not opened.is_open:
                opened.open()
        Housekeeping(self).begin(self.background)
        self.background.every("showing groups", lambda: SHOW_GROUPS_MS, self.group_nodes.show)
        self.cleaner.begin(self.background)
        if config["metrics.listener"]:
            await self.metrics_endpoint.start(config["metrics.listener"])
            self.background.every(
                "asking for ends of partitions", lambda: ASK_MS, self.group_metrics.remote_ends.ask
            )

    async def stop(self) -> None:
        """Hand over what others can lead, answer what is under way, write everything down, and end.

        A registry that has been silent for longer than the session may last is not waited for.
        """
        await self.metrics_endpoint.stop()
        if self._is_member and self.cluster_state.has_applied:  # before, it leads nothing
            await self.controller_link.hand_over()
        self._end_waits()
        for name, listener in self.listeners.items():
            if name != PEER_LISTENER:
                await listener.stop()
        await self.background.stop()
        await self.group_topics.stop()
        self.transaction_markers.stop()
        await self._leave_cluster()
        if self._is_started:
            self._is_started = False
            for partition in self.replicas:
                await partition.settle()
            await asyncio.get_running_loop().run_in_executor(None, self._close_store)
        await asyncio.get_running_loop().run_in_executor(None, self.threads.close)
        await self.registry.close()

    async def _leave_cluster(self) -> None:
        """Follow nobody and decide nothing more; the next controller finds this broker gone."""
        await self.cluster_state.stop()
        if self._is_started:
            await self.replicas.stop()
        if hasattr(self, "controller"):
            await self.controller.stop()
        if self.membership is not None:
            await self.membership.leave()
        if hasattr(self, "controller"):
            await self.controller.give_up()
        if PEER_LISTENER in self.listeners:
            await self.listeners[PEER_LISTENER].stop(PEER_GRACE_SECONDS)
        if self._is_started:
            await self.peers.close()

    def _close_store(self) -> None:
        """Close the logs, many at a time on the machine's own disk: their fsyncs overlap.

        A stop that comes before the cluster has heard of a loss leaves the mark of a clean one to a later.
        """
        is_known = self.store.dirs.kept_all if self.membership is None else self.membership.was_clean
        if isinstance(self.disk, OsDisk):
            with ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="millstream-close") as pool:
                self.store.close(clean=is_known, broker_epoch=self.broker_epoch, each=pool.map)
        else:
            self.store.close(clean=is_known, broker_epoch=self.broker_epoch)

    def _transaction_shard(self, index: int, timers: Timers) -> TransactionShard:
        return TransactionShard(
            TransactionSettings(self.config),
            self.clock,
            timers,
            lambda transactional_id: self.transaction_markers.prepared(index, transactional_id),
        )

    def _end_waits(self) -> None:
        """Answer those who wait for records or for other members of their group, so that they go."""
        self.is_stopping = True
        self.coordinators.stop()
        if self._is_started:
            for partition in self.replicas:
                partition.wake_fetches()

    # Parts of the start

    def _make_registry(self) -> Registry:
        place, folder = self.config["registry"], ""
        kind, _, named = place.partition(":")
        if kind == "sqlite":
            folder = registry_folder(self.config.log_dirs, named)
        return make_registry(place, folder, self.config["registry.session.timeout.ms"], self.clock)

    def _use_threads(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.set_default_executor(ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="millstream"))

    async def _prepare_registry(self) -> None:
        for root in tree.ROOTS:
            try:
                await self.registry.create(root)
            except NodeExists:
                pass

    async def _cluster_id(self) -> str:
        try:
            node = await self.registry.get(tree.CLUSTER_ID)
        except NoNode:
            made = encode_uuid(UUID(int=self.random.getrandbits(128), version=4))
            data = msgspec.json.encode({"version": "1", "id": made})
            try:
                await self.registry.create(tree.CLUSTER_ID, data)
                return made
            except NodeExists:
                node = await self.registry.get(tree.CLUSTER_ID)
        return str(msgspec.json.decode(node.data)["id"])

    async def _listen(self, listener: ListenerConfig) -> None:
        """Begin to listen. However many clients there are, other brokers find a place where they have a
        listener of their own; on that which the broker made for them, nothing else limits them.
        """
        config, name = self.config, listener.name
        is_internal = name == self.peer_listener
        limits = Limits(
            max_request_bytes=config["socket.request.max.bytes"],
            max_connections=lambda: config.for_listener(name, "max.connections", MANY),
            max_connections_key=f"listener.name.{name.lower()}.max.connections",
            is_reserved=is_internal and len(config.listeners) > 1,
            send_buffer_bytes=config["socket.send.buffer.bytes"],
            receive_buffer_bytes=config["socket.receive.buffer.bytes"],
            max_idle_seconds=_or_never(config["connections.max.idle.ms"]) / 1000,
            max_buffered_bytes=_or_never(config["queued.max.request.bytes"]),
            backlog=config["socket.listen.backlog.size"],
        )
        service = self.router.service(name, is_internal=is_internal)
        is_counted = not (is_internal and config.peer_listener is None)
        made = Listener(
            service,
            self.clock,
            limits,
            self._occupancy if is_counted else self._peer_occupancy,
            self.unsent if is_counted else None,
        )
        self.listeners[name] = made
        await made.start(listener.host, listener.port)

    @property
    def peer_listener(self) -> str:
        """The name of the listener that is for brokers."""
        return self.config.peer_listener or PEER_LISTENER

    def _own_peer_listener(self) -> list[ListenerConfig]:
        """A listener for brokers alone, where none of those configured is for them."""
        if self.config.peer_listener is not None:
            return []
        host = self.config.listeners[0].host
        if self._is_on_one_machine:  # nobody elsewhere need reach it
            host = _loopback(host)
        return [ListenerConfig(PEER_LISTENER, host, 0, "PLAINTEXT")]

    async def _join(self) -> None:
        """Tell the cluster under which addresses this broker is reached."""
        advertised = [
            Endpoint(each.name, each.host or "localhost", each.port or self.listeners[each.name].port)
            for each in self.config.advertised_listeners
        ]
        self.endpoints = tuple(advertised)
        if self.config.peer_listener is None:
            host = _loopback(self.config.listeners[0].host) if self._is_on_one_machine else advertised[0].host
            advertised.append(Endpoint(PEER_LISTENER, host, self.listeners[PEER_LISTENER].port))
        self.membership = Membership(
            self.registry,
            self.config,
            self.clock,
            tuple(advertised),
            self.peer_listener,
            on_lost=self._session_lost,
            on_replaced=self.replicas.replaced,
            on_joined=self._joined_again,
        )
        await self.membership.join(
            self.store.dirs.kept_all,
            are_dirs_current=lambda: self.editions.compare(self.store),
            on_registered=lambda: self.editions.go_on(self.store),
            on_leaving=self._end_edition,
        )

    async def answered_for(self) -> None:
        """A controller has drawn the consequences of how this broker registered, as of a crash.

        The next start in this boot need not tell it again.
        """
        if self.membership is not None and not self.membership.was_clean:
            self.membership.answered_for()
            await asyncio.get_running_loop().run_in_executor(None, self.store.dirs.mark_boot)

    async def _end_edition(self) -> None:
        if self._is_started:
            await self.editions.end(self.store)

    def _joined_again(self) -> None:
        self.controller.joined_again()
        self.cluster_state.wake()

    def _session_lost(self) -> None:
        self.controller.session_lost()
        self.replicas.session_lost()
        self.cluster_state.begin_anew()

    @property
    def controller_id(self) -> int:
        """The controller that clients are told of; -1 while the registry is out of reach."""
        return self.metadata.controller_id if self._is_lease_held() else -1

    def _is_lease_held(self) -> bool:
        return self.clock.monotonic() < self.registry.session_deadline()

    @property
    def broker_epoch(self) -> int:
        """The number of this broker's registration; -1 while it has none."""
        return -1 if self.membership is None else self.membership.epoch

    @property
    def _is_member(self) -> bool:
        return self._is_started and self.broker_epoch >= 0 and self._is_lease_held()

    # What handlers ask

    def max_fetch_bytes(self, held_bytes: int = 0) -> int:
        """How much one fetch may return, which holds some bytes already, given what others have not sent."""
        room = max(0, self.unsent.room_bytes - self.cold_bytes)
        limit: int = self.config["fetch.max.bytes"]
        return min(limit, held_bytes + room)

    def report_fetch_error(self, error: KafkaError) -> None:
        """Count an error of a fetch, and say once where a log is damaged."""
        self.metrics.fetch_errors.labels(type(error).__name__).value += 1
        if isinstance(error, KafkaStorageError) and error.message not in self._reported:
            if len(self._reported) >= MAX_REPORTED:
                self._reported.clear()
            self._reported.add(error.message)
            log.error("a fetch could not be served: %s", error.message)


def _loopback(host: str) -> str:
    """This machine's own address, of the family of a listener's."""
    return "::1" if ":" in host else "127.0.0.1"


def _or_never(limit: int) -> int:
    """A limit that a negative number switches off."""
    return limit if limit >= 0 else MAX_LONG
