"""Policies: /policies and /operator-policies, of all vhosts, of one, one of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.vhost import policies
from amqpd.broker.vhost.pending import finished
from amqpd.broker.vhost.policy_keys import InvalidPolicy
from amqpd.management.request import CREATED, NO_CONTENT, BadRequest, Call, NotThere, Reply, Role, clean_name, key_missing
from amqpd.management.listing import listing, one
from amqpd.management.router import Route

if TYPE_CHECKING:
    from amqpd.broker.vhost.policy_table import Policy


def policy_item(policy: Policy) -> dict[str, Any]:
    """rabbit: in this order."""
    row = policy.row
    return {
        "vhost": row.vhost,
        "name": row.name,
        "pattern": row.pattern,
        "apply-to": row.apply_to,
        "definition": dict(policy.definition),
        "priority": row.priority,
    }


async def get_policies(operator: bool, call: Call) -> Reply:
    """Policies, of all virtual hosts or of one; operator policies likewise."""
    found = [policy for vhost in call.vhosts() for policy in vhost.policies.all(operator)]
    return await listing(call, found, policy_item, lambda policy: policy.row.name)


async def get_policy(operator: bool, call: Call) -> Reply:
    """One policy."""
    return one(call, policy_item(_found(operator, call)))


async def put_policy(operator: bool, call: Call) -> Reply:
    """Sets the policy; 201 for a new one, 204 for another of its name, once every queue and exchange obeys it; 400
    for what
    is none."""
    vhost = call.vhost()
    name = clean_name(call.params["name"], "a policy")
    fields = call.fields()
    if missing := [key for key in ("pattern", "definition") if key not in fields]:
        raise key_missing(*missing)
    value: dict[str, Any] = {"priority": 0, **{key: fields[key] for key in policies.FIELDS if key in fields}}
    try:
        new = await finished(partial(policies.declare, vhost, name, value, operator))
    except InvalidPolicy as error:
        raise BadRequest(str(error)) from None
    return CREATED if new else NO_CONTENT


async def delete_policy(operator: bool, call: Call) -> Reply:
    """Clears the policy."""
    policy = _found(operator, call)
    await finished(partial(policies.clear, call.vhost(), policy))
    return NO_CONTENT


def _found(operator: bool, call: Call) -> Policy:
    policy = call.vhost().policies.get(call.params["name"], operator)
    if policy is None:
        raise NotThere(NotThere.text)
    return policy


def _routes(path: str, operator: bool, role: Role) -> tuple[Route, ...]:
    return (
        Route("GET", path, Role.MANAGEMENT, partial(get_policies, operator)),
        Route("GET", f"{path}/{{vhost}}", Role.MANAGEMENT, partial(get_policies, operator)),
        Route("GET", f"{path}/{{vhost}}/{{name}}", role, partial(get_policy, operator)),
        Route("PUT", f"{path}/{{vhost}}/{{name}}", role, partial(put_policy, operator)),
        Route("DELETE", f"{path}/{{vhost}}/{{name}}", role, partial(delete_policy, operator)),
    )


ROUTES: Final = (
    *_routes("api/policies", False, Role.POLICYMAKER),
    *_routes("api/operator-policies", True, Role.ADMINISTRATOR),
)
