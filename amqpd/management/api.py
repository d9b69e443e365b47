"""The route table: every path of the admin API, what its caller must be, and who answers.

A path is cut at its slashes before it is decoded, so a name may hold any character, a slash included (%2F), and no name
ever becomes a path. `{vhost}` and the like stand for one name. Each route says its role; one that forgot to would not
be a Route. Permissions within a vhost come on top, in the handlers.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from amqpd.management import amqpctl as own
from amqpd.management import (
    bindings,
    connections,
    definitions,
    exchanges,
    exports,
    logs,
    overview,
    queues,
    users,
    vhosts,
)
from amqpd.management import definitions_import as imports
from amqpd.management.call import (
    BadRequest,
    Call,
    Handler,
    MethodNotAllowed,
    NotBuilt,
    NotThere,
    Reply,
    Role,
    reply,
)


class Route(NamedTuple):
    """path: segments, without a slash at either end. definitions: the body is a document of many items."""

    method: str
    path: str
    role: Role
    handler: Handler
    definitions: bool = False


async def none_set(call: Call) -> Reply:
    """The list of something that cannot be set in this version: tools that ask are told that there is none."""
    if "vhost" in call.params:
        call.vhost()
    return reply([])


async def not_built(call: Call) -> Reply:
    """A path of RabbitMQ's that this version does not serve yet."""
    raise NotBuilt("this part of the management API is not part of this version of amqpd")


_M, _MON, _ADM, _PUB, _POL = Role.MANAGEMENT, Role.MONITORING, Role.ADMINISTRATOR, Role.PUBLIC, Role.POLICYMAKER
_X: Final = "api/exchanges/{vhost}/{exchange}"
_Q: Final = "api/queues/{vhost}/{queue}"
_B: Final = "api/bindings/{vhost}"
_BQ: Final = _B + "/e/{exchange}/q/{queue}"
_BX: Final = _B + "/e/{exchange}/e/{target}"

ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "", _PUB, overview.page),
    Route("GET", "metrics", _PUB, overview.metrics),
    Route("GET", "api/auth", _PUB, overview.auth_attempts),
    # the broker
    Route("GET", "api/overview", _M, overview.overview),
    Route("GET", "api/cluster-name", _M, overview.cluster_name),
    Route("GET", "api/extensions", _M, overview.extensions),
    Route("GET", "api/nodes", _MON, overview.get_nodes),
    Route("GET", "api/nodes/{node}", _MON, overview.get_node),
    Route("GET", "api/aliveness-test/{vhost}", _M, overview.aliveness),
    Route("GET", "api/healthchecks/node", _MON, overview.check_node),
    Route("GET", "api/healthchecks/node/{node}", _MON, overview.check_node),
    Route("GET", "api/health/checks/alarms", _MON, overview.check_alarms),
    Route("GET", "api/health/checks/local-alarms", _MON, overview.check_alarms),
    Route("GET", "api/health/checks/virtual-hosts", _MON, overview.check_vhosts),
    Route("GET", "api/health/checks/port-listener/{port}", _MON, overview.check_port),
    Route("GET", "api/health/checks/protocol-listener/{protocol}", _MON, overview.check_protocol),
    Route("GET", "api/health/checks/node-is-quorum-critical", _MON, overview.check_quorum),
    Route("GET", "api/health/checks/node-is-mirror-sync-critical", _MON, overview.check_quorum),
    # connections, channels, consumers
    Route("GET", "api/connections", _M, connections.get_connections),
    Route("GET", "api/connections/{connection}", _M, connections.get_connection),
    Route("DELETE", "api/connections/{connection}", _M, connections.delete_connection),
    Route("GET", "api/connections/{connection}/channels", _M, connections.get_connection_channels),
    Route("GET", "api/vhosts/{vhost}/connections", _M, connections.get_connections),
    Route("GET", "api/vhosts/{vhost}/channels", _M, connections.get_channels),
    Route("GET", "api/channels", _M, connections.get_channels),
    Route("GET", "api/channels/{channel}", _M, connections.get_channel),
    Route("GET", "api/consumers", _M, connections.get_consumers),
    Route("GET", "api/consumers/{vhost}", _M, connections.get_consumers),
    # exchanges
    Route("GET", "api/exchanges", _M, exchanges.get_exchanges),
    Route("GET", "api/exchanges/{vhost}", _M, exchanges.get_exchanges),
    Route("GET", _X, _M, exchanges.get_exchange),
    Route("PUT", _X, _M, exchanges.put_exchange),
    Route("DELETE", _X, _M, exchanges.delete_exchange),
    Route("POST", _X + "/publish", _M, exchanges.publish),
    Route("GET", _X + "/bindings/source", _M, bindings.get_source_bindings),
    Route("GET", _X + "/bindings/destination", _M, bindings.get_destination_bindings),
    # queues
    Route("GET", "api/queues", _M, queues.get_queues),
    Route("GET", "api/queues/{vhost}", _M, queues.get_queues),
    Route("GET", _Q, _M, queues.get_queue),
    Route("PUT", _Q, _M, queues.put_queue),
    Route("DELETE", _Q, _M, queues.delete_queue),
    Route("GET", _Q + "/bindings", _M, queues.get_queue_bindings),
    Route("DELETE", _Q + "/contents", _M, queues.purge_queue),
    Route("POST", _Q + "/get", _M, queues.get_messages),
    # bindings
    Route("GET", "api/bindings", _M, bindings.get_bindings),
    Route("GET", _B, _M, bindings.get_bindings),
    Route("GET", _BQ, _M, bindings.get_between),
    Route("POST", _BQ, _M, bindings.post_binding),
    Route("GET", _BQ + "/{props}", _M, bindings.get_binding),
    Route("DELETE", _BQ + "/{props}", _M, bindings.delete_binding),
    Route("GET", _BX, _M, bindings.get_between),
    Route("POST", _BX, _M, bindings.post_binding),
    Route("GET", _BX + "/{props}", _M, bindings.get_binding),
    Route("DELETE", _BX + "/{props}", _M, bindings.delete_binding),
    # vhosts
    Route("GET", "api/vhosts", _M, vhosts.get_vhosts),
    Route("GET", "api/vhosts/{vhost}", _M, vhosts.get_vhost),
    Route("PUT", "api/vhosts/{vhost}", _ADM, vhosts.put_vhost),
    Route("DELETE", "api/vhosts/{vhost}", _ADM, vhosts.delete_vhost),
    Route("GET", "api/vhosts/{vhost}/permissions", _ADM, vhosts.get_vhost_permissions),
    Route("GET", "api/vhosts/{vhost}/topic-permissions", _ADM, vhosts.get_vhost_topic_permissions),
    # users and permissions
    Route("GET", "api/whoami", _M, users.whoami),
    Route("GET", "api/users", _ADM, users.get_users),
    Route("GET", "api/users/without-permissions", _ADM, users.get_users_without_permissions),
    Route("POST", "api/users/bulk-delete", _ADM, users.bulk_delete),
    Route("GET", "api/users/{user}", _ADM, users.get_user),
    Route("PUT", "api/users/{user}", _ADM, users.put_user),
    Route("DELETE", "api/users/{user}", _ADM, users.delete_user),
    Route("GET", "api/users/{user}/permissions", _ADM, users.get_permissions),
    Route("GET", "api/users/{user}/topic-permissions", _ADM, users.get_topic_permissions),
    Route("GET", "api/permissions", _ADM, users.get_permissions),
    Route("GET", "api/permissions/{vhost}/{user}", _ADM, users.get_permission),
    Route("PUT", "api/permissions/{vhost}/{user}", _ADM, users.put_permission),
    Route("DELETE", "api/permissions/{vhost}/{user}", _ADM, users.delete_permission),
    Route("GET", "api/topic-permissions", _ADM, users.get_topic_permissions),
    Route("GET", "api/topic-permissions/{vhost}/{user}", _ADM, users.get_topic_permission),
    Route("PUT", "api/topic-permissions/{vhost}/{user}", _ADM, users.put_topic_permission),
    Route("DELETE", "api/topic-permissions/{vhost}/{user}", _ADM, users.delete_topic_permission),
    Route("DELETE", "api/topic-permissions/{vhost}/{user}/{exchange}", _ADM, users.delete_topic_permission),
    # definitions
    Route("GET", "api/definitions", _ADM, definitions.get_definitions),
    Route("GET", "api/definitions/{vhost}", _ADM, definitions.get_vhost_definitions),
    Route("POST", "api/definitions", _ADM, imports.post_definitions, True),
    Route("POST", "api/definitions/{vhost}", _ADM, imports.post_definitions, True),
    # not built yet, said so
    Route("GET", "api/policies", _M, none_set),
    Route("GET", "api/policies/{vhost}", _M, none_set),
    Route("PUT", "api/policies/{vhost}/{name}", _POL, not_built),
    Route("DELETE", "api/policies/{vhost}/{name}", _POL, not_built),
    Route("GET", "api/operator-policies", _M, none_set),
    Route("GET", "api/operator-policies/{vhost}", _M, none_set),
    Route("PUT", "api/operator-policies/{vhost}/{name}", _ADM, not_built),
    Route("GET", "api/parameters", _POL, none_set),
    Route("GET", "api/parameters/{component}", _POL, none_set),
    Route("GET", "api/parameters/{component}/{vhost}", _POL, none_set),
    Route("PUT", "api/parameters/{component}/{vhost}/{name}", _POL, not_built),
    Route("GET", "api/global-parameters", _POL, none_set),
    Route("PUT", "api/global-parameters/{name}", _ADM, not_built),
    Route("GET", "api/vhost-limits", _M, none_set),
    Route("GET", "api/vhost-limits/{vhost}", _M, none_set),
    Route("PUT", "api/vhost-limits/{vhost}/{name}", _ADM, not_built),
    Route("GET", "api/user-limits", _M, none_set),
    Route("PUT", "api/user-limits/{user}/{name}", _ADM, not_built),
    Route("GET", "api/feature-flags", _MON, none_set),
    # ours
    Route("GET", "api/amqpd/ping", _M, own.ping),
    Route("GET", "api/amqpd/version", _M, own.version),
    Route("GET", "api/amqpd/status", _MON, own.status),
    Route("POST", "api/amqpd/stop_app", _ADM, own.stop_app),
    Route("POST", "api/amqpd/start_app", _ADM, own.start_app),
    Route("POST", "api/amqpd/stop", _ADM, own.stop),
    Route("POST", "api/amqpd/authenticate_user", _ADM, own.authenticate_user),
    Route("POST", "api/amqpd/close_connection", _ADM, own.close_connection),
    Route("POST", "api/amqpd/close_all_connections", _ADM, own.close_all_connections),
    Route("PUT", "api/amqpd/memory_high_watermark", _ADM, own.memory_high_watermark),
    Route("PUT", "api/amqpd/users/{user}/password", _ADM, users.put_password),
    Route("PUT", "api/amqpd/users/{user}/tags", _ADM, users.put_tags),
    Route("POST", "api/amqpd/purge_queue", _M, own.purge_queue),
    Route("POST", "api/amqpd/delete_queue", _M, own.delete_queue),
    Route("GET", "api/amqpd/logs/{vhost}", _M, logs.get_logs),
    Route("GET", "api/amqpd/logs/{vhost}/{queue}", _M, logs.get_log),
    Route("GET", "api/amqpd/logs/{vhost}/{queue}/{file}", _M, logs.get_log_file),
    Route("GET", "api/amqpd/exports/{vhost}/{queue}", _M, exports.get_exports),
    Route("PUT", "api/amqpd/exports/{vhost}/{queue}", _M, exports.put_export),
    Route("POST", "api/amqpd/exports/{vhost}/{queue}", _M, exports.commit_export),
    Route("DELETE", "api/amqpd/exports/{vhost}/{queue}/{name}", _M, exports.delete_export),
)


# Changes that are traffic rather than an operator's: the log tells of them at level debug.
QUIET: Final[frozenset[Handler]] = frozenset(
    {exchanges.publish, queues.get_messages, exports.commit_export, own.authenticate_user}
)


class _Node:
    """One segment of the paths: what may follow it, and who answers when nothing does."""

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.any: _Node | None = None
        self.routes: dict[str, tuple[Route, list[str]]] = {}


class Router:
    """Finds the route of a raw path. Built once."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._root = _Node()
        for route in routes:
            node, names = self._root, list[str]()
            for segment in filter(None, route.path.split("/")):
                if segment.startswith("{"):
                    names.append(segment[1:-1])
                    if node.any is None:
                        node.any = _Node()
                    node = node.any
                else:
                    node = node.words.setdefault(segment, _Node())
            if route.method in node.routes:
                raise ValueError(f"two routes for {route.method} {route.path}")
            node.routes[route.method] = (route, names)

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """The route and the decoded names. raw_path: as it came, without the query. HEAD is GET.

        Raises: NotThere, MethodNotAllowed, BadRequest for what is no UTF-8.
        """
        segments = raw_path.split("/")[1:]
        if segments and segments[-1] == "":
            segments.pop()  # rabbit: a slash at the end is no matter
        node = self._root
        values: list[str] = []
        for segment in segments:
            following = node.words.get(segment)
            if following is None:
                following = node.any
                if following is None:
                    raise NotThere("Not Found")
                values.append(_decoded(segment))
            node = following
        if not node.routes:
            raise NotThere("Not Found")
        found = node.routes.get("GET" if method == "HEAD" else method)
        if found is None:
            allowed = sorted({*node.routes, *(("HEAD",) if "GET" in node.routes else ())})
            raise MethodNotAllowed(f"{method} is not for this path", {"Allow": ", ".join(allowed)})
        route, names = found
        return route, dict(zip(names, values, strict=True))


def _decoded(segment: str) -> str:
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise BadRequest("a name in the path is not UTF-8") from None
