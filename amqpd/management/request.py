"""Requests and responses of the HTTP API, errors, and what handlers may use of the server and the cluster.

A handler gets an `ApiRequest`, authenticated and parsed, and returns an `ApiResponse`. `ApiRequest` does not depend
on aiohttp. It also has the checks that handlers share: vhost, queue and exchange of the path, and permissions, with
the same patterns as on AMQP. A caller from the unix socket is the operator and passes every check.

A caller without the monitoring tag cannot distinguish a vhost that it may not see from one that does not exist.

`ServerControl` and `ClusterControl` are the interfaces to the server and to the cluster. `amqpd.server` passes the
implementations, because this package may not import the server.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from amqpd.auth.internal_backend import User
from amqpd.auth.permissions import Kind, TopicKind

if TYPE_CHECKING:
    from amqpd.auth.internal_backend import InternalBackend
    from amqpd.broker.broker import Broker
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.config import Settings
    from amqpd.connection.registry import ConnectionRegistry
    from amqpd.kafka_server.server import KafkaServer
    from amqpd.listeners import Listener
    from amqpd.management.sessions import LoginSessions
    from amqpd.management.stats import Rates
    from amqpd.process import Reloaded


DEFAULT_EXCHANGE: Final = "amq.default"
SESSION_NAME: Final = "admin API"
"""Name of the HTTP API's sessions, where a connection has its own name."""


class Role(IntEnum):
    """The role that a route requires. RabbitMQ: user tags."""

    PUBLIC = 0
    MANAGEMENT = 1
    POLICYMAKER = 2
    MONITORING = 3
    ADMINISTRATOR = 4


TAGS: Final[dict[Role, frozenset[str]]] = {
    Role.MANAGEMENT: frozenset({"management", "policymaker", "monitoring", "administrator"}),
    Role.POLICYMAKER: frozenset({"policymaker", "administrator"}),
    Role.MONITORING: frozenset({"monitoring", "administrator"}),
    Role.ADMINISTRATOR: frozenset({"administrator"}),
}


class ApiError(Exception):
    """An error response.

    Attributes:
        error: RabbitMQ's word for the error.
        reason: the text for users.
    """

    status = 500
    error = "internal_server_error"

    def __init_subclass__(cls, status: int | None = None, error: str = "") -> None:
        cls.status, cls.error = status or cls.status, error or cls.error

    def __init__(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.headers = dict(headers or {})


class BadRequest(ApiError, status=400, error="bad_request"):
    """The request is faulty."""


class PageOutOfRange(BadRequest, error="page_out_of_range"):
    """The list has no such page."""


class NotAuthorised(ApiError, status=401, error="not_authorised"):
    """RabbitMQ: 401 also for a missing tag or permission."""


class LoginFailed(NotAuthorised, error="not_authorized"):
    """Name or password are missing or wrong. RabbitMQ: another word than for a missing permission."""

    def __init__(self) -> None:
        super().__init__("Login failed", {"WWW-Authenticate": 'Basic realm="RabbitMQ Management"'})


class Forbidden(ApiError, status=403, error="forbidden"):
    """The request may come from a page of another site."""


class ResourceNotFound(ApiError, status=404, error="Object Not Found"):
    """A 404. Its body always has `text` as the reason; the actual reason is in `detail`."""

    text: Final = "Not Found"


class MethodNotAllowed(ApiError, status=405, error="Method Not Allowed"):
    """The path does not have this method."""


class TooLate(ApiError, status=408, error="request_timeout"):
    """The body did not arrive in time."""


class ResourceExists(ApiError, status=412, error="precondition_failed"):
    """A precondition of the request does not hold."""


class TooLarge(ApiError, status=413, error="payload_too_large"):
    """The body is too large."""


class NotJson(ApiError, status=415, error="unsupported_media_type"):
    """The body is not JSON."""


class LineTooLong(ApiError, status=431, error="request_header_fields_too_large"):
    """The path or a header is too long."""


class Unavailable(ApiError, status=503, error="service_unavailable"):
    """The broker cannot do this now."""


class AppIsStopped(Unavailable, error="app_stopped"):
    """AMQP was stopped by `amqpctl stop_app`, and the request needs it."""


class Principal(NamedTuple):
    """The caller of a request.

    Attributes:
        operator: the caller used the unix socket. Permissions do not apply to it.
    """

    user: User
    operator: bool

    def has(self, role: Role) -> bool:
        """Return whether a tag of the caller includes the role. RabbitMQ defines which tags include others."""
        return role == Role.PUBLIC or self.operator or not TAGS[role].isdisjoint(self.user.tags)


class ApiResponse(NamedTuple):
    """A response.

    Attributes:
        body: encoded, in one piece or in chunks; None for an empty one.
        file: path of a file with the body. The server answers range requests.
        compresses: the caller takes a range of the file compressed by zstd.
    """

    status: int
    body: bytes | list[bytes] | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    file: str | None = None
    compresses: bool = False


to_json: Final = json.JSONEncoder(separators=(",", ":")).encode
"""Encode a value as JSON of the HTTP API. RabbitMQ: no blank after a comma or a colon; clients compare such text."""

CREATED: Final = ApiResponse(201)
NO_CONTENT: Final = ApiResponse(204)


def reply(data: object, status: int = 200) -> ApiResponse:
    """Return a response with a small JSON body. Lists that can be long use `listing`."""
    return ApiResponse(status, to_json(data).encode())


@dataclass(eq=False)
class ApiRequest:
    """One request.

    Attributes:
        params: the names in the path, decoded.
        query: the last value of each name in the query.
        query_pairs: all names and values of the query, in order.
        body: decoded JSON, or None.
        sessions: logins of the web page.
        cluster: the cluster of this node, else None.
        part: another node asks for its part of a list. The answer has one item per line (`listing.py`).
    """

    broker: Broker
    server: ServerControl
    rates: Rates
    caller: Principal
    method: str
    params: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: object
    query_pairs: Sequence[tuple[str, str]] = ()
    sessions: LoginSessions | None = None
    cluster: ClusterControl | None = None
    part: bool = False

    @property
    def node(self) -> str:
        """Return this node's name, `amqpd@host`."""
        return self.broker.node_name

    # -- body and query ------------------------------------------------------------------------------------------------

    def fields(self) -> dict[str, Any]:
        """Return the body as a JSON object, {} if there is none. Raises: BadRequest."""
        if self.body is None:
            return {}
        if not isinstance(self.body, dict):
            raise BadRequest("the body must be a JSON object")
        return self.body

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text of the body. Raises: BadRequest, also if it is missing and there is no default."""
        value = self.fields().get(name, default)
        if value is None:
            raise missing_keys(name)
        if not isinstance(value, str):
            raise BadRequest(f"{name} must be text")
        return value

    def required(self, name: str) -> Any:
        """Return a value of the body, of any type. Raises: BadRequest if it is missing."""
        if name not in self.fields():
            raise missing_keys(name)
        return self.fields()[name]

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a boolean of the body. RabbitMQ: the texts "true" and "false" count too. Raises: BadRequest."""
        return parse_bool(name, self.fields().get(name, default))

    def query_flag(self, name: str) -> bool:
        """Return a boolean of the query that changes what the request does, such as `if-empty=true`. Default: False.

        Raises: BadRequest for any word except true and false, in any case.
        """
        return parse_bool(name, self.query.get(name, "false").lower())

    def query_shows(self, name: str) -> bool:
        """Return a boolean of the query that only shapes the answer. RabbitMQ: any word but `true` is false."""
        return is_true(self.query, name)

    def query_all(self, name: str) -> list[str]:
        """Return all values of a name in the query, in order: `family=a&family=b`."""
        return [value for key, value in self.query_pairs if key == name]

    def arguments(self) -> dict[str, object]:
        """Return `arguments` of the body. RabbitMQ: an empty list is an empty table. Raises: BadRequest."""
        value = self.fields().get("arguments")
        if value is None or value == []:
            return {}
        if not isinstance(value, dict):
            raise BadRequest("arguments must be an object")
        return value

    # -- permissions ---------------------------------------------------------------------------------------------------

    def require(self, role: Role) -> None:
        """Raise NotAuthorised unless the caller has the role."""
        if not self.caller.has(role):
            raise NotAuthorised(f"Not {role.name.lower()} user")

    def may_see(self, vhost: str) -> bool:
        """Return whether the caller may see the vhost: it has the monitoring tag or any permission in the vhost."""
        return self.caller.has(Role.MONITORING) or self.broker.auth.may_access_vhost(self.caller.user, vhost)

    def may_enter(self, vhost: str) -> bool:
        """Return whether the caller may change the vhost, within its permissions."""
        return self.caller.operator or self.broker.auth.may_access_vhost(self.caller.user, vhost)

    def vhosts(self) -> list[VHost]:
        """Return the vhosts that the caller may see, by name. With a vhost in the path: that one.

        Raises: as `vhost`.
        """
        if "vhost" in self.params:
            return [self.vhost()]
        return sorted((v for v in self.broker.vhosts.values() if self.may_see(v.name)), key=name_of)

    def vhost(self) -> VHost:
        """Return the vhost of the path. Raises: NotAuthorised, ResourceNotFound."""
        name = self.params["vhost"]
        allowed = self.may_see(name) if self.method == "GET" else self.may_enter(name)
        if not allowed and not (self.caller.has(Role.MONITORING) and name not in self.broker.vhosts):
            raise NotAuthorised("User not authorised to access virtual host")
        return self.any_vhost()

    def administered_vhost(self) -> VHost:
        """Return the vhost of the path, for its policies, parameters or definitions. Raises: as `vhost`.

        RabbitMQ: administrators need no permission in it.
        """
        return self.any_vhost() if self.caller.has(Role.ADMINISTRATOR) else self.vhost()

    def any_vhost(self, name: str | None = None) -> VHost:
        """Return a vhost, by default that of the path, without checking permissions. Raises: ResourceNotFound."""
        name = self.params["vhost"] if name is None else name
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise ResourceNotFound(f"vhost '{name}' does not exist")
        return vhost

    def queue(self) -> Queue:
        """Return the queue of the path. Raises: as `vhost`."""
        vhost = self.vhost()
        queue = vhost.find_queue(self.params["queue"])
        if queue is None:
            raise ResourceNotFound(f"no queue '{self.params['queue']}' in vhost '{vhost.name}'")
        return queue

    def permitted_queue(self, *kinds: Kind) -> Queue:
        """Return the queue of the path after checking these permissions and its exclusive owner.

        Raises: as `vhost`; NotAuthorised, ResourceLocked.
        """
        vhost, name = self.vhost(), self.params["queue"]
        for kind in kinds:
            self.check(vhost.name, kind, "queue", name)
        queue = self.queue()
        vhost.check_exclusive(queue, None)
        return queue

    def exchange(self, key: str = "exchange") -> Exchange:
        """Return the exchange of the path; `amq.default` is the default exchange. Raises: as `vhost`."""
        vhost = self.vhost()
        name = self.params[key]
        exchange = vhost.find_exchange("" if name == DEFAULT_EXCHANGE else name)
        if exchange is None:
            raise ResourceNotFound(f"no exchange '{name}' in vhost '{vhost.name}'")
        return exchange

    def check(self, vhost: str, kind: Kind, thing: str, name: str) -> None:
        """Raise NotAuthorised without the permission that AMQP requires. `thing` is queue, exchange or group."""
        if not self.is_allowed(vhost, kind, name):
            raise NotAuthorised(
                f"ACCESS_REFUSED - access to {thing} '{name or DEFAULT_EXCHANGE}' in vhost '{vhost}' refused for user "
                f"'{self.caller.user.name}'"
            )

    def is_allowed(self, vhost: str, kind: Kind, name: str) -> bool:
        """Return whether the caller has the permission. An empty name is the default exchange."""
        shown = name or DEFAULT_EXCHANGE
        return self.caller.operator or self.broker.auth.is_allowed(self.caller.user, vhost, kind, shown)

    def check_topic(self, vhost: str, exchange: Exchange, kind: TopicKind, keys: list[str]) -> None:
        """Raise NotAuthorised if a topic permission forbids one of the routing keys."""
        key = forbidden_key(self.caller, self.broker.auth, vhost, exchange, kind, keys)
        if key is not None:
            raise NotAuthorised(
                f"ACCESS_REFUSED - access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost}' "
                f"refused for user '{self.caller.user.name}'"
            )


def forbidden_key(
    caller: Principal, auth: InternalBackend, vhost: str, exchange: Exchange, kind: TopicKind, keys: list[str]
) -> str | None:
    """Return the first routing key that a topic permission forbids the caller; None if there is none."""
    if caller.operator or exchange.kind != "topic":
        return None
    return next((key for key in keys if not auth.is_topic_allowed(caller.user, vhost, exchange.name, kind, key)), None)


Handler: TypeAlias = Callable[[ApiRequest], Awaitable[ApiResponse]]


def missing_keys(*names: str) -> BadRequest:
    """Return an error with the missing keys of the body. RabbitMQ: as an Erlang list."""
    return BadRequest("[" + ",".join(f"{{key_missing,{name}}}" for name in names) + "]")


def parse_bool(name: str, value: object) -> bool:
    """Return the boolean. Raises: BadRequest."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise BadRequest(f"{name} must be true or false")


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Return whether the query has `true` for this name, in any case: Python's HTTP libraries send `True`."""
    return query.get(name, "").lower() == "true"


def parse_int(name: str, value: object, least: int, most: int) -> int:
    """Return an integer within limits. RabbitMQ: digits in a text count too; rabbitmqadmin sends them.

    Raises: BadRequest.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name} must be a number from {least} to {most}")
    return value


name_of: Final = attrgetter("name")
"""The name of a vhost, queue, exchange, connection or group."""


def clean_name(name: str, what: str) -> str:
    """Return a valid name for a new object. RabbitMQ: CR and LF are dropped. Raises: BadRequest."""
    name = name.replace("\r", "").replace("\n", "")
    if not name or "\0" in name or len(name.encode()) > 255:
        raise BadRequest(f"the name of {what} must have 1 to 255 bytes of UTF-8 and no NUL")
    return name


class ClusterControl(Protocol):
    """Cluster operations of one node, implemented by amqpd/cluster/operations.py."""

    def status(self) -> dict[str, Any]:
        """Return nodes, vhosts with their nodes, and the guarantee of a confirm, for `GET /api/amqpd/cluster`."""

    def kafka_outage_s(self) -> float:
        """Return how long this node has had trouble with Kafka; 0 if Kafka answers."""

    async def move(self, vhost: str, node: str) -> list[str]:
        """Move the slot of a vhost to a node. Return the names of all vhosts of the slot, once the node serves them.

        Raises: NoSuchNode, NoSuchVhost, NotMoved, MetadataError.
        """

    async def rebalance(self) -> dict[str, str]:
        """Start to move slots from nodes with many vhosts to nodes with few, also if clients are connected.

        Returns: Vhost -> node, for the vhosts that will move.

        Raises: MetadataError.
        """

    async def drain(self, timeout_s: float) -> None:
        """Move all slots of this node to other nodes and wait for the end. Raises: NotMoved."""

    def undrain(self) -> None:
        """Allow this node to serve slots again."""


class NoSuchNode(Exception):
    """The cluster has no node with this name."""


class NotMoved(Exception):
    """The move did not finish in time. It may still finish."""


class ServerControl(Protocol):
    """The interface of the server process for handlers.

    Attributes:
        is_drained: True between `amqpctl drain` and `amqpctl revive`.
    """

    is_drained: bool

    @property
    def current_settings(self) -> Settings:
        """Return the current settings: those of the start with the changes that reloads have applied."""

    @property
    def connections(self) -> ConnectionRegistry:
        """Return the registry of AMQP connections."""

    @property
    def kafka(self) -> KafkaServer | None:
        """Return the state of the Kafka listener; None if it is off."""

    @property
    def listeners(self) -> Sequence[Listener]:
        """Return all open listeners, of all protocols."""

    @property
    def app_running(self) -> bool:
        """Return whether AMQP runs: False between `stop_app` and `start_app`."""

    @property
    def not_ready_reason(self) -> str:
        """Return why clients cannot connect now; empty if they can."""

    async def stop_app(self) -> None:
        """Close listeners and AMQP connections for `amqpctl stop_app`. Wait until clients are gone, at most 3 s."""

    async def start_app(self) -> None:
        """Open the same ports again for `amqpctl start_app`. Raises: OSError if one is in use."""

    async def suspend_listeners(self) -> None:
        """Refuse new connections for `amqpctl suspend_listeners`. Open ones stay."""

    async def resume_listeners(self) -> None:
        """Accept connections again for `amqpctl resume_listeners`. Raises: OSError if a port is in use."""

    def reload(self, asked_by: str) -> Reloaded:
        """Read the settings again, as after SIGHUP. Reads files, which takes some milliseconds."""

    async def reload_definitions(self, asked_by: str) -> str:
        """Import the definitions again after a reload.

        Returns: The imported file or directory, "" if none is configured.

        Raises: DefinitionsError, MetadataError.
        """

    def stop(self) -> None:
        """Request a clean stop of the process. Returns at once."""
