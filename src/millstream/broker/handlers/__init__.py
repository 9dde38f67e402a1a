"""The handlers, one module a noun. The list below is all there is: no discovery."""

from millstream.broker.handlers import (
    api_versions,
    configs,
    consumer_groups,
    controller,
    coordinators,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    produce,
    producers,
    topics,
    transaction_admin,
    transactions,
)

MODULES = (
    produce,
    fetch,
    offsets,
    metadata,
    api_versions,
    topics,
    producers,
    configs,
    log_dirs,
    coordinators,
    groups,
    group_offsets,
    consumer_groups,
    transactions,
    transaction_admin,
    controller,
)
