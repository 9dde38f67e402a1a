"""An admin whose answers are lost, and whose controller dies."""

from __future__ import annotations

import asyncio

import pytest

from millstream import Admin, AsyncAdmin, Closed, TopicPartition
from millstream.errors import GroupIdNotFound, InvalidPartitions, TopicAlreadyExists
from millstream.protocol.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    DeleteTopicsRequest,
)
from millstream.testing import Cluster
from tests.client.conftest import Seen
from tests.client.fault_proxy import Fault, FaultProxy
from tests.conftest import Name


class LoseOnce:
    """Loses the first answer to each of some kinds of requests."""

    def __init__(self, *keys: int) -> None:
        self.keys = set(keys)

    def __call__(self, key: int) -> Fault:
        if key in self.keys:
            self.keys.remove(key)
            return Fault.LOSE_ANSWER
        return Fault.NONE


def test_changes_whose_answers_were_lost_are_done_once(either_bootstrap: str, new_name: Name) -> None:
    topic, group = new_name("lost"), new_name("group")
    host, _, port = either_bootstrap.rpartition(":")
    decide = LoseOnce(
        CreateTopicsRequest.key, CreatePartitionsRequest.key, DeleteGroupsRequest.key, DeleteTopicsRequest.key
    )
    with FaultProxy(host, int(port), decide) as proxy, Admin(proxy.bootstrap) as admin:
        created = admin.create_topic(topic, 2, replication_factor=1)
        assert created.name == topic
        with pytest.raises(TopicAlreadyExists):
            admin.create_topic(topic, 2)
        admin.add_partitions(topic, 3)
        with pytest.raises(InvalidPartitions):
            admin.add_partitions(topic, 3)
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): 0})
        admin.delete_group(group)
        with pytest.raises(GroupIdNotFound):
            admin.delete_group(group)
        admin.delete_topic(topic)
        assert not decide.keys
        assert topic not in admin.list_topics()


@pytest.mark.timeout(150)
def test_another_controller_is_found_when_the_known_one_dies() -> None:
    async def main(cluster: Cluster) -> None:
        async with AsyncAdmin(cluster.bootstrap) as admin:
            await admin.create_topic("before", 1)
            known = admin._cluster.metadata.controller_id
            await asyncio.to_thread(cluster[known].kill)
            await admin.create_topic("after", 1, replication_factor=1, timeout=60)
            await admin.delete_topic("before", timeout=60)

    with Cluster(brokers=3) as cluster:
        asyncio.run(main(cluster))


def test_a_closed_admin_says_so(own_bootstrap: str) -> None:
    async def main() -> None:
        async with AsyncAdmin(own_bootstrap) as admin:
            await admin.list_topics()
        with pytest.raises(Closed):
            await admin.list_topics()

    asyncio.run(main())
    with Admin(own_bootstrap) as admin:
        admin.list_topics()
    with pytest.raises(Closed):
        admin.list_topics()


def test_the_lag_of_a_group_leaves_out_topics_that_are_gone(
    either_bootstrap: str, new_name: Name, seen: Seen
) -> None:
    stays, goes, group = new_name("stays"), new_name("goes"), new_name("lag")
    with Admin(either_bootstrap) as admin:
        for topic in (stays, goes):
            admin.create_topic(topic, 1, replication_factor=1)
        admin.alter_group_offsets(group, {TopicPartition(stays, 0): 0, TopicPartition(goes, 0): 0})
        assert set(admin.group_lag(group)) == {TopicPartition(stays, 0), TopicPartition(goes, 0)}
        admin.delete_topic(goes)
        seen(lambda: admin.group_lag(group) == {TopicPartition(stays, 0): 0})
