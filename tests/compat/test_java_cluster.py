"""Apache Kafka's own tools move partitions and elect leaders in a cluster of three processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from millstream.testing import Cluster
from tests.compat.test_java_tools import tool

pytestmark = [pytest.mark.java, pytest.mark.usefixtures("quick_java")]

REASSIGN = "reassign.ReassignPartitionsCommand"


def test_partitions_move_and_leaders_are_elected(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    targets = {0: [3, 2], 1: [1, 3]}
    moves = [{"topic": "t", "partition": number, "replicas": target} for number, target in targets.items()]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    with Cluster(3) as cluster:
        bootstrap = cluster.bootstrap
        tool(bootstrap, "TopicCommand", "--create", "--topic", "t", "--replica-assignment", "1:2,2:3,3:1")
        how = ("--reassignment-json-file", str(plan))
        printed = tool(bootstrap, REASSIGN, *how, "--execute", "--throttle", "10000000")
        assert "Successfully started partition reassignments for t-0,t-1" in printed
        deadline = time.monotonic() + 60
        while "is completed" not in printed or "in progress" in printed:
            assert time.monotonic() < deadline, printed
            printed = tool(bootstrap, REASSIGN, *how, "--verify")
        assert "Clearing topic-level throttles on topic t" in printed
        assert "No partition reassignments found" in tool(bootstrap, REASSIGN, "--list")
        tool(bootstrap, "LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
        lines = tool(bootstrap, "TopicCommand", "--describe", "--topic", "t").splitlines()[1:]
        found = [line.split("\t")[2:5] for line in lines]
        assert [cells[:2] for cells in found] == [
            ["Partition: 0", "Leader: 3"],
            ["Partition: 1", "Leader: 1"],
            ["Partition: 2", "Leader: 3"],
        ]
        assert [cells[2] for cells in found] == ["Replicas: 3,2", "Replicas: 1,3", "Replicas: 3,1"]
        # also asks a broker about what it only copies
        assert "ProducerId" in tool(bootstrap, "TransactionsCommand", "find-hanging", "--broker-id", "3")
