"""What somebody wrote into the registry by hand: topics that cannot be read stay as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest

from millstream.cluster.metadata import PartitionState, Topic
from millstream.controller import tree
from millstream.controller.reading import read_broker_configs, read_seen, read_topics
from millstream.controller.topics import NewTopic
from millstream.errors import TopicAlreadyExists
from millstream.model import encode_uuid
from millstream.registry.memory import MemoryRegistry, MemoryTree
from tests.controller.cluster import Cluster
from tests.controller.test_unclean import make_unclean
from tests.storage.logs import batch

NODE = tree.topic_path("bad")
STATE = tree.state_path("bad", 0)
CONFIG = f"{tree.TOPIC_CONFIGS}/bad"
ID = encode_uuid(UUID(int=1))


def topic(name: str, number: int) -> Topic:
    return Topic(name, UUID(int=number), [PartitionState([1, 2], [1, 2], 1, 0)])


async def put(registry: MemoryRegistry, one: Topic) -> None:
    await registry.create(tree.topic_path(one.name), tree.dump(tree.node_of(one)), make_parents=True)
    await registry.create(
        tree.state_path(one.name, 0), tree.dump(tree.state_of(one.partitions[0], 1)), make_parents=True
    )


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (NODE, b"{"),
        (NODE, b""),
        (NODE, b'{"partitions": {}, "topic_id": "%s"}' % ID.encode()),
        (NODE, b'{"partitions": {"1": [1]}, "topic_id": "%s"}' % ID.encode()),
        (NODE, b'{"partitions": {"0": []}, "topic_id": "%s"}' % ID.encode()),
        (NODE, b'{"partitions": {"0": [1, 1]}, "topic_id": "%s"}' % ID.encode()),
        (NODE, b'{"partitions": {"0": [1]}, "topic_id": "short"}'),
        (NODE, tree.dump(tree.node_of(topic("another", 77)))),
        (STATE, b"?"),
        (STATE, b'{"leader": "nobody"}'),
        (CONFIG, b'{"config": 7}'),
        (CONFIG, b'{"config": {"min.insync.replicas": "many"}}'),
        (CONFIG, b'{"config": {"no.such.key": "1"}}'),
    ],
    ids=[
        "no JSON",
        "empty",
        "no partition",
        "no partition 0",
        "no replica",
        "a replica twice",
        "no id",
        "another's id",
        "a state that is no JSON",
        "a state without an epoch",
        "a config that is none",
        "a value that cannot be",
        "a key that nobody knows",
    ],
)
def test_a_topic_that_cannot_be_read_is_named_and_the_others_are_read(path: str, data: bytes) -> None:
    async def main() -> None:
        registry = MemoryRegistry(MemoryTree())
        await registry.start()
        await put(registry, topic("another", 77))
        await put(registry, topic("bad", 1))
        await registry.create(CONFIG, b'{"config": {}}', make_parents=True)
        names = ["another", "bad", "gone"]
        topics, unreadable = await read_topics(registry, names)
        assert (list(topics), unreadable) == (["another", "bad"], {})
        await registry.set(path, data)
        topics, unreadable = await read_topics(registry, names)
        assert list(topics) == ["another"]
        assert list(unreadable) == ["bad"]
        assert NODE in unreadable["bad"]
        await registry.close()

    asyncio.run(main())


def test_other_nodes_that_cannot_be_read_count_for_nothing() -> None:
    async def main() -> None:
        registry = MemoryRegistry(MemoryTree())
        await registry.start()
        for path, data in (
            (f"{tree.BROKER_CONFIGS}/1", b'{"config": {"min.insync.replicas": "2"}}'),
            (
                f"{tree.BROKER_CONFIGS}/2",
                b'{"config": {"min.insync.replicas": "many", "log.retention.ms": "9"}}',
            ),
            (f"{tree.BROKER_CONFIGS}/{tree.DEFAULT_BROKER}", b"{"),
            (f"{tree.SEEN_BROKERS}/1", b'{"epoch": 5, "version": 1}'),
            (f"{tree.SEEN_BROKERS}/2", b"five"),
            (f"{tree.SEEN_BROKERS}/stranger", b"{}"),
        ):
            await registry.create(path, data, make_parents=True)
        assert await read_broker_configs(registry) == {
            "1": {"min.insync.replicas": "2"},
            "2": {"log.retention.ms": "9"},
        }
        assert await read_seen(registry) == {1: tree.SeenNode(5), 2: tree.SeenNode(-1, is_doubted=True)}
        await registry.close()

    asyncio.run(main())


async def new_term(cluster: Cluster) -> None:
    """The office is taken anew, by the same broker: it reads everything."""
    office = cluster.controller.controller
    epoch = office.epoch
    office.session_lost()
    office.joined_again()
    await cluster.until(lambda: office.is_active and office.epoch > epoch)


def test_a_topic_that_cannot_be_read_stays_as_it_is_until_it_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            controller = cluster.controller.config.node_id
            leader, other = (id_ for id_ in cluster.ids if id_ != controller)
            for name in ("good", "bad"):
                await cluster.create(name, assignment={0: [leader, other]})
            before = cluster.states("bad")[0]
            registry = cluster.registries[controller]
            right = (await registry.get(NODE)).data
            await registry.set(NODE, b"oops")
            await new_term(cluster)
            assert "the topic bad is left as it is" in caplog.text
            office = cluster.controller.controller
            await cluster.create("more", assignment={0: [leader, other]})
            with pytest.raises(TopicAlreadyExists, match="cannot be read"):
                await office.create_topic(NewTopic("bad", 1, 1))
            partition = cluster.brokers[leader].replicas.leader("bad", 0)
            partition.append(batch(b"taken"), 1, 9)
            await cluster.until(lambda: partition.high_watermark == 1)
            # A broker loses power meanwhile, and stops cleanly later: neither moves what it has of the topic.
            for is_clean in (False, True):
                await cluster.stop(other)
                if not is_clean:
                    make_unclean(cluster, other)
                await cluster.start(other)
                await cluster.until_in_sync("good", [leader, other])
            assert "bad" not in cluster.brokers[other].metadata.topics
            assert (cluster.folder / f"broker-{other}" / "bad-0").is_dir()
            await registry.set(NODE, right)
            await cluster.until(
                lambda: all("bad" in each.metadata.topics for each in cluster.brokers.values())
            )
            await cluster.until_in_sync("bad", [leader, other])
            assert cluster.brokers[other].replicas.topic("bad")[0].log.end_offset == 1
            # The power loss was made up for: who may have lost something was not in sync for a while.
            assert cluster.states("bad")[0].leader_epoch > before.leader_epoch

    asyncio.run(main())


def test_a_new_topic_has_nothing_to_do_with_what_was_written_for_its_name_before(tmp_path: Path) -> None:
    """A deletion that was marked would delete it, with its records, in the next controller's term."""

    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            registry = cluster.registries[1]
            await registry.create(f"{tree.DELETED_TOPICS}/late")
            for name in ("late", "set"):
                await registry.create(f"{tree.TOPIC_CONFIGS}/{name}", b'{"config": {"retention.ms": "1"}}')
            await cluster.create("late")
            await cluster.create("set", flush_ms="9")
            partition = cluster.brokers[cluster.states("late")[0].leader].replicas.leader("late", 0)
            partition.append(batch(b"kept"), -1, 9)
            await cluster.until(lambda: partition.high_watermark == 1)
            await new_term(cluster)
            topics = cluster.controller.controller.term.picture.topics
            found = {name: topics[name].overrides for name in topics.keys() & {"late", "set"}}
            assert found == {"late": {}, "set": {"flush.ms": "9"}}
            assert await registry.children(tree.DELETED_TOPICS) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "names", [("partitions/none/more", "partitions/1/beside", "note"), ("partitions/007",)]
)
def test_a_topic_is_deleted_with_whatever_was_written_below_it(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Also with a node whose name is only nearly that of a partition."""

    async def main() -> None:
        async with asyncio.timeout(60), Cluster(tmp_path) as cluster:
            await cluster.create("bad", 2)
            office, registry = cluster.controller.controller, cluster.registries[1]
            for name in names:
                await registry.create(f"{NODE}/{name}", make_parents=True)
            await office.delete_topic(cluster.controller.metadata.topic("bad"))
            assert await registry.exists(NODE) is None
            assert await registry.children(tree.DELETED_TOPICS) == []
            await cluster.create("bad")

    asyncio.run(main())
