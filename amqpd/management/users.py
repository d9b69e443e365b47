"""Handlers for users, permissions and login counters.

Only administrators may see or change users; `whoami` is for all. Login counters use RabbitMQ's paths and fields, and
`amqpctl list_node_auth_attempt_stats` shows them.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.auth.internal_backend import NoSuchUser
from amqpd.auth.passwords import algorithm_of
from amqpd.broker.vhost.pending import wait_done
from amqpd.management.listing import listing, object_reply
from amqpd.management.overview import check_node_name
from amqpd.management.request import (
    NO_CONTENT,
    ApiRequest,
    ApiResponse,
    BadRequest,
    ResourceExists,
    ResourceNotFound,
    Role,
    clean_name,
)
from amqpd.management.router import ApiRoute
from amqpd.management.time_slice import TimeSlice

if TYPE_CHECKING:
    from amqpd.broker.vhost.limits import UserLimits
    from amqpd.storage.metadata.rows import PermissionRow, TopicPermissionRow, UserRow


def user_item(limits: UserLimits, row: UserRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "password_hash": row.password_hash,
        "hashing_algorithm": row.hashing_algorithm,
        "tags": list(row.tags),
        "limits": limits.get(row.name),
    }


def permission_item(row: PermissionRow) -> dict[str, Any]:
    return {"user": row.user, "vhost": row.vhost, "configure": row.configure, "write": row.write, "read": row.read}


def topic_item(row: TopicPermissionRow) -> dict[str, Any]:
    return {"user": row.user, "vhost": row.vhost, "exchange": row.exchange, "write": row.write, "read": row.read}


def tags_of(value: object) -> list[str]:
    """Return tags from a list or a text with commas (RabbitMQ). Raises: BadRequest."""
    if isinstance(value, str):
        return [word for word in (part.strip() for part in value.split(",")) if word]
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return list(value)
    raise BadRequest("tags must be text with commas, or a list of words")


async def whoami(call: ApiRequest) -> ApiResponse:
    """Return name and tags of the caller."""
    user = call.caller.user
    return object_reply(
        call, {"name": user.name, "tags": list(user.tags), "is_internal_user": not call.caller.operator}
    )


async def get_users(call: ApiRequest) -> ApiResponse:
    """List users with tags and hashes. With `vhosts=true` also the virtual hosts that each may use."""
    shown = partial(user_item, call.broker.user_limits)
    if not call.query_shows("vhosts"):
        return await listing(call, call.broker.auth.users(), shown, lambda row: row.name)
    entered: dict[str, list[str]] = {}
    for row in call.broker.auth.permissions():
        entered.setdefault(row.user, []).append(row.vhost)
    return await listing(
        call,
        call.broker.auth.users(),
        lambda row: {**shown(row), "vhosts": sorted(entered.get(row.name, ()))},
        lambda row: row.name,
    )


async def get_users_without_permissions(call: ApiRequest) -> ApiResponse:
    """List users without permissions in any virtual host."""
    known = {row.user for row in call.broker.auth.permissions()}
    rows = [row for row in call.broker.auth.users() if row.name not in known]
    return await listing(call, rows, partial(user_item, call.broker.user_limits), lambda row: row.name)


async def get_user(call: ApiRequest) -> ApiResponse:
    """Return one user."""
    return object_reply(call, user_item(call.broker.user_limits, call.broker.auth.user(call.params["user"])))


async def put_user(call: ApiRequest) -> ApiResponse:
    """Create or change a user.

    Answers 201 for a new one, 204 for changed password, tags and limits; limits that the body does not name are kept.
    With `If-None-Match: *`, 412 if the user exists.
    """
    name = call.params["user"]
    auth = call.broker.auth
    exists = any(row.name == name for row in auth.users())
    if exists and call.headers.get("If-None-Match") == "*":
        raise ResourceExists(f"user '{name}' already exists")
    body = call.fields()
    if "tags" not in body:  # RabbitMQ: so that no user loses its tags by mistake
        raise BadRequest("tags_not_present")
    tags = tags_of(body["tags"])
    if body.get("password") is not None and body.get("password_hash") is not None:
        raise BadRequest("both_password_and_password_hash_are_provided")
    if limits := body.get("limits"):
        call.broker.user_limits.row(name, limits)
    if "password_hash" in body and body["password_hash"] is not None:
        hashed, given = call.text("password_hash"), body.get("hashing_algorithm")
        # RabbitMQ: with an empty hash no password is accepted
        await auth.add_user(
            name,
            tags=tags,
            password_hash=hashed or None,
            hashing_algorithm=algorithm_of(hashed) if given is None else call.text("hashing_algorithm"),
            replace=True,
        )
    elif "password" in body:
        await auth.add_user(name, call.text("password").encode(), tags=tags, replace=True)
    else:
        # RabbitMQ: no password is accepted, but a certificate may be
        await auth.add_user(name, tags=tags, replace=True)
    if limits:
        await set_user_limits(call, limits)
    return ApiResponse(204 if exists else 201)


async def set_user_limits(call: ApiRequest, value: dict[str, Any]) -> None:
    """Set limits of the user in the path and keep the others. Raises: BadRequest, NoSuchUser."""
    user, user_limits = call.params["user"], call.broker.user_limits
    async with call.broker.auth.change_lock:
        call.broker.auth.user(user)
        await wait_done(partial(user_limits.declare, user, {**user_limits.get(user), **value}))


async def put_password(call: ApiRequest) -> ApiResponse:
    """Change the password and keep the tags. With an empty `password_hash` the user has no password."""
    name = call.params["user"]
    if call.fields().get("password_hash") == "":
        await call.broker.auth.change_password(name)
    else:
        await call.broker.auth.change_password(name, call.text("password").encode())
    return NO_CONTENT


async def put_tags(call: ApiRequest) -> ApiResponse:
    """Set the tags and keep the password."""
    await call.broker.auth.set_tags(call.params["user"], tags_of(call.fields().get("tags", "")))
    return NO_CONTENT


async def delete_user(call: ApiRequest) -> ApiResponse:
    """Delete a user and close its connections."""
    await call.broker.auth.delete_user(call.params["user"])
    return NO_CONTENT


async def bulk_delete(call: ApiRequest) -> ApiResponse:
    """Delete several users.

    RabbitMQ: 400 if one does not exist. RabbitMQ has then deleted those before it; amqpd deletes none.
    """
    names = call.fields().get("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest("users must be a list of names")
    known = {row.name for row in call.broker.auth.users()}
    if not known.issuperset(names):
        raise BadRequest(f"no user '{min(set(names) - known)}'")
    slices = TimeSlice()
    for name in names:
        with suppress(NoSuchUser):  # deleted meanwhile
            await call.broker.auth.delete_user(name)
        await slices.yield_if_due()
    return NO_CONTENT


# -- permissions -----------------------------------------------------------------------------------------------------


async def get_permissions(call: ApiRequest) -> ApiResponse:
    """List the permissions of all users or of one.

    The query `name` filters by user, or by virtual host for one user.
    """
    rows = call.broker.auth.permissions(call.params.get("user"), call.params.get("vhost"))
    return await listing(call, rows, permission_item, lambda row: row.vhost if "user" in call.params else row.user)


async def get_permission(call: ApiRequest) -> ApiResponse:
    """Return the permissions of a user in the virtual host."""
    return object_reply(call, permission_item(_permission(call)))


def _permission(call: ApiRequest) -> PermissionRow:
    """Return the permissions. Raises: ResourceNotFound."""
    rows = call.broker.auth.permissions(call.params["user"], call.params["vhost"])
    if not rows:
        raise ResourceNotFound(f"user '{call.params['user']}' has no permissions in vhost '{call.params['vhost']}'")
    return rows[0]


async def put_permission(call: ApiRequest) -> ApiResponse:
    """Set the permissions of a user in the virtual host. Answers 201 for new ones, 204 for changed ones."""
    user, vhost = call.params["user"], call.params["vhost"]
    patterns = [call.text(name) for name in ("configure", "write", "read")]
    _check_user_and_vhost(call, user, vhost)
    exists = bool(call.broker.auth.permissions(user, vhost))
    await call.broker.auth.set_permissions(user, vhost, *patterns)
    return ApiResponse(204 if exists else 201)


def check_user(call: ApiRequest, user: str) -> None:
    """Raise BadRequest unless the user exists. RabbitMQ: 400 instead of 404, because the request is at fault."""
    if not any(row.name == user for row in call.broker.auth.users()):
        raise BadRequest(f"user '{user}' does not exist")


def _check_user_and_vhost(call: ApiRequest, user: str, vhost: str) -> None:
    check_user(call, user)
    if not call.broker.vhosts.exists(vhost):
        raise BadRequest(f"vhost '{vhost}' does not exist")


async def delete_permission(call: ApiRequest) -> ApiResponse:
    """Remove the permissions of a user in the virtual host."""
    row = _permission(call)
    await call.broker.auth.clear_permissions(row.user, row.vhost)
    return NO_CONTENT


async def get_topic_permissions(call: ApiRequest) -> ApiResponse:
    """List the topic permissions of all users or of one.

    The query `name` filters by user, or for one user by virtual host and exchange.
    """
    rows = call.broker.auth.topic_permissions(call.params.get("user"), call.params.get("vhost"))
    own = "user" in call.params
    return await listing(call, rows, topic_item, lambda row: (row.vhost, row.exchange) if own else row.user)


async def get_topic_permission(call: ApiRequest) -> ApiResponse:
    """List the topic permissions of a user in the virtual host, one per exchange."""
    rows = call.broker.auth.topic_permissions(call.params["user"], call.params["vhost"])
    exchange = call.params.get("exchange")
    rows = [row for row in rows if exchange in (None, row.exchange)]
    if not rows:
        user, vhost = call.params["user"], call.params["vhost"]
        raise ResourceNotFound(f"user '{user}' has no topic permissions in vhost '{vhost}'")
    return await listing(call, rows, topic_item, lambda row: row.user)


async def put_topic_permission(call: ApiRequest) -> ApiResponse:
    """Set the routing keys that a user may write and read at an exchange."""
    user, vhost, exchange = call.params["user"], call.params["vhost"], call.text("exchange")
    _check_user_and_vhost(call, user, vhost)
    if exchange:  # an empty one is the default exchange
        clean_name(exchange, "an exchange")
    rows = call.broker.auth.topic_permissions(user, vhost)
    exists = any(row.exchange == exchange for row in rows)
    await call.broker.auth.set_topic_permissions(user, vhost, exchange, call.text("write"), call.text("read"))
    return ApiResponse(204 if exists else 201)


async def delete_topic_permission(call: ApiRequest) -> ApiResponse:
    """Remove the topic permissions of a user."""
    user, vhost, exchange = call.params["user"], call.params["vhost"], call.params.get("exchange")
    rows = call.broker.auth.topic_permissions(user, vhost)
    if not any(exchange in (None, row.exchange) for row in rows):
        raise ResourceNotFound(f"user '{user}' has no such topic permission in vhost '{vhost}'")
    await call.broker.auth.clear_topic_permissions(user, vhost, exchange)
    return NO_CONTENT


def _counts(count: list[int]) -> dict[str, int]:
    right, wrong = count
    return {"auth_attempts": right + wrong, "auth_attempts_succeeded": right, "auth_attempts_failed": wrong}


async def by_protocol(call: ApiRequest) -> ApiResponse:
    """List login counters by protocol."""
    check_node_name(call)
    found = call.broker.auth.login_stats.by_protocol

    def item(protocol: str) -> dict[str, Any]:
        return {"protocol": protocol, **_counts(found[protocol])}

    return await listing(call, list(found), item, str)


async def by_source(call: ApiRequest) -> ApiResponse:
    """List login counters by source since `PUT /api/amqpd/auth_attempt_sources`, at most 10,000."""
    check_node_name(call)
    found = list(call.broker.auth.login_stats.by_source.items())

    def item(entry: tuple[Any, list[int]]) -> dict[str, Any]:
        source, count = entry
        return {
            "remote_address": source.address,
            "username": source.user,
            "protocol": source.protocol,
            **_counts(count),
        }

    return await listing(call, found, item, lambda entry: str(entry[0]))


async def reset_counters(call: ApiRequest) -> ApiResponse:
    """Reset the login counters."""
    check_node_name(call)
    call.broker.auth.login_stats.reset()
    return NO_CONTENT


async def reset_source_counters(call: ApiRequest) -> ApiResponse:
    """Reset the login counters by source."""
    check_node_name(call)
    call.broker.auth.login_stats.reset(sources_only=True)
    return NO_CONTENT


async def track_sources(call: ApiRequest) -> ApiResponse:
    """Start or stop counting logins by address and user. Stopping resets them."""
    attempts = call.broker.auth.login_stats
    attempts.track_sources = call.flag("on")
    if not attempts.track_sources:
        attempts.reset(sources_only=True)
    return NO_CONTENT


_PATH: Final = "api/auth/attempts/{node}"


ROUTES: Final = (
    ApiRoute("GET", "api/whoami", Role.MANAGEMENT, whoami),
    ApiRoute("GET", "api/users", Role.ADMINISTRATOR, get_users),
    ApiRoute("GET", "api/users/without-permissions", Role.ADMINISTRATOR, get_users_without_permissions),
    ApiRoute("POST", "api/users/bulk-delete", Role.ADMINISTRATOR, bulk_delete),
    ApiRoute("GET", "api/users/{user}", Role.ADMINISTRATOR, get_user),
    ApiRoute("PUT", "api/users/{user}", Role.ADMINISTRATOR, put_user),
    ApiRoute("DELETE", "api/users/{user}", Role.ADMINISTRATOR, delete_user),
    ApiRoute("GET", "api/users/{user}/permissions", Role.ADMINISTRATOR, get_permissions),
    ApiRoute("GET", "api/users/{user}/topic-permissions", Role.ADMINISTRATOR, get_topic_permissions),
    ApiRoute("GET", "api/permissions", Role.ADMINISTRATOR, get_permissions),
    ApiRoute("GET", "api/permissions/{vhost}/{user}", Role.ADMINISTRATOR, get_permission),
    ApiRoute("PUT", "api/permissions/{vhost}/{user}", Role.ADMINISTRATOR, put_permission),
    ApiRoute("DELETE", "api/permissions/{vhost}/{user}", Role.ADMINISTRATOR, delete_permission),
    ApiRoute("GET", "api/topic-permissions", Role.ADMINISTRATOR, get_topic_permissions),
    ApiRoute("GET", "api/topic-permissions/{vhost}/{user}", Role.ADMINISTRATOR, get_topic_permission),
    ApiRoute("PUT", "api/topic-permissions/{vhost}/{user}", Role.ADMINISTRATOR, put_topic_permission),
    ApiRoute("DELETE", "api/topic-permissions/{vhost}/{user}", Role.ADMINISTRATOR, delete_topic_permission),
    ApiRoute("GET", "api/topic-permissions/{vhost}/{user}/{exchange}", Role.ADMINISTRATOR, get_topic_permission),
    ApiRoute("DELETE", "api/topic-permissions/{vhost}/{user}/{exchange}", Role.ADMINISTRATOR, delete_topic_permission),
    ApiRoute("PUT", "api/amqpd/users/{user}/password", Role.ADMINISTRATOR, put_password),
    ApiRoute("PUT", "api/amqpd/users/{user}/tags", Role.ADMINISTRATOR, put_tags),
    ApiRoute("GET", _PATH, Role.MONITORING, by_protocol),
    ApiRoute("DELETE", _PATH, Role.ADMINISTRATOR, reset_counters),
    ApiRoute("GET", f"{_PATH}/source", Role.MONITORING, by_source),
    ApiRoute("DELETE", f"{_PATH}/source", Role.ADMINISTRATOR, reset_source_counters),
    ApiRoute("PUT", "api/amqpd/auth_attempt_sources", Role.ADMINISTRATOR, track_sources),
)
