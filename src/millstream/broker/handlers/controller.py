"""What brokers ask of the controller, on their own listener: ClusterState, AlterPartition,
ControlledShutdown."""

from __future__ import annotations

from millstream.broker.router import Context, handles
from millstream.errors import NotController
from millstream.protocol.messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ClusterStateRequest,
    ClusterStateResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)


@handles(ClusterStateRequest, is_internal=True)
async def cluster_state(ctx: Context, req: ClusterStateRequest) -> ClusterStateResponse:
    """What changed since the broker last asked."""
    return await ctx.broker.controller.requests.poll(req)


@handles(AlterPartitionRequest, is_internal=True)
async def alter_partition(ctx: Context, req: AlterPartitionRequest) -> AlterPartitionResponse:
    """v3 broker epochs of the members (KIP-903)."""
    if not ctx.broker.controller.is_active:
        return AlterPartitionResponse(error_code=NotController.code, topics=[])
    return await ctx.broker.controller.requests.alter_partitions(req)


@handles(ControlledShutdownRequest, is_internal=True)
async def controlled_shutdown(ctx: Context, req: ControlledShutdownRequest) -> ControlledShutdownResponse:
    """Others lead what a broker leads that is about to stop."""
    return await ctx.broker.controller.requests.stop_broker(req)
