"""Handlers for policies, operator policies, runtime parameters, and the preview of a policy.

RabbitMQ configures federation and shovels by parameters; their lists are empty here.

**Preview** (not in RabbitMQ) shows the effect of setting or clearing a policy without doing it: which queues and
exchanges it matches, which would use it, the changed definitions, and how many messages would be removed. It puts the
vhost's policies and the new one into a separate table (`policy_table.py`) and looks up every queue and exchange
there. The results of a match are:

- `applied`: the object would use the policy.
- `outranked`: another policy has a higher priority, or the same priority and a name that sorts first.
- `unsupported`: the type of the queue does not support a key of the policy.
- `released`: the object uses the policy now and would not any more.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.queue.log_opener import opened
from amqpd.broker.queue.queue import Queue
from amqpd.broker.vhost import parameters, policies
from amqpd.broker.vhost.parameters import Parameter, ParameterComponent, component_of
from amqpd.broker.vhost.pending import wait_done
from amqpd.broker.vhost.policy_table import EXCHANGE, EffectivePolicy, Policy, PolicyTable
from amqpd.management.listing import document_reply, listing, object_reply
from amqpd.management.message_counts import unacked_not_ready
from amqpd.management.request import (
    CREATED,
    NO_CONTENT,
    ApiRequest,
    ApiResponse,
    ResourceNotFound,
    Role,
    clean_name,
    missing_keys,
    parse_int,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice

if TYPE_CHECKING:
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost


def policy_item(policy: Policy) -> dict[str, Any]:
    """Return a policy with its fields in RabbitMQ's order."""
    row = policy.row
    return {
        "vhost": row.vhost,
        "name": row.name,
        "pattern": row.pattern,
        "apply-to": row.apply_to,
        "definition": dict(policy.definition),
        "priority": row.priority,
    }


async def get_policies(operator: bool, call: ApiRequest) -> ApiResponse:
    """List the policies of all virtual hosts or of one. There is the same route for operator policies."""
    found = [policy for vhost in call.vhosts() for policy in vhost.policies.all(operator)]
    return await listing(call, found, policy_item, lambda policy: policy.row.name)


async def get_policy(operator: bool, call: ApiRequest) -> ApiResponse:
    """Return one policy."""
    return object_reply(call, policy_item(_policy(operator, call)))


async def put_policy(operator: bool, call: ApiRequest) -> ApiResponse:
    """Set a policy.

    Answers 201 for a new one, 204 for a changed one, once every queue and exchange uses it; 400 if it is invalid.
    """
    vhost = call.administered_vhost()
    name = clean_name(call.params["name"], "a policy")
    fields = call.fields()
    if missing := [key for key in ("pattern", "definition") if key not in fields]:
        raise missing_keys(*missing)
    value: dict[str, Any] = {"priority": 0, **{key: fields[key] for key in policies.FIELDS if key in fields}}
    new = await wait_done(partial(policies.declare, vhost, name, value, operator))
    return CREATED if new else NO_CONTENT


async def delete_policy(operator: bool, call: ApiRequest) -> ApiResponse:
    """Clear a policy."""
    policy = _policy(operator, call)
    await wait_done(partial(policies.clear, call.administered_vhost(), policy))
    return NO_CONTENT


def _policy(operator: bool, call: ApiRequest) -> Policy:
    policy = call.administered_vhost().policies.get(call.params["name"], operator)
    if policy is None:
        raise ResourceNotFound(ResourceNotFound.text)
    return policy


def _routes(path: str, operator: bool, role: Role) -> tuple[ApiRoute, ...]:
    return (
        ApiRoute("GET", path, Role.MANAGEMENT, partial(get_policies, operator)),
        ApiRoute("GET", f"{path}/{{vhost}}", Role.MANAGEMENT, partial(get_policies, operator)),
        ApiRoute("GET", f"{path}/{{vhost}}/{{name}}", role, partial(get_policy, operator)),
        ApiRoute("PUT", f"{path}/{{vhost}}/{{name}}", role, partial(put_policy, operator)),
        ApiRoute("DELETE", f"{path}/{{vhost}}/{{name}}", role, partial(delete_policy, operator)),
    )


def parameter_item(parameter: Parameter) -> dict[str, Any]:
    """Return a parameter with its fields in RabbitMQ's order."""
    return {
        "value": parameter.value,
        "vhost": parameter.vhost,
        "component": parameter.component,
        "name": parameter.name,
    }


def global_item(named: tuple[str, Any]) -> dict[str, Any]:
    return {"name": named[0], "value": named[1]}


async def get_parameters(call: ApiRequest) -> ApiResponse:
    """List the runtime parameters of all components or of one."""
    found = parameters.parameters(call.vhosts(), call.params.get("component", ""))
    return await listing(call, found, parameter_item, lambda each: each.name)


async def get_parameter(call: ApiRequest) -> ApiResponse:
    """Return one parameter."""
    return object_reply(call, parameter_item(_parameter(call)))


async def put_parameter(call: ApiRequest) -> ApiResponse:
    """Set a parameter.

    Answers 201 for a new one, 204 for a changed one, 400 for an unknown component or an invalid value.
    """
    vhost = call.administered_vhost()
    name = clean_name(call.params["name"], "a parameter")
    value = call.required("value")
    component = component_of(call.params["component"])
    _check(call, component)
    new = await wait_done(partial(component.declare, vhost, name, value))
    return CREATED if new else NO_CONTENT


async def delete_parameter(call: ApiRequest) -> ApiResponse:
    """Clear a parameter."""
    found = _parameter(call)
    component = component_of(found.component)
    _check(call, component)
    await wait_done(partial(component.clear, call.administered_vhost(), found.name))
    return NO_CONTENT


def _parameter(call: ApiRequest) -> Parameter:
    found = parameters.find(call.administered_vhost(), call.params["component"], call.params["name"])
    if found is None:
        raise ResourceNotFound(ResourceNotFound.text)
    return found


def _check(call: ApiRequest, component: ParameterComponent) -> None:
    if component.administrators:
        call.require(Role.ADMINISTRATOR)


async def get_global_parameters(call: ApiRequest) -> ApiResponse:
    """List the global parameters."""
    return await listing(call, call.broker.global_parameters.all(), global_item, lambda named: named[0])


async def get_global_parameter(call: ApiRequest) -> ApiResponse:
    """Return one global parameter."""
    name = call.params["name"]
    _global(call, name)
    return object_reply(call, global_item((name, call.broker.global_parameters.get(name))))


async def put_global_parameter(call: ApiRequest) -> ApiResponse:
    """Set a global parameter."""
    name = clean_name(call.params["name"], "a parameter")
    value = call.required("value")
    new = await wait_done(partial(call.broker.global_parameters.declare, name, value))
    return CREATED if new else NO_CONTENT


async def delete_global_parameter(call: ApiRequest) -> ApiResponse:
    """Clear a global parameter."""
    name = call.params["name"]
    _global(call, name)
    await wait_done(partial(call.broker.global_parameters.clear, name))
    return NO_CONTENT


def _global(call: ApiRequest, name: str) -> None:
    if not call.broker.global_parameters.has(name):
        raise ResourceNotFound(ResourceNotFound.text)


async def get_federation_links(call: ApiRequest) -> ApiResponse:
    """List federation links. The list is always empty."""
    return await _empty_list(call)


async def get_shovels(call: ApiRequest) -> ApiResponse:
    """List shovels. The list is always empty."""
    return await _empty_list(call)


async def _empty_list(call: ApiRequest) -> ApiResponse:
    """Return an empty list or page. Raises: as `ApiRequest.vhost`."""
    call.vhosts()
    nothing: list[dict[str, Any]] = []
    return await listing(call, nothing, dict, lambda item: str(item["name"]))


_ONE: Final = "api/parameters/{component}/{vhost}/{name}"
_GLOBAL: Final = "api/global-parameters"


COUNT: Final = 100
COUNT_MAX: Final = 1000

APPLIED, OUTRANKED, UNSUPPORTED, RELEASED = "applied", "outranked", "unsupported", "released"


class Preview:
    """The preview of a policy.

    Attributes:
        policy: the policy to set, or None if it is cleared.
        count: limit of `items`.
    """

    def __init__(self, name: str, operator: bool, policy: Policy | None, count: int) -> None:
        self.name = name
        self.operator = operator
        self.policy = policy
        self.count = count
        self.matched = {"queues": 0, "exchanges": 0}
        self.results = dict.fromkeys((APPLIED, OUTRANKED, UNSUPPORTED, RELEASED), 0)
        self.changed = {"queues": 0, "exchanges": 0}
        self.over_length = 0
        self.shorter_ttl = 0
        self.expiring = 0
        self.items: list[dict[str, Any]] = []
        self.found_count = 0

    async def run(self, vhost: VHost, slices: TimeSlice) -> None:
        """Look up every queue and exchange of the vhost. Cost: 1 us per policy and object."""
        table = await _table(vhost, self.name, self.operator, self.policy, slices)
        for thing in vhost.policy_targets():
            if not thing.deleted:
                await self._check_object(vhost, table, thing)
            await slices.yield_if_due()

    async def _check_object(self, vhost: VHost, table: PolicyTable, thing: Queue | Exchange) -> None:
        is_queue = isinstance(thing, Queue)
        kind = thing.kind if is_queue else EXCHANGE
        before, after = vhost.policies.policy_of(thing), table.effective(kind, thing.name)
        result = self._result(kind, thing.name, before, after)
        if not result:
            return
        things = "queues" if is_queue else "exchanges"
        self.matched[things] += result != RELEASED
        self.results[result] += 1
        item: dict[str, Any] = {"kind": "queue" if is_queue else "exchange", "name": thing.name, "type": thing.kind}
        item |= {"why": result, "holds": after.operator_policy if self.operator else after.policy}
        item |= {"before": dict(before.definition), "after": dict(after.definition)}
        if isinstance(thing, Queue):
            await opened(thing)
            item |= {"messages": thing.ready_count + unacked_not_ready(thing), "consumers": len(thing.consumers)}
        if before.definition != after.definition:
            self.changed[things] += 1
            if isinstance(thing, Queue):
                item |= self._costs(thing, before, after)
        self.found_count += 1
        if len(self.items) < self.count:
            self.items.append(item)

    def _result(self, kind: str, name: str, before: EffectivePolicy, after: EffectivePolicy) -> str:
        """Return the result for an object; empty if the policy does not concern it."""
        was, holds = (before.operator_policy, after.operator_policy) if self.operator else (before.policy, after.policy)
        if self.policy is not None:
            if self.policy.matches(kind, name):
                return APPLIED if holds == self.name else OUTRANKED
            for_queues = kind != EXCHANGE and self.policy.row.apply_to in ("queues", "all")
            if for_queues and self.policy.pattern.matches(name):
                return UNSUPPORTED
        return RELEASED if was == self.name else ""

    def _costs(self, queue: Queue, before: EffectivePolicy, after: EffectivePolicy) -> dict[str, Any]:
        """Return what a queue would lose under the new rules.

        These are messages above a length limit, which are removed at once; messages with a shorter time to live,
        which may expire; and the queue itself, if it is unused.
        """
        old, new = before.rules(queue.kind, queue.arguments), after.rules(queue.kind, queue.arguments)
        over: int = 0
        if new.drops_head:
            over = max(0, queue.ready_count - new.length_max) if new.length_max >= 0 else 0
            if 0 <= new.length_bytes_max < queue.ready_bytes:
                # Estimated with the average size of a message.
                many = queue.ready_count * (queue.ready_bytes - new.length_bytes_max)
                over = max(over, -(-many // queue.ready_bytes))
        sooner = queue.ready_count if new.ttl_ms >= 0 and (old.ttl_ms < 0 or new.ttl_ms < old.ttl_ms) else 0
        unused = not queue.consumers and new.expires_ms >= 0 and (old.expires_ms < 0 or new.expires_ms < old.expires_ms)
        self.over_length += over
        self.shorter_ttl += sooner
        self.expiring += unused
        return {"over_length": over, "shorter_ttl": sooner, "expires_unused": unused}

    def answer(self) -> dict[str, Any]:
        return {
            "matched": self.matched,
            **self.results,
            "changed": self.changed,
            "messages_over_length": self.over_length,
            "messages_with_shorter_ttl": self.shorter_ttl,
            "unused_queues_that_expire": self.expiring,
            "items": self.items,
            "items_left_out": self.found_count - len(self.items),
        }


async def _table(vhost: VHost, name: str, operator: bool, policy: Policy | None, slices: TimeSlice) -> PolicyTable:
    """Return a table with the vhost's policies after the change."""
    there = [each for kind in (False, True) for each in vhost.policies.all(kind)]
    kept = [each for each in there if (each.row.name, each.row.operator) != (name, operator)]
    table = PolicyTable()
    for each in (*kept, *(() if policy is None else (policy,))):
        table.put(each)
        await slices.yield_if_due()
    return table


async def preview(operator: bool, call: ApiRequest) -> ApiResponse:
    """Preview a policy without setting it. The answer has the matches, changes and numbers of removed messages."""
    vhost = call.administered_vhost()
    fields = call.fields()
    name = clean_name(call.text("name"), "a policy")
    count = parse_int("count", fields.get("count", COUNT), 0, COUNT_MAX)
    policy: Policy | None = None
    if call.flag("clear"):
        if vhost.policies.get(name, operator) is None:
            raise ResourceNotFound(f"no policy '{name}' in vhost '{vhost.name}'")
    else:
        value: dict[str, Any] = {"priority": 0, **{key: fields[key] for key in policies.FIELDS if key in fields}}
        policy = policies.checked(vhost.name, name, value, operator)
    found = Preview(name, operator, policy, count)
    await found.run(vhost, TimeSlice())
    return await document_reply(found.answer())


ROUTES: Final = (
    *_routes("api/policies", False, Role.POLICYMAKER),
    *_routes("api/operator-policies", True, Role.ADMINISTRATOR),
    ApiRoute("GET", "api/parameters", Role.POLICYMAKER, get_parameters),
    ApiRoute("GET", "api/parameters/{component}", Role.POLICYMAKER, get_parameters),
    ApiRoute("GET", "api/parameters/{component}/{vhost}", Role.POLICYMAKER, get_parameters),
    ApiRoute("GET", _ONE, Role.POLICYMAKER, get_parameter),
    ApiRoute("PUT", _ONE, Role.POLICYMAKER, put_parameter),
    ApiRoute("DELETE", _ONE, Role.POLICYMAKER, delete_parameter),
    ApiRoute("GET", _GLOBAL, Role.POLICYMAKER, get_global_parameters),
    ApiRoute("GET", f"{_GLOBAL}/{{name}}", Role.POLICYMAKER, get_global_parameter),
    ApiRoute("PUT", f"{_GLOBAL}/{{name}}", Role.POLICYMAKER, put_global_parameter),
    ApiRoute("DELETE", f"{_GLOBAL}/{{name}}", Role.POLICYMAKER, delete_global_parameter),
    ApiRoute("GET", "api/federation-links", Role.MONITORING, get_federation_links),
    ApiRoute("GET", "api/federation-links/{vhost}", Role.MONITORING, get_federation_links),
    ApiRoute("GET", "api/shovels", Role.MONITORING, get_shovels),
    ApiRoute("GET", "api/shovels/{vhost}", Role.MONITORING, get_shovels),
    ApiRoute("POST", "api/amqpd/policies/{vhost}/preview", Role.POLICYMAKER, partial(preview, False), quiet=True),
    ApiRoute(
        "POST", "api/amqpd/operator-policies/{vhost}/preview", Role.ADMINISTRATOR, partial(preview, True), quiet=True
    ),
)
