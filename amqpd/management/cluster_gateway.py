"""The whole cluster behind one node's admin API: what is another node's is asked there, lists are of all nodes.

A node by itself has none of this. In a cluster the admin API is given a `ClusterApi` (amqpd/cluster/api_gateway.py);
requests of other nodes come in by the inner port, with who asks in a header, and are answered for this node alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from amqpd.auth.internal_backend import AuthenticationRefused, User
from amqpd.management.request import BadRequest, NotAuthorised, Principal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from amqpd.auth.internal_backend import InternalBackend
    from amqpd.management.request import ClusterControl, Handler
    from amqpd.management.router import ApiRoute

CALLER: Final = "Amqpd-Caller"
"""Of a request by the inner port: who asks, as JSON."""
PART: Final = "Amqpd-Part"
"""Likewise: this node's part of a list is asked for, as lines (listing.py)."""
POSITION: Final = "Amqpd-Position"
"""Likewise: how far the other node has read what is the whole cluster's. Who answers waits until he has read as far."""
MISSING: Final = "Amqpd-Missing-Nodes"
"""Of an answer: nodes that did not answer, and whose part it lacks."""


SESSION_PATH: Final = "/session"
"""By the inner port alone: whose session a node keeps; DELETE ends it."""
SESSION_DIGEST: Final = "Amqpd-Session-Digest"
"""Of such a request: the digest of the cookie (sessions.py)."""


class ForwardedRequest(NamedTuple):
    """A request that has come by another door than those of people. caller: who asks. peer: from where, as he came to
    the other node. inner: it is answered for this node alone; part: with this node's part of a list.
    """

    caller: Principal
    peer: tuple[str, int]
    inner: bool = False
    part: bool = False


def asked(headers: Mapping[str, str], auth: InternalBackend) -> ForwardedRequest:
    """Of a request by the inner port. The user is looked up here: rights are this node's to check.

    Raises: NotAuthorised, BadRequest.
    """
    try:
        said = json.loads(headers.get(CALLER, ""))
        name, operator, host, port = said["user"], said["operator"], said["peer"][0], said["peer"][1]
    except (ValueError, KeyError, TypeError, IndexError):
        raise BadRequest("a request by the inner port does not say who asks") from None
    if operator is True:
        caller = Principal(User(str(name), ("administrator",)), True)
    elif not name:
        caller = Principal(User(""), False)  # what anybody may ask
    else:
        try:
            caller = Principal(
                auth.authenticate_external(str(name), True), False
            )  # where he may come from, the other node has looked
        except AuthenticationRefused as refused:
            raise NotAuthorised(f"this node does not know him: {refused.reason}") from None
    return ForwardedRequest(caller, (str(host), int(port)), True, PART in headers)


def told(caller: Principal, peer: tuple[str, int]) -> str:
    """The header's text, for another node."""
    return json.dumps({"user": caller.user.name, "operator": caller.operator, "peer": list(peer)})


class ClusterApi:
    """The other nodes, as the admin API has them. name: this one's. control: of the cluster."""

    name = ""
    control: ClusterControl | None = None

    async def session(self, node: str, digest: str, end: bool) -> str:
        """As `Elsewhere` has it."""
        raise NotImplementedError

    async def pass_on(
        self, request: web.BaseRequest, route: ApiRoute, params: Mapping[str, str], asked_by: ForwardedRequest
    ) -> web.StreamResponse | None:
        """The answer of the node whose matter it is, passed on as it comes; None: it is this node's, or of all.

        Raises: ApiError.
        """
        raise NotImplementedError

    async def caught_up(self, headers: Mapping[str, str]) -> None:
        """Of a request by the inner port: returns when this node knows what the other one did, or after a while."""
        raise NotImplementedError

    async def here(self, route: ApiRoute, params: Mapping[str, str], body: object) -> None:
        """Of a request by the inner port: return when its vhost (of path or body), if this node is to run it, is here.

        Raises: Unavailable, it does not come, or another node runs it now.
        """
        raise NotImplementedError

    def handler(self, route: ApiRoute) -> Handler:
        """Who answers what is this node's, or of all."""
        raise NotImplementedError

    def close(self) -> None:
        """The node stops."""
        raise NotImplementedError
