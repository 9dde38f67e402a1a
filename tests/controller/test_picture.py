"""What the controller knows of logs that may have lost something."""

from __future__ import annotations

from uuid import UUID

from millstream.cluster.metadata import PartitionState, Topic
from millstream.config.broker import BrokerConfig
from millstream.controller.picture import Picture, ToldEnd


def test_ends_that_were_told_before_somebody_led_do_not_count() -> None:
    """Whoever followed that leader was cut off by it, or copied more."""
    topic = Topic("t", UUID(int=5), [PartitionState([1, 2, 3], [], -1, 6, doubted=[1, 2, 3])])
    picture = Picture(BrokerConfig({}))
    assert picture.ends_for(topic, 0) == {}
    place = topic.topic_id, 0
    picture.ends[1] = {place: ToldEnd((4, 70), leader_epoch=6)}
    picture.ends[2] = {place: ToldEnd((4, 90), leader_epoch=4)}
    picture.ends[3] = {(topic.topic_id, 1): ToldEnd((4, 80), leader_epoch=6)}
    assert picture.ends_for(topic, 0) == {1: (4, 70)}
    picture.failed[2] = frozenset({place})
    assert picture.ends_for(topic, 0) == {1: (4, 70), 2: None}
