"""FindCoordinator: which broker looks after a group or a transactional id."""

from __future__ import annotations

from millstream.broker.coordinators import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.cluster.metadata import Endpoint
from millstream.errors import CoordinatorNotAvailable, InvalidRequest, KafkaError
from millstream.pauses import Pauses
from millstream.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse

GROUP = 0
TRANSACTION = 1

_TOPICS = {GROUP: GROUPS_TOPIC, TRANSACTION: TRANSACTIONS_TOPIC}

Coordinator = FindCoordinatorResponse.Coordinator


@handles(FindCoordinatorRequest, large_bytes=LONG_LIST_BYTES)
async def find_coordinator(ctx: Context, req: FindCoordinatorRequest) -> FindCoordinatorResponse:
    """v1 transactional ids; v3 flexible; v4 many keys at once (KIP-699); v5 and v6 new key types."""
    if ctx.version >= 4:
        response, pauses = FindCoordinatorResponse(coordinators=[]), Pauses()
        for key in req.coordinator_keys:
            response.coordinators.append(await _coordinator(ctx, req.key_type, key))
            if pauses.is_due:
                await pauses.take()
        return response
    found = await _coordinator(ctx, req.key_type, req.coordinator_key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _coordinator(ctx: Context, key_type: int, key: str) -> Coordinator:
    try:
        node_id, endpoint = await _find(ctx, key_type, key)
        return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port)
    except KafkaError as error:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message
        )


async def _find(ctx: Context, key_type: int, key: str) -> tuple[int, Endpoint]:
    name = _TOPICS.get(key_type)
    if name is None:
        raise InvalidRequest(
            f"there are no coordinators of type {key_type}: 0 is for groups, 1 for transactions"
        )
    broker = ctx.broker
    topic = await broker.coordinators.topic(name)
    state = topic.partitions[broker.coordinators.partition_of(name, key)]
    node = broker.metadata.brokers.get(state.leader)
    endpoint = None if node is None else node.endpoint(ctx.listener)
    if endpoint is None:
        raise CoordinatorNotAvailable
    return state.leader, endpoint
