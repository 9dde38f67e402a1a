"""DescribeLogDirs: which partitions lie where, and how large they are."""

from __future__ import annotations

import asyncio

from millstream.broker.router import Context, handles
from millstream.errors import KafkaStorageError
from millstream.protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse


@handles(DescribeLogDirsRequest)
async def describe_log_dirs(ctx: Context, req: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """v2 flexible; v3 an error for the whole answer; v4 sizes of the volumes (KIP-827)."""
    wanted = None if req.topics is None else {topic.topic: set(topic.partitions) for topic in req.topics}
    loop = asyncio.get_running_loop()
    results = []
    for folder in ctx.broker.store.dirs:
        topics: dict[str, DescribeLogDirsResponse.DescribeLogDirsTopic] = {}
        damaged: dict[str, list[int]] = {}
        for partition in ctx.broker.replicas:
            name = partition.name
            if partition.log.dir_path != folder.path:
                continue
            if req.wants_hindrances and partition.log.damage is not None:
                damaged.setdefault(name.topic, []).append(name.partition)
            if wanted is not None and name.partition not in wanted.get(name.topic, ()):
                continue
            entry = topics.setdefault(
                name.topic, DescribeLogDirsResponse.DescribeLogDirsTopic(name=name.topic, partitions=[])
            )
            entry.partitions.append(
                DescribeLogDirsResponse.DescribeLogDirsPartition(
                    partition_index=name.partition,
                    partition_size=partition.log.size_bytes,
                    offset_lag=0,
                    is_future_key=False,
                )
            )
        threads = ctx.broker.threads.reads(folder.path)
        total_bytes, free_bytes = await loop.run_in_executor(threads, folder.volume_bytes)
        results.append(
            DescribeLogDirsResponse.DescribeLogDirsResult(
                error_code=KafkaStorageError.code if folder.has_failed else 0,
                log_dir=folder.path,
                topics=list(topics.values()),
                total_bytes=total_bytes,
                usable_bytes=free_bytes,
                is_full=req.wants_hindrances and folder.is_full,
                damaged=[
                    DescribeLogDirsResponse.DamagedTopic(name=topic, partitions=indexes)
                    for topic, indexes in damaged.items()
                ],
            )
        )
    return DescribeLogDirsResponse(results=results)
