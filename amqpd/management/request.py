"""What a handler of the admin API gets and gives: one request, already authenticated and parsed, and one reply.

`Call` knows no aiohttp. It carries who asks, the decoded names of the path, the query and the JSON body, and the checks
every handler shares: does the vhost exist and may the caller know of it, may the caller do this to that queue.
Permissions are the same patterns as on AMQP; a caller from the unix socket is the operator and passes.

A name that may not be seen and a name that does not exist look the same to a caller without the monitoring tag.

What the admin API may do with the cluster that its node is of: `call.cluster`, None where it is of none.

What the admin API sees and may do of the server it is part of; `amqpd.server` fills it.

The server composes the packages and so knows this one; the other way round goes through what is handed over here.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from amqpd.auth.internal_backend import User
from amqpd.auth.permissions import Kind, TopicKind

if TYPE_CHECKING:
    from amqpd.broker.broker import Broker
    from amqpd.broker.queue.queue import Queue
    from amqpd.broker.vhost.exchange import Exchange
    from amqpd.broker.vhost.vhost import VHost
    from amqpd.config import Settings
    from amqpd.connection.registry import ConnectionRegistry
    from amqpd.listeners import Listener
    from amqpd.management.sessions import LoginSessions
    from amqpd.management.stats import Rates
    from amqpd.process import Reloaded


DEFAULT_EXCHANGE: Final = "amq.default"
SESSION_NAME: Final = "admin API"
"""What sessions of this front end are called, where a connection would have its name."""


class Role(IntEnum):
    """What a route asks of its caller; RabbitMQ's user tags."""

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
    """An answer of 400 and above. error: RabbitMQ's word for it; reason: for people."""

    status = 500
    error = "internal_server_error"

    def __init__(self, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.headers = dict(headers or {})


class BadRequest(ApiError):
    status = 400
    error = "bad_request"


class NotAuthorised(ApiError):
    """rabbit: 401 for a missing tag or permission too."""

    status = 401
    error = "not_authorised"


class Forbidden(ApiError):
    status = 403
    error = "forbidden"


class ResourceNotFound(ApiError):
    """text: the reason in the body of every 404; the reason of this one is its `detail`."""

    status = 404
    error = "Object Not Found"
    text: Final = "Not Found"


class MethodNotAllowed(ApiError):
    status = 405
    error = "Method Not Allowed"


class TooLate(ApiError):
    """The body did not arrive in time."""

    status = 408
    error = "request_timeout"


class ResourceExists(ApiError):
    status = 412
    error = "precondition_failed"


class TooLarge(ApiError):
    status = 413
    error = "payload_too_large"


class NotJson(ApiError):
    status = 415
    error = "unsupported_media_type"


class Unavailable(ApiError):
    status = 503
    error = "service_unavailable"


class AppIsStopped(Unavailable):
    """amqpctl stop_app was here, and the request is of no use without AMQP."""

    error = "app_stopped"


class Principal(NamedTuple):
    """Who asks. operator: came through the unix socket, and is above all permissions."""

    user: User
    operator: bool

    def has(self, role: Role) -> bool:
        """Whether one of his tags is enough for this role; a tag includes those below it as RabbitMQ has them."""
        return role == Role.PUBLIC or self.operator or not TAGS[role].isdisjoint(self.user.tags)


class ApiResponse(NamedTuple):
    """body: encoded already, in one piece or in chunks; None for an empty one.

    file: a path whose bytes are the body, in ranges when the request says so.
    """

    status: int
    body: bytes | list[bytes] | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}
    file: str | None = None


to_json: Final = json.JSONEncoder(separators=(",", ":")).encode
"""Encode a value as JSON of the admin API. RabbitMQ: no blank after a comma or a colon; clients compare such text."""

CREATED: Final = ApiResponse(201)
NO_CONTENT: Final = ApiResponse(204)


def reply(data: object, status: int = 200) -> ApiResponse:
    """A small answer, encoded at once. Lists that grow with the broker go through `listing`."""
    return ApiResponse(status, to_json(data).encode())


class ApiRequest:
    """One request. params: the path's names, decoded. query: the last value of each name; query_pairs: all of them, in
    order. body: JSON, or None. sessions: logins of the page.
    """

    def __init__(
        self,
        broker: Broker,
        server: ServerControl,
        rates: Rates,
        caller: Principal,
        method: str,
        params: Mapping[str, str],
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: object,
        query_pairs: Sequence[tuple[str, str]] = (),
        sessions: LoginSessions | None = None,
    ) -> None:
        self.broker = broker
        self.server = server
        self.rates = rates
        self.caller = caller
        self.method = method
        self.params = params
        self.query = query
        self.headers = headers
        self.body = body
        self.query_pairs = query_pairs
        self.sessions = sessions
        # The cluster that the node is of.
        self.cluster: ClusterControl | None = None
        # Another node asks: a list is answered as lines, for it to merge (listing.py).
        self.part = False

    def for_part(self) -> ApiRequest:
        """The same, as another node would ask it."""
        part = copy(self)
        part.part = True
        return part

    @property
    def node(self) -> str:
        """`amqpd@host`; there is one."""
        return self.broker.node_name

    # -- what the request says ---------------------------------------------------------------------------------------

    def fields(self) -> dict[str, Any]:
        """The body as a JSON object; an absent one is empty. Raises: BadRequest."""
        if self.body is None:
            return {}
        if not isinstance(self.body, dict):
            raise BadRequest("the body must be a JSON object")
        return self.body

    def text(self, name: str, default: str | None = None) -> str:
        """A text of the body; without a default it must be there. Raises: BadRequest."""
        value = self.fields().get(name, default)
        if value is None:
            raise missing_keys(name)
        if not isinstance(value, str):
            raise BadRequest(f"{name} must be text")
        return value

    def given(self, name: str) -> Any:
        """What the body says under this name, whatever it is. Raises: BadRequest where that is nothing."""
        if name not in self.fields():
            raise missing_keys(name)
        return self.fields()[name]

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean of the body; rabbit: the words count too. Raises: BadRequest."""
        return parse_bool(name, self.fields().get(name, default))

    def query_flag(self, name: str) -> bool:
        """A boolean of the query that changes what the request does, `if-empty=true` in any case; absent is False.

        Raises: BadRequest for any other word.
        """
        return parse_bool(name, self.query.get(name, "false").lower())

    def query_shows(self, name: str) -> bool:
        """A boolean of the query that shapes the answer only. RabbitMQ: any word but `true` is false."""
        return is_true(self.query, name)

    def query_all(self, name: str) -> list[str]:
        """All that the query says under this name, in order: `family=a&family=b`."""
        return [value for key, value in self.query_pairs if key == name]

    def arguments(self) -> dict[str, object]:
        """`arguments` of the body. rabbit: an empty list counts as an empty table. Raises: BadRequest."""
        value = self.fields().get("arguments")
        if value is None or value == []:
            return {}
        if not isinstance(value, dict):
            raise BadRequest("arguments must be an object")
        return value

    # -- who may what ------------------------------------------------------------------------------------------------

    def require(self, role: Role) -> None:
        """Raises: NotAuthorised."""
        if not self.caller.has(role):
            raise NotAuthorised(f"Not {role.name.lower()} user")

    def may_see(self, vhost: str) -> bool:
        """Whether the caller may know of the vhost: with the monitoring tag, or with any permission in it."""
        return self.caller.has(Role.MONITORING) or self.broker.auth.may_access_vhost(self.caller.user, vhost)

    def may_enter(self, vhost: str) -> bool:
        """Whether the caller may change something in it, as far as permissions then allow."""
        return self.caller.operator or self.broker.auth.may_access_vhost(self.caller.user, vhost)

    def vhosts(self) -> list[VHost]:
        """Those the caller may see, by name; or the one of the path. Raises: as `vhost`."""
        if "vhost" in self.params:
            return [self.vhost()]
        return sorted((v for v in self.broker.vhosts.values() if self.may_see(v.name)), key=_name)

    def vhost(self) -> VHost:
        """The vhost of the path. Raises: NotAuthorised, ResourceNotFound."""
        name = self.params["vhost"]
        allowed = self.may_see(name) if self.method == "GET" else self.may_enter(name)
        if not allowed and not (self.caller.has(Role.MONITORING) and name not in self.broker.vhosts):
            raise NotAuthorised("User not authorised to access virtual host")
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise ResourceNotFound(f"vhost '{name}' does not exist")
        return vhost

    def any_vhost(self) -> VHost:
        """The vhost of the path, for an administrator: whether he may enter it or not. Raises: ResourceNotFound."""
        name = self.params["vhost"]
        vhost = self.broker.vhosts.get(name)
        if vhost is None:
            raise ResourceNotFound(f"vhost '{name}' does not exist")
        return vhost

    def queue(self, key: str = "queue") -> Queue:
        """The queue of the path. Raises: as `vhost`."""
        vhost = self.vhost()
        queue = vhost.find_queue(self.params[key])
        if queue is None:
            raise ResourceNotFound(f"no queue '{self.params[key]}' in vhost '{vhost.name}'")
        return queue

    def exchange(self, key: str = "exchange") -> Exchange:
        """The exchange of the path; amq.default is the default one. Raises: as `vhost`."""
        vhost = self.vhost()
        name = self.params[key]
        exchange = vhost.find_exchange("" if name == DEFAULT_EXCHANGE else name)
        if exchange is None:
            raise ResourceNotFound(f"no exchange '{name}' in vhost '{vhost.name}'")
        return exchange

    def check(self, vhost: str, kind: Kind, thing: str, name: str) -> None:
        """The permission AMQP would ask for. thing: queue or exchange. Raises: NotAuthorised."""
        shown = name or DEFAULT_EXCHANGE
        if not self.caller.operator and not self.broker.auth.is_allowed(self.caller.user, vhost, kind, shown):
            raise NotAuthorised(
                f"ACCESS_REFUSED - access to {thing} '{shown}' in vhost '{vhost}' refused for user "
                f"'{self.caller.user.name}'"
            )

    def check_topic(self, vhost: str, exchange: Exchange, kind: TopicKind, keys: list[str]) -> None:
        """Topic permissions likewise. Raises: NotAuthorised."""
        if self.caller.operator or exchange.kind != "topic":
            return
        for key in keys:
            if not self.broker.auth.is_topic_allowed(self.caller.user, vhost, exchange.name, kind, key):
                raise NotAuthorised(
                    f"ACCESS_REFUSED - access to topic '{key}' in exchange '{exchange.name}' in vhost '{vhost}' "
                    f"refused for user '{self.caller.user.name}'"
                )


Handler: TypeAlias = Callable[[ApiRequest], Awaitable[ApiResponse]]


def missing_keys(*names: str) -> BadRequest:
    """rabbit: an Erlang list of what the body lacks."""
    return BadRequest("[" + ",".join(f"{{key_missing,{name}}}" for name in names) + "]")


def parse_bool(name: str, value: object) -> bool:
    """Raises: BadRequest."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise BadRequest(f"{name} must be true or false")


def is_true(query: Mapping[str, str], name: str) -> bool:
    """Return whether the query says `true` for this name, in any case: Python's HTTP libraries send `True`."""
    return query.get(name, "").lower() == "true"


def number(name: str, value: object, least: int, most: int) -> int:
    """rabbit: digits in a text count too; rabbitmqadmin sends those. Raises: BadRequest."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name} is a number from {least} to {most}")
    return value


def clean_name(name: str, what: str) -> str:
    """A new thing's name, by AMQP's rules. rabbit: CR and LF are dropped. Raises: BadRequest."""
    name = name.replace("\r", "").replace("\n", "")
    if not name or "\0" in name or len(name.encode()) > 255:
        raise BadRequest(f"the name of {what} has 1 to 255 bytes of UTF-8 and no NUL")
    return name


def _name(vhost: VHost) -> str:
    return vhost.name


class ClusterControl(Protocol):
    """Of one node (amqpd/cluster/operations.py)."""

    def status(self) -> dict[str, Any]:
        """Who is in it, who runs which vhost, what a confirm promises: see `GET /api/amqpd/cluster`."""

    async def move(self, vhost: str, node: str) -> list[str]:
        """The vhost's slot goes to that node. Returns the names of all vhosts of the slot, when they are there.

        Raises: NoSuchNode, NoSuchVhost, NotMoved; MetadataError.
        """

    async def rebalance(self) -> dict[str, str]:
        """Slots with vhosts go from nodes with many to nodes with few, whoever is connected. Returns vhost -> node, of
        those that are to move. Raises: MetadataError.
        """

    async def drain(self, timeout_s: float) -> None:
        """All that the node runs goes to others; returns when it has gone. Raises: NotMoved."""

    def undrain(self) -> None:
        """It may run vhosts again."""


class NoSuchNode(Exception):
    """No node of that name is in the cluster."""


class NotMoved(Exception):
    """It has not come to that in time; it may yet."""


class ServerControl(Protocol):
    """One broker process, as handlers have it. drained: between `amqpctl drain` and `revive`."""

    drained: bool

    @property
    def latest(self) -> Settings:
        """The settings that were read last: those of the start, with what a reload has taken over."""

    @property
    def connections(self) -> ConnectionRegistry:
        """The AMQP connections."""

    @property
    def listeners(self) -> Sequence[Listener]:
        """What is listened on now, by all front ends."""

    @property
    def app_running(self) -> bool:
        """Whether clients can connect: False between `stop_app` and `start_app`."""

    @property
    def not_ready(self) -> str:
        """Why clients cannot connect now; empty when they can."""

    async def stop_app(self) -> None:
        """`amqpctl stop_app`: the ports close, clients are told to go. Returns when they are gone, in 3 s at most."""

    async def start_app(self) -> None:
        """`amqpctl start_app`: on the same ports again. Raises: OSError when one is taken."""

    async def suspend_listeners(self) -> None:
        """`amqpctl suspend_listeners`: clients no longer get in; those that are in stay."""

    async def resume_listeners(self) -> None:
        """`amqpctl resume_listeners`: they get in again. Raises: OSError when a port is taken."""

    def reload(self, asked_by: str) -> Reloaded:
        """`amqpctl reload`: the settings are read again, as by SIGHUP. Reads files: some milliseconds."""

    async def reload_definitions(self, asked_by: str) -> str:
        """Likewise, behind it: the file or directory that was imported again, "" for none. Raises: DefinitionsError,
        MetadataError.
        """

    def stop(self) -> None:
        """Asks for a clean end of the process; returns at once."""
