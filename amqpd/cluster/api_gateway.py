"""HTTP API for the whole cluster, from any node.

The gateway decides by the path which nodes answer a request:

    a vhost in the path     its owner. The request is passed on unchanged and waits up to OWNER_S for an owner
    a node in the path      that node
    LISTS                   all nodes; the parts are merged, so filters, sorting and pages work as on one list
    SUMS, DOCUMENTS         all nodes; numbers are added, lists are joined
    DIFFERENCE              the dry run of an import: the nodes that would create the objects
    ANY                     a connection or channel by its name: the node that has it
    ALL                     closing many connections: all nodes
    ALARMS                  the check for alarms: all nodes; the check for local alarms asks this node
    other paths             this node: cluster-wide data is equal on all nodes, or the path concerns this node only

An asked node first waits until it has read slot 0 as far as the asking node. So it knows a new user or vhost, and
also a vhost that it is about to own. Both nodes check permissions.

If a node does not answer or answers with an error, such as 503 during its start, the reply contains the parts of
the other nodes. The header `Amqpd-Missing-Nodes` names the missing nodes; a page also has `missing_nodes`.

Cost of a page: each node sorts its own list and sends as many items as there are before the end of the page.

**Import of definitions.** A single node imports a document completely or not at all. A cluster does so for each
part: first users and global parameters, then the vhosts of each node. If a part is refused, the earlier parts stay
and the reply is the refusal. The same document can be sent again.
"""

from __future__ import annotations

import asyncio
import heapq
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

from amqpd.auth.internal_backend import User
from amqpd.broker.vhost import vhosts
from amqpd.broker.vhost.pending import wait_done
from amqpd.cluster.peer_http import (
    PART_SILENT_S,
    NotConnected,
    PeerHttpClient,
    PeerTimeout,
    encode_body,
    parse_json,
    sliced_reply,
)
from amqpd.cluster.view import NodeState
from amqpd.management.cluster_gateway import (
    MISSING,
    PART,
    POSITION,
    SESSION_DIGEST,
    SESSION_PATH,
    ClusterApi,
    ForwardedRequest,
)
from amqpd.management.definitions_import import all_permissions, importing_user
from amqpd.management.listing import Body, listing, page_head, requested_page
from amqpd.management.request import (
    ApiRequest,
    ApiResponse,
    BadRequest,
    Principal,
    ResourceNotFound,
    Unavailable,
    reply,
    to_json,
)
from amqpd.management.time_slice import TimeSlice, free_in_slices

if TYPE_CHECKING:
    from aiohttp import web

    from amqpd.broker.broker import Broker
    from amqpd.cluster.peer_link import PeerConnector
    from amqpd.cluster.view import ClusterView
    from amqpd.management.request import ClusterControl, Handler
    from amqpd.management.router import ApiRoute


CLUSTER_LISTS: Final = ("users", "global_parameters")
Document = dict[str, Any]
Answer = TypeVar("Answer")


def split_definitions(document: Mapping[str, Any]) -> tuple[Document, dict[str, Document]]:
    """Split definitions into the cluster-wide part and one part per vhost. Other values than lists are
    cluster-wide.

    Raises: BadRequest: an item has no vhost.
    """
    own: Document = {}
    by_vhost: dict[str, Document] = {}
    for name, value in document.items():
        if name in CLUSTER_LISTS or not isinstance(value, list):
            own[name] = value
            continue
        key = "name" if name == "vhosts" else "vhost"
        for item in value:
            vhost = item.get(key) if isinstance(item, dict) else None
            if not isinstance(vhost, str):
                raise BadRequest(f"an item of {name} has no {key}")
            by_vhost.setdefault(vhost, {}).setdefault(name, []).append(item)
    return own, by_vhost


async def ensure_vhost(broker: Broker, part: Document, name: str, user: str) -> None:
    """Declare the vhost of a part if it does not exist. Its owner imports the rest of the part.

    Args:
        user: who imports over HTTP; the part then gives the user all permissions in a new vhost, unless it has other
            permissions of the user. Empty for amqpctl.
    """
    item = next(iter(part.get("vhosts", ())), None)
    if item is None or broker.vhosts.exists(name):
        return
    description, kind = item.get("description", ""), item.get("default_queue_type", "classic")
    tags = item.get("tags", [])
    if not isinstance(description, str) or not isinstance(kind, str) or not isinstance(tags, list):
        raise BadRequest(f"vhost '{name}' has invalid values")
    kind = "classic" if kind == "undefined" else kind
    await wait_done(partial(vhosts.declare, broker.vhosts, name, description, [str(tag) for tag in tags], kind))
    if user and all(each.get("user") != user for each in part.get("permissions", ())):
        part.setdefault("permissions", []).append(all_permissions(user, name))


def join_documents(documents: list[Document]) -> Document:
    found: Document = {}
    for each in documents:
        for name, items in each.items():
            found.setdefault(name, []).extend(items)
    return found


def merge_difference(into: Document, other: Document, node: str) -> None:
    """Add another node's part of a dry run, except the users, which each part contains.

    The added paths begin with the node's name, because their indexes count within its part.
    """
    users = other["counts"].pop("users", {})
    told = [each for each in other["changes"] if each["kind"] != "users"]
    of_users = sum(count for what, count in users.items() if what != "same")
    into["changes_left_out"] += other["changes_left_out"] - (of_users - (len(other["changes"]) - len(told)))
    into["changes"] += [{**each, "path": f"{node}: {each['path']}"} for each in told]
    for kind, counts in other["counts"].items():
        mine = into["counts"].setdefault(kind, dict.fromkeys(counts, 0))
        for what, count in counts.items():
            mine[what] += count
    into["possible"] = into["possible"] and other["possible"]
    unknown = [path for path in other["unknown"] if not path.startswith("users[")]
    into["unknown"] += [f"{node}: {path}" for path in unknown]
    into["unknown_count"] += other["unknown_count"] - (len(other["unknown"]) - len(unknown))
    skipped = [each for each in other["skipped"] if not each["path"].startswith("users[")]
    into["skipped"] += [{**each, "path": f"{node}: {each['path']}"} for each in skipped]
    into["skipped_count"] += other["skipped_count"] - (len(other["skipped"]) - len(skipped))


def with_body(call: ApiRequest, document: Document) -> ApiRequest:
    return replace(call, part=False, body=document)


log = logging.getLogger(__name__)

OWNER_S: Final = 10.0
"""Maximum time for which a request waits for an owner of its vhost."""
POLL_S: Final = 0.5
BEHIND_S: Final = 5.0
"""Maximum time until an asked node has read slot 0 as far as the asking node. Then it answers anyway."""
BEHIND_POLL_S: Final = 0.01

LISTS: Final = frozenset(
    (
        *("api/queues", "api/queues/detailed", "api/exchanges", "api/bindings", "api/vhosts", "api/vhost-limits"),
        *("api/connections", "api/channels", "api/consumers", "api/connections/username/{user}", "api/nodes"),
        *("api/policies", "api/operator-policies", "api/parameters", "api/parameters/{component}"),
        *("api/amqpd/exports", "api/amqpd/jobs"),
    )
)
SUMS: Final = frozenset(("api/overview", "api/amqpd/topology"))
DOCUMENTS: Final = frozenset(("api/definitions", "api/all-configuration"))
ANY: Final = frozenset(
    ("api/connections/{connection}", "api/connections/{connection}/channels", "api/channels/{channel}")
) | {"api/amqpd/close_connection", "api/amqpd/jobs/{job}"}
ALL: Final = frozenset(
    ("api/connections/username/{user}", "api/amqpd/close_all_connections", "api/amqpd/close_user_connections")
)
DIFFERENCE: Final = frozenset(("api/amqpd/definitions/difference",))
ALARMS: Final = frozenset(("api/health/checks/alarms",))
IN_BODY: Final = frozenset(("api/amqpd/purge_queue", "api/amqpd/delete_queue", "api/amqpd/trace"))
"""Paths with the vhost in the body; the default is `/`."""
_OF_CLUSTER: Final = frozenset(("users", "permissions", "topic_permissions", "global_parameters"))
"""Parts of the definitions that every node has."""


class _ListingPart(NamedTuple):
    """One node's part of a list.

    Attributes:
        total: number of all items.
        filtered: number of items that match the filter.
        lines: items; each has its sort key before a tab.
    """

    total: int
    filtered: int
    lines: list[bytes]


class ApiGateway(ClusterApi):
    """The HTTP API of one node, for the whole cluster.

    Args:
        view: the owners of vhosts.
    """

    def __init__(
        self, broker: Broker, view: ClusterView, connector: PeerConnector, control: ClusterControl | None = None
    ) -> None:
        self.control = control
        self.name = view.node_name
        self._broker = broker
        self._view = view
        self._inner = PeerHttpClient(connector, view.position)

    def close(self) -> None:
        self._inner.close()

    async def session_user(self, node: str, digest: str, end: bool) -> str:
        keeper = self._named(node)
        if keeper is None:
            return ""
        anonymous, told = ForwardedRequest(Principal(User(""), False), ("", 0)), {SESSION_DIGEST: digest}
        method = "DELETE" if end else "GET"
        try:
            answer = await self._inner.request(keeper, method, SESSION_PATH, anonymous, told, silent_s=PART_SILENT_S)
        except PeerTimeout as silent:
            log.warning("a login of another node cannot be checked: %s", silent)
            return ""
        return str(json.loads(answer.body)["user"]) if answer.status == 200 else ""

    # -- choice of the node --------------------------------------------------------------------------------------------

    async def forward(
        self, request: web.BaseRequest, route: ApiRoute, params: Mapping[str, str], by: ForwardedRequest
    ) -> web.StreamResponse | None:
        async def ask() -> web.StreamResponse | None:
            node = await self._node_for(params)
            return None if node is None else await self._inner.forward(node, request, by)

        return await (self._retried(ask) if "vhost" in params else ask())

    async def _retried(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeat a request while the vhost's owner accepts no connection. If it died, another node becomes the owner.

        Raises: NotConnected: still not after OWNER_S.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OWNER_S
        while True:
            try:
                return await ask()
            except NotConnected:
                if loop.time() > deadline:
                    raise
            await self._view.wait_change(POLL_S)

    async def _node_for(self, params: Mapping[str, str]) -> NodeState | None:
        """Return the other node that must answer; None for this node. Raises Unavailable."""
        if "node" in params and "vhost" not in params:
            return self._named(params["node"])
        if "vhost" in params:
            return await self._owner(params["vhost"])  # a new vhost is declared on this node
        return None

    def _named(self, name: str) -> NodeState | None:
        """Return the other node of that name. None: this node answers, with 404 if the name is unknown."""
        return next((node for node in self._others() if node.name == name), None)

    async def _owner(self, vhost: str) -> NodeState | None:
        """Return the other node that owns the vhost. None: this node answers, with 404 if the vhost is unknown.

        Raises: Unavailable: the vhost has had no owner for OWNER_S.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + OWNER_S
        while vhost not in self._broker.vhosts and self._view.knows(vhost):
            node = self._view.owner_of(vhost)
            if node is not None and node.name != self._view.node_name:
                return node
            if loop.time() > deadline:
                raise Unavailable(f"vhost '{vhost}' is moving")
            await self._view.wait_change(POLL_S)
        return None

    async def wait_for_position(self, headers: Mapping[str, str]) -> None:
        loop = asyncio.get_running_loop()
        told = headers.get(POSITION, "")
        wanted, deadline = int(told) if told.isdecimal() else 0, loop.time() + BEHIND_S
        while self._view.position() < wanted and loop.time() < deadline:
            await self._view.wait_change(BEHIND_POLL_S)

    async def wait_until_owner(self, route: ApiRoute, params: Mapping[str, str], body: object) -> None:
        vhost: object = params.get("vhost")
        if route.path in IN_BODY:
            vhost = body.get("vhost", "/") if isinstance(body, dict) else "/"
        if isinstance(vhost, str) and await self._owner(vhost) is not None:
            raise Unavailable(f"vhost '{vhost}' is moving")

    def _others(self) -> list[NodeState]:
        return [node for node in self._view.nodes() if node.name != self._view.node_name]

    # -- answers of all nodes ------------------------------------------------------------------------------------------

    def handler(self, route: ApiRoute) -> Handler:
        path, method = route.path, route.method
        if method == "GET":
            kinds: tuple[tuple[frozenset[str], Callable[[ApiRoute, ApiRequest], Awaitable[ApiResponse]]], ...] = (
                (LISTS, self._list),
                (SUMS, self._sum),
                (DOCUMENTS, self._document),
                (ANY, self._any),
                (ALARMS, self._alarms),
            )
        else:
            made = frozenset(("api/vhosts/{vhost}",)) if method == "PUT" else frozenset[str]()
            kinds = (
                (ALL, self._all),
                (ANY, self._any),
                (IN_BODY, self._in_body),
                (made, self._make_vhost),
                (DOCUMENTS, self._import),
                (DIFFERENCE, self._difference),
            )
        for paths, answer in kinds:
            if path in paths:
                return partial(answer, route)
        return route.handler

    def _path(self, route: ApiRoute, call: ApiRequest) -> str:
        path = "/" + "/".join(
            quote(call.params[each[1:-1]], safe="") if each.startswith("{") else each for each in route.path.split("/")
        )
        return f"{path}?{urlencode(call.query_pairs)}" if call.query_pairs else path

    async def _ask_all(
        self, route: ApiRoute, call: ApiRequest, headers: Mapping[str, str]
    ) -> tuple[list[tuple[NodeState, Any]], list[str]]:
        """Ask all other nodes. Return their answers, and the names of nodes that did not answer.

        Raises: ApiError: a node refused the request.
        """
        nodes = self._others()
        path, by = self._path(route, call), ForwardedRequest(call.caller, ("", 0))
        body = await encode_body(call.body)
        asked = (
            self._inner.request(
                node, route.method, path, by, {**headers, **_forwarded_headers(call)}, body, PART_SILENT_S
            )
            for node in nodes
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[tuple[NodeState, Any]] = []
        missing: list[str] = []
        for node, answer in zip(nodes, answers, strict=True):
            if isinstance(answer, PeerTimeout):
                log.warning("a list is incomplete: %s", answer)
                missing.append(node.name)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append((node, answer))
        return found, missing

    # -- lists

    async def _list(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        page, size = requested_page(call.query) if "page" in call.query else (0, 0)
        others, own = await asyncio.gather(
            self._ask_all(route, call, {PART: "1"}), self._own(route, call), return_exceptions=True
        )
        if isinstance(own, BaseException):
            raise own
        if isinstance(others, BaseException):
            raise others
        answers, missing = others
        slices = TimeSlice()
        parts = {self._view.node_name: await _read_part(own, slices)}
        for node, answer in answers:
            if answer.status == 200:
                parts[node.name] = await _read_part([answer.body], slices)
            elif answer.status not in (401, 404):  # the user or the object is unknown there: no part
                missing.append(_log_missing(node, answer))
        if route.path == "api/nodes" and missing:
            gone = [{"name": name, "type": "disc", "running": False} for name in missing]
            part = await listing(replace(call, part=True), gone, lambda node: node, lambda node: str(node["name"]))
            parts["~"] = await _read_part([_body_of(part)], slices)
        return await _merged(call, [parts[name] for name in sorted(parts)], missing, (page, size), slices)

    async def _own(self, route: ApiRoute, call: ApiRequest) -> list[bytes]:
        mine = replace(call, part=True)
        found = await route.handler(mine)
        body = found.body or b""
        return body if isinstance(body, list) else [body]

    # -- documents

    async def _sum(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        answers, missing = await self._ask_all(route, call, {})
        found = await parse_json(_body_of(await route.handler(call)))
        for node, answer in answers:
            if answer.status == 200:
                _add(found, await parse_json(answer.body))
            elif answer.status not in (401, 404):
                missing.append(_log_missing(node, answer))
        found["missing_nodes"] = missing
        return await sliced_reply(found, _missing_header(missing))

    async def _alarms(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        """Answer with the alarms of all nodes. rabbit: this check covers the cluster."""
        answers, missing = await self._ask_all(route, call, {})
        found = await route.handler(call)
        documents = [json.loads(_body_of(found))]
        for node, answer in answers:
            document = json.loads(answer.body) if answer.status in (200, 503) else {}
            if answer.status == 200 or "alarms" in document:
                documents.append(document)
            else:
                missing.append(_log_missing(node, answer))
        alarms = [alarm for each in documents for alarm in each.get("alarms", ())]
        headers = _missing_header(missing)
        if not alarms:
            return ApiResponse(found.status, found.body, headers=headers)
        failed = next(each for each in documents if "alarms" in each)
        return ApiResponse(503, to_json({**failed, "alarms": alarms}).encode(), headers=headers)

    async def _document(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        answers, missing = await self._ask_all(route, call, {})
        if missing:
            # an incomplete document must not look like a complete copy
            raise Unavailable(f"nodes that do not answer: {', '.join(missing)}")
        found = await parse_json(_body_of(await route.handler(call)))
        for node, answer in answers:
            if answer.status != 200:
                raise Unavailable(f"node {node.name} answers {answer.status}")
            for name, value in (await parse_json(answer.body)).items():
                if isinstance(value, list) and name not in _OF_CLUSTER:
                    found.setdefault(name, []).extend(value)
        moving = set(self._view.vhosts()).difference(each["name"] for each in found["vhosts"])
        if moving:
            raise Unavailable(f"vhosts that are moving: {', '.join(sorted(moving))}")
        reply = await sliced_reply(found)
        await free_in_slices(found)
        return reply

    # -- one unknown node, and all nodes

    async def _any(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        try:
            return await route.handler(call)
        except ResourceNotFound:
            answers, missing = await self._ask_all(route, call, {})
            for _node, answer in answers:
                if answer.status not in (401, 404):
                    return _response_of(answer)
            if missing:
                raise Unavailable(f"not found; nodes that do not answer: {', '.join(missing)}") from None
            raise

    async def _all(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        answers, missing = await self._ask_all(route, call, {})
        try:
            found = await route.handler(call)
        except ResourceNotFound:  # another node owns the vhost
            found = next((_response_of(answer) for _node, answer in answers if answer.status < 400), None)  # type: ignore[assignment]
            if found is None:
                raise
            answers = [each for each in answers if each[1].status >= 400]
        total = await parse_json(_body_of(found)) if found.body else None
        for node, answer in answers:
            if answer.status < 300 and answer.body and isinstance(total, dict):
                _add(total, await parse_json(answer.body))
            elif answer.status >= 500:
                missing.append(_log_missing(node, answer))
        body = None if total is None else to_json(total).encode()
        return ApiResponse(found.status, body, headers={**found.headers, **_missing_header(missing)})

    async def _make_vhost(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        """Declare a vhost here. Its owner then sets tracing and the protection from deletion."""
        found = await route.handler(call)
        if found.status == 201 and any(call.fields().get(name) for name in ("tracing", "protected_from_deletion")):
            node = await self._owner(call.params["vhost"])
            if node is not None:
                answer = await self._ask(node, route, call)
                if answer.status >= 400:
                    return answer
        return found

    async def _in_body(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        async def ask() -> ApiResponse:
            node = await self._owner(call.text("vhost", "/"))
            return await (route.handler(call) if node is None else self._ask(node, route, call))

        return await self._retried(ask)

    async def _import(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        own, by_vhost = split_definitions(call.fields())
        found = await route.handler(with_body(call, own))
        total = await parse_json(_body_of(found)) if found.body else None
        by_node: dict[NodeState | None, list[Document]] = {}
        user = importing_user(call)
        for name, part in by_vhost.items():
            await ensure_vhost(self._broker, part, name, user)
            by_node.setdefault(await self._owner(name), []).append(part)
        for node, documents in by_node.items():
            part_call = with_body(call, join_documents(documents))
            answer = await (route.handler(part_call) if node is None else self._ask(node, route, part_call))
            if answer.status >= 400:
                return answer
            if answer.body and isinstance(total, dict):
                _add(total, json.loads(_body_of(answer)))
        return found if total is None else reply(total)

    async def _difference(self, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        """Answer the dry run of an import: the difference of each part comes from the node that would import it."""
        own, by_vhost = split_definitions(call.fields())
        by_node: dict[NodeState | None, list[Document]] = {}
        for name, part in by_vhost.items():
            by_node.setdefault(await self._owner(name), []).append(part)
        mine = {**own, **join_documents(by_node.pop(None, []))}
        total = json.loads(_body_of(await route.handler(with_body(call, mine))))
        for node, documents in by_node.items():
            assert node is not None  # this node's part was removed
            # permissions may belong to users that the document creates
            part = {"users": own.get("users", []), **join_documents(documents)}
            answer = await self._ask(node, route, with_body(call, part))
            if answer.status >= 400:
                return answer
            merge_difference(total, json.loads(_body_of(answer)), node.name)
        return reply(total)

    async def _ask(self, node: NodeState, route: ApiRoute, call: ApiRequest) -> ApiResponse:
        """Let another node answer. Raises NotConnected, Unavailable."""
        body, by = await encode_body(call.body), ForwardedRequest(call.caller, ("", 0))
        try:
            return _response_of(
                await self._inner.request(
                    node, route.method, self._path(route, call), by, _forwarded_headers(call), body
                )
            )
        except PeerTimeout as error:
            raise (Unavailable if error.sent else NotConnected)(str(error)) from error


def _forwarded_headers(call: ApiRequest) -> dict[str, str]:
    """Return the headers that handlers read. The body is sent as JSON, however it was received."""
    kept = {name: call.headers[name] for name in ("X-Reason", "If-Match") if name in call.headers}
    return kept if call.body is None else {"Content-Type": "application/json", **kept}


def _response_of(answer: Any) -> ApiResponse:
    kind = answer.headers.get("Content-Type", "application/json")
    return ApiResponse(answer.status, answer.body or None, kind)


def _log_missing(node: NodeState, answer: Any) -> str:
    """Log an answer without a part and return the node's name: it counts as missing."""
    log.warning("node %s answers %d: %r", node.name, answer.status, answer.body[:200])
    return node.name


def _missing_header(missing: list[str]) -> dict[str, str]:
    return {MISSING: ",".join(missing)} if missing else {}


def _body_of(found: ApiResponse) -> bytes:
    body = found.body or b""
    return b"".join(body) if isinstance(body, list) else body


def _add(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Add another node's document: numbers are added, lists joined, samples of equal time added, other values kept.

    The result has samples only for times that all nodes have recorded.
    """
    for name, value in other.items():
        mine = into.get(name)
        if isinstance(value, bool) or mine is None:
            into.setdefault(name, value)
        elif isinstance(value, dict) and isinstance(mine, dict):
            _add(mine, value)
        elif name == "recorded_since":
            into[name] = max(mine, value)
        elif isinstance(value, int | float) and isinstance(mine, int | float) and name not in _SAME:
            into[name] = mine + value
        elif isinstance(value, list) and isinstance(mine, list) and name not in _SAME:
            into[name] = _samples(mine, value) if name == "samples" else [*mine, *value]


_SAME: Final = frozenset(("exchange_types", "sample_retention_policies", "timestamp"))


def _samples(mine: list[Any], theirs: list[Any]) -> list[Any]:
    at = {each["timestamp"]: each["sample"] for each in theirs}
    return [{**each, "sample": each["sample"] + at[each["timestamp"]]} for each in mine if each["timestamp"] in at]


async def _read_part(chunks: Iterable[bytes], slices: TimeSlice) -> _ListingPart:
    """Return the part that a node has sent: lines, or a short JSON list. Raises BadRequest."""
    chunks = list(chunks)
    if chunks and chunks[0].startswith(b"["):
        items = json.loads(b"".join(chunks))
        return _ListingPart(len(items), len(items), [b"\t" + to_json(item).encode() for item in items])
    lines: list[bytes] = []
    rest = b""
    for chunk in chunks:
        pieces = (rest + chunk).split(b"\n")
        rest = pieces.pop()
        lines += pieces
        await slices.yield_if_due()
    try:
        head = json.loads(lines[0])
        return _ListingPart(head["total"], head["filtered"], lines[1:])
    except (ValueError, LookupError, TypeError) as error:
        raise BadRequest(f"a node sent an invalid part of the list: {error!r}") from None


async def _merged(
    call: ApiRequest, parts: list[_ListingPart], missing: list[str], asked: tuple[int, int], slices: TimeSlice
) -> ApiResponse:
    page, size = asked
    total, filtered = sum(part.total for part in parts), sum(part.filtered for part in parts)
    lines: Iterator[bytes]
    if call.query.get("sort", ""):
        reverse = call.query_shows("sort_reverse")
        lines = heapq.merge(*(part.lines for part in parts), key=_key, reverse=reverse)
    else:
        lines = (line for part in parts for line in part.lines)
    body = Body()
    first, last = 0, filtered
    if page:
        first, last = (page - 1) * size, page * size
        body.add(page_head(filtered, page, size, total))
        body.add((f',"missing_nodes":{to_json(missing)}' if missing else "") + ',"items":')
    body.add("[")
    comma = ""
    for index, line in enumerate(lines):
        if index >= last:
            break
        if index >= first:
            body.add(comma + line.partition(b"\t")[2].decode())
            comma = ","
        await slices.yield_if_due()
    body.add("]}" if page else "]")
    return ApiResponse(200, body.finished(), headers=_missing_header(missing))


def _key(line: bytes) -> tuple[int, Any]:
    kind, value = json.loads(line.partition(b"\t")[0])
    return kind, value
