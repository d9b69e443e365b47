"""Limits: /vhost-limits, /user-limits. One at a time, as RabbitMQ's API has it; `amqpctl` sets several at once."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqpd.broker.vhost import limits
from amqpd.broker.vhost.pending import finished
from amqpd.broker.vhost.limits import InvalidLimits
from amqpd.management.request import NO_CONTENT, BadRequest, Call, NotAuthorised, Reply, Role
from amqpd.management.listing import listing
from amqpd.management.router import Route


async def get_vhost_limits(call: Call) -> Reply:
    """Limits of all virtual hosts that have any."""
    items = [
        {"vhost": vhost.name, "value": vhost.limits.value} for vhost in call.vhosts() if vhost.limits.value
    ]
    return await listing(call, items, lambda item: item, lambda item: str(item["vhost"]))


async def put_vhost_limit(call: Call) -> Reply:
    """Sets a limit of the virtual host."""
    vhost = call.any_vhost()
    value = {**vhost.limits.value, call.params["name"]: call.given("value")}
    try:
        await finished(partial(limits.declare, vhost, limits.PARAMETER, value))
    except InvalidLimits as error:
        raise BadRequest(str(error)) from None
    return NO_CONTENT


async def delete_vhost_limit(call: Call) -> Reply:
    """Clears a limit of the virtual host. rabbit: one that is not set is a success."""
    vhost = call.any_vhost()
    value = {name: limit for name, limit in vhost.limits.value.items() if name != call.params["name"]}
    if value != vhost.limits.value:
        await finished(partial(limits.declare, vhost, limits.PARAMETER, value))
    return NO_CONTENT


async def get_user_limits(call: Call) -> Reply:
    """Limits of all users that have any; without the tag monitoring only one's own."""
    only = call.params.get("user")
    own = call.caller.user.name
    if only != own and not call.caller.has(Role.MONITORING):
        if only is not None:
            raise NotAuthorised("Not monitoring user")
        only = own
    if only is not None:
        call.broker.auth.user(only)
    items = [{"user": user, "value": value} for user, value in call.broker.user_limits.all() if only in (None, user)]
    return await listing(call, items, lambda item: item, lambda item: str(item["user"]))


async def put_user_limit(call: Call) -> Reply:
    """Sets a limit of the user."""
    _known_user(call)
    await _set_user_limits(call, {call.params["name"]: call.given("value")})
    return NO_CONTENT


def _known_user(call: Call) -> None:
    """rabbit: 400, as what is given is wrong, and not what is asked for. Raises: BadRequest."""
    if not any(row.name == call.params["user"] for row in call.broker.auth.users()):
        raise BadRequest(f"user '{call.params['user']}' does not exist")


async def put_user_limits(call: Call) -> Reply:
    """Several at once, `amqpctl set_user_limits`: the others stay as they are."""
    value = call.given("value")
    if not isinstance(value, dict):
        raise BadRequest("value must be an object")
    await _set_user_limits(call, value)
    return NO_CONTENT


async def _set_user_limits(call: Call, value: dict[str, Any]) -> None:
    user, user_limits = call.params["user"], call.broker.user_limits
    async with call.broker.auth.changing:
        call.broker.auth.user(user)
        try:
            await finished(partial(user_limits.declare, user, {**user_limits.get(user), **value}))
        except InvalidLimits as error:
            raise BadRequest(str(error)) from None


async def delete_user_limit(call: Call) -> Reply:
    """Clears a limit of the user, or with no name all. rabbit: one that is not set is a success."""
    user, user_limits = call.params["user"], call.broker.user_limits
    async with call.broker.auth.changing:
        call.broker.auth.user(user)
        name = call.params.get("name")
        value = {other: limit for other, limit in user_limits.get(user).items() if name not in (None, other)}
        if value != user_limits.get(user):
            await finished(partial(user_limits.declare, user, value))
    return NO_CONTENT


_VHOST: Final = "api/vhost-limits"
_USER: Final = "api/user-limits"

ROUTES: Final = (
    Route("GET", _VHOST, Role.MANAGEMENT, get_vhost_limits),
    Route("GET", f"{_VHOST}/{{vhost}}", Role.MANAGEMENT, get_vhost_limits),
    Route("PUT", f"{_VHOST}/{{vhost}}/{{name}}", Role.ADMINISTRATOR, put_vhost_limit),
    Route("DELETE", f"{_VHOST}/{{vhost}}/{{name}}", Role.ADMINISTRATOR, delete_vhost_limit),
    Route("GET", _USER, Role.MANAGEMENT, get_user_limits),
    Route("GET", f"{_USER}/{{user}}", Role.MANAGEMENT, get_user_limits),
    Route("PUT", f"{_USER}/{{user}}/{{name}}", Role.ADMINISTRATOR, put_user_limit),
    Route("DELETE", f"{_USER}/{{user}}/{{name}}", Role.ADMINISTRATOR, delete_user_limit),
    Route("PUT", "api/amqpd/user-limits/{user}", Role.ADMINISTRATOR, put_user_limits),
    Route("DELETE", "api/amqpd/user-limits/{user}", Role.ADMINISTRATOR, delete_user_limit),
)
