"""Look at a cluster and change it: topics, configurations, groups and their offsets.

Start a broker with `millstream serve`, then run this; HOST:PORT as its argument names another.
"""

from __future__ import annotations

import sys

from millstream import Admin, TopicPartition

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"


def main() -> None:
    with Admin(BOOTSTRAP) as admin:
        cluster = admin.describe_cluster()
        print(f"{len(cluster.brokers)} broker(s), controller {cluster.controller}")

        created = admin.create_topic("tour", partitions=2, configs={"retention.ms": "3600000"})
        print(f"created {created.name} with {created.partitions} partitions")
        admin.alter_config("topic", "tour", values={"cleanup.policy": "compact"})
        config = admin.describe_config("topic", "tour", keys=["cleanup.policy", "retention.ms"])
        for key, entry in config.items():
            print(f"{key} = {entry.value} (from {entry.source})")

        first = TopicPartition("tour", 0)
        admin.alter_group_offsets("tourists", {first: 0})
        print(
            "committed",
            admin.group_offsets("tourists")[first].offset,
            "lag",
            admin.group_lag("tourists")[first],
        )

        admin.delete_group("tourists")
        admin.delete_topic("tour")
        print("left", [name for name in admin.list_topics() if name == "tour"])


if __name__ == "__main__":
    main()
