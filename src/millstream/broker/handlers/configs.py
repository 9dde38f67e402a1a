"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics, brokers, groups and log levels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from millstream.broker.handlers.passing_on import passed_on, was_passed_on
from millstream.broker.log_levels import alter_log_levels, log_levels
from millstream.broker.router import LONG_LIST_BYTES, Context, handles
from millstream.config.alter import AlterOp, Op, altered
from millstream.config.broker_keys import BROKER_KEYS
from millstream.config.checks import Value
from millstream.config.describe import Described, describe_broker, describe_topic
from millstream.config.group import GROUP_CONFIG_KEYS, describe_group
from millstream.config.keys import ConfigKey
from millstream.config.topic import TOPIC_KEYS
from millstream.controller.tree import DEFAULT_BROKER
from millstream.errors import InvalidConfig, InvalidRequest, KafkaError
from millstream.pauses import Pauses
from millstream.protocol.messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

ConfigEntry = DescribeConfigsResponse.DescribeConfigsResourceResult

TOPIC = 2
BROKER = 4
BROKER_LOGGER = 8
GROUP = 32

IncrementalResource = IncrementalAlterConfigsRequest.AlterConfigsResource
Resource = IncrementalResource | AlterConfigsRequest.AlterConfigsResource
Result = (
    IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    | AlterConfigsResponse.AlterConfigsResourceResponse
)
Change = Callable[[Mapping[str, str], Mapping[str, ConfigKey]], Mapping[str, str]]
"""From what a resource sets now, and the keys that it may set, to what it sets then."""
Alteration = TypeVar("Alteration", IncrementalAlterConfigsResponse, AlterConfigsResponse)

MAX_DESCRIBED = 500_000
"""How many values, their synonyms counted, one answer tells: those of 14,000 topics without synonyms."""


@handles(DescribeConfigsRequest, large_bytes=LONG_LIST_BYTES)
async def describe_configs(ctx: Context, req: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """v1 synonyms (KIP-226); v3 type and documentation (KIP-569); v4 flexible.

    A resource that is named more than once is described once: the first time holds. All else would let a
    request of a few KB ask for as many MB.
    """
    response, pauses = DescribeConfigsResponse(results=[]), Pauses()
    left = MAX_DESCRIBED
    defaults: dict[int, list[ConfigEntry]] = {}
    resources: dict[tuple[int, str], DescribeConfigsRequest.DescribeConfigsResource] = {}
    for each in req.resources:
        resources.setdefault((each.resource_type, each.resource_name), each)
    for resource in resources.values():
        if pauses.is_due:
            await pauses.take()
            defaults.clear()  # the broker's may have changed
        result = DescribeConfigsResponse.DescribeConfigsResult(
            error_code=0,
            error_message="",
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        response.results.append(result)
        try:
            if left <= 0:
                raise InvalidRequest("too much is asked for at once; ask for fewer resources")
            kind, keys = resource.resource_type, resource.configuration_keys
            is_default = keys is None and _sets_nothing(ctx, kind, resource.resource_name)
            if is_default and kind in defaults:
                result.configs = defaults[kind]
            else:
                wanted = None if keys is None else set(keys)
                result.configs = [
                    _described(config, req.include_synonyms, req.include_documentation)
                    for config in _configs(ctx, kind, resource.resource_name)
                    if wanted is None or config.name in wanted
                ]
            if is_default:
                defaults[kind] = result.configs
            left -= len(result.configs) + sum(len(config.synonyms) for config in result.configs)
        except KafkaError as error:
            result.error_code = error.code
            result.error_message = error.message
    return response


def _sets_nothing(ctx: Context, resource_type: int, name: str) -> bool:
    """Whether it is a topic or a group like all others that set nothing for themselves."""
    broker = ctx.broker
    if resource_type == TOPIC:
        return not broker.metadata.topic(name).overrides
    return resource_type == GROUP and name != "" and not broker.group_topics.configs.texts(name)


def _configs(ctx: Context, resource_type: int, name: str) -> Iterable[Described]:
    broker = ctx.broker
    if resource_type == TOPIC:
        return describe_topic(broker.metadata.topic(name).overrides, broker.config)
    if resource_type == GROUP:
        if not name:
            raise InvalidRequest("a group's id must not be empty")
        return describe_group(broker.group_topics.configs.texts(name), broker.config)
    if resource_type == BROKER:
        _broker_name(ctx, name)
        described = describe_broker(broker.config, is_default=name == "")
        return [_as_advertised(ctx, config) for config in described]
    if resource_type == BROKER_LOGGER:
        _check_logging_broker(ctx, name)
        return log_levels()
    raise InvalidRequest(
        f"resources of type {resource_type} have no configs here; topics (2), brokers (4), "
        "loggers of a broker (8) and groups (32) do"
    )


def _as_advertised(ctx: Context, config: Described) -> Described:
    """Where no advertised.listeners are configured, clients are told the listeners' own addresses."""
    if config.name != "advertised.listeners" or config.value:
        return config
    return config._replace(value=",".join(map(str, ctx.broker.endpoints)))


def _broker_name(ctx: Context, name: str) -> str:
    """The registry's name of a broker resource; an empty one means all brokers."""
    if name == "":
        return DEFAULT_BROKER
    if name != str(ctx.broker.config.node_id) and not was_passed_on(ctx):
        raise InvalidRequest(f"this is broker {ctx.broker.config.node_id}; ask broker {name} itself")
    return name


def _check_logging_broker(ctx: Context, name: str) -> None:
    if name != str(ctx.broker.config.node_id):
        raise InvalidRequest(
            f"this is broker {ctx.broker.config.node_id}; ask broker {name!r} for its loggers"
        )


def _asked(resources: Iterable[Resource]) -> Counter[tuple[int, str]]:
    """How often each resource is in a request."""
    return Counter((each.resource_type, each.resource_name) for each in resources)


def _check_once(asked: Counter[tuple[int, str]], resource_type: int, name: str) -> None:
    if asked[resource_type, name] > 1:
        raise InvalidRequest(f"the resource {name!r} is in the request more than once")


def _check_broker(ctx: Context, resource: Resource, change: Callable[[Any], Change]) -> None:
    """Raise if a resource is another broker than this one, or asks of this one what it cannot take."""
    config = ctx.broker.config
    if resource.resource_type == BROKER and _broker_name(ctx, resource.resource_name) != DEFAULT_BROKER:
        before = config.layers[0].texts
        config.check_change(before, change(resource)(before, BROKER_KEYS))


def _tell_inherited(ctx: Context, resources: Iterable[Resource]) -> None:
    """Have the controller know what the lists of this broker are where nothing is set: its own may differ."""
    own = str(ctx.broker.config.node_id)
    for resource in resources:
        if not isinstance(resource, IncrementalResource):
            return
        if (resource.resource_type, resource.resource_name) == (BROKER, own):
            for config in resource.configs:
                config.inherited = None
                if config.config_operation in (Op.APPEND, Op.SUBTRACT):
                    value = ctx.broker.config.inherited(config.name)
                    config.inherited = ",".join(value) if isinstance(value, tuple) else ""


def _inherited(ctx: Context, resource: IncrementalResource) -> Callable[[str], Value]:
    """Gives what holds for a name that a resource does not set."""
    config = ctx.broker.config
    if resource.resource_type == TOPIC:
        return lambda name: config.topic_default(name)[0]
    is_default = resource.resource_name == ""
    told = {each.name: each.inherited for each in resource.configs} if was_passed_on(ctx) else {}

    def of_broker(name: str) -> Value:
        text = None if is_default else told.get(name)
        if text is None:
            return config.inherited(name, is_default=is_default)
        return tuple(text.split(",")) if text else ()

    return of_broker


def _described(config: Described, with_synonyms: bool, with_documentation: bool) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        read_only=config.is_read_only,
        config_source=config.source,
        is_sensitive=config.is_sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(
                name=synonym.name, value=synonym.value, source=synonym.source
            )
            for synonym in config.synonyms
        ]
        if with_synonyms
        else [],
        config_type=config.kind_code,
        documentation=config.documentation if with_documentation else None,
    )


@handles(IncrementalAlterConfigsRequest, large_bytes=LONG_LIST_BYTES)
async def incremental_alter_configs(
    ctx: Context, req: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """v1 flexible. Set, delete, append and subtract, all of a resource or none (KIP-339)."""

    def change(resource: IncrementalResource) -> Change:
        ops, inherited = _ops(resource), _inherited(ctx, resource)
        return lambda texts, keys: altered(texts, ops, keys, inherited)

    return await _answer(ctx, req, IncrementalAlterConfigsResponse, change)


def _ops(resource: IncrementalResource) -> list[AlterOp]:
    return [AlterOp(config.name, config.config_operation, config.value) for config in resource.configs]


@handles(AlterConfigsRequest, large_bytes=LONG_LIST_BYTES)
async def alter_configs(ctx: Context, req: AlterConfigsRequest) -> AlterConfigsResponse:
    """v2 flexible. Replaces all that a resource sets; clients have moved to the incremental form."""

    def change(resource: AlterConfigsRequest.AlterConfigsResource) -> Change:
        replaced: dict[str, str] = {}
        for config in resource.configs:
            if config.value is None:
                raise InvalidConfig(f"{config.name} has no value")
            replaced[config.name] = config.value
        return lambda _texts, _keys: replaced

    return await _answer(ctx, req, AlterConfigsResponse, change)


async def _answer(
    ctx: Context,
    req: IncrementalAlterConfigsRequest | AlterConfigsRequest,
    response: type[Alteration],
    change: Callable[[Any], Change],
) -> Alteration:
    """What became of each resource, by the change that `change` makes of it; in the order of the request.

    Clients send this to any broker, so one that is not the controller passes on what is left to alter once
    it has refused what it must. Levels of loggers are this broker's own affair; the controller never hears
    of them.
    """
    passes_on = not ctx.broker.controller.is_active and not was_passed_on(ctx)
    answer, pauses = response(responses=[]), Pauses()
    asked = _asked(req.resources)
    left: list[tuple[Any, Any]] = []
    for resource in req.resources:
        if pauses.is_due:
            await pauses.take()
        kind, name = resource.resource_type, resource.resource_name
        result = response.AlterConfigsResourceResponse(
            error_code=0, error_message="", resource_type=kind, resource_name=name
        )
        answer.responses.append(result)
        try:
            _check_once(asked, kind, name)
            if kind == BROKER_LOGGER and isinstance(resource, IncrementalResource):
                _check_logging_broker(ctx, name)
                alter_log_levels(_ops(resource), validate_only=req.validate_only)
            else:
                if passes_on:
                    _check_broker(ctx, resource, change)
                left.append((resource, result))
        except KafkaError as error:
            _refuse(result, error)
    if passes_on and left and await _are_passed_on(ctx, req, left, response):
        return answer
    for resource, result in left:
        if pauses.is_due:
            await pauses.take()
        try:
            await _alter(
                ctx, resource.resource_type, resource.resource_name, change(resource), req.validate_only
            )
        except KafkaError as error:
            _refuse(result, error)
    return answer


async def _are_passed_on(
    ctx: Context,
    req: IncrementalAlterConfigsRequest | AlterConfigsRequest,
    left: list[tuple[Any, Any]],
    response: type[Alteration],
) -> bool:
    """Whether these resources have their results from the controller; else they are this broker's to alter.

    One that was reached and did not answer is such a result too: none is altered a second time here.
    """
    req.resources = [resource for resource, _ in left]
    _tell_inherited(ctx, req.resources)
    try:
        passed = await passed_on(ctx, req, response)
    except KafkaError as error:
        for _, result in left:
            _refuse(result, error)
        return True
    if passed is None:
        return False
    for (_, result), told in zip(left, passed.responses, strict=True):
        result.error_code = told.error_code
        result.error_message = told.error_message
    return True


def _refuse(result: Result, error: KafkaError) -> None:
    result.error_code = error.code
    result.error_message = error.message


async def _alter(ctx: Context, resource_type: int, name: str, change: Change, validate_only: bool) -> None:
    controller = ctx.broker.controller
    if resource_type == TOPIC:
        await controller.set_topic_config(
            name, lambda texts: change(texts, TOPIC_KEYS), validate_only=validate_only
        )
    elif resource_type == BROKER:
        await controller.set_broker_config(
            _broker_name(ctx, name), lambda texts: change(texts, BROKER_KEYS), validate_only=validate_only
        )
    elif resource_type == GROUP:
        await ctx.broker.group_topics.configs.alter(
            name, lambda texts: change(texts, GROUP_CONFIG_KEYS), validate_only=validate_only
        )
    else:
        raise InvalidRequest(
            f"resources of type {resource_type} cannot be altered so; topics (2), brokers (4) and groups "
            "(32) can, and with IncrementalAlterConfigs the loggers of a broker (8)"
        )
