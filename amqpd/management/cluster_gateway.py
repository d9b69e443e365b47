"""Interface between the admin API of one node and the other nodes of its cluster.

A single node does not need it. In a cluster, the admin API gets a `ClusterApi` (`amqpd/cluster/api_gateway.py`). It
forwards requests about another node to that node, and merges the lists of all nodes.

A node sends requests to another node over the inner port. A header names the caller. The other node answers for
itself alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from amqpd.auth.internal_backend import AuthenticationRefused, User
from amqpd.management.request import BadRequest, NotAuthorised, Principal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from amqpd.auth.internal_backend import InternalBackend
    from amqpd.management.request import ClusterControl, Handler
    from amqpd.management.router import ApiRoute

CALLER: Final = "Amqpd-Caller"
"""Header of a request over the inner port: the caller as JSON."""
PART: Final = "Amqpd-Part"
"""Header of a request over the inner port: it asks for this node's part of a list, as lines (`listing.py`)."""
POSITION: Final = "Amqpd-Position"
"""Header of a request over the inner port: the position up to which the sender has read the cluster's metadata. The
node that answers first waits until it has read as far.
"""
MISSING: Final = "Amqpd-Missing-Nodes"
"""Header of an answer: names of the nodes that did not answer. Their parts are missing in it."""


SESSION_PATH: Final = "/session"
"""Path on the inner port: GET returns the user of a login session that this node keeps, DELETE ends it."""
SESSION_DIGEST: Final = "Amqpd-Session-Digest"
"""Header of a request to SESSION_PATH: the digest of the cookie (`sessions.py`)."""


class ForwardedRequest(NamedTuple):
    """The caller and origin of a request.

    Attributes:
        caller: the user for whom the request is made.
        peer: the address of the client, as the node that received the request saw it.
        inner: the request is from another node; this node answers for itself alone.
        part: this node answers with its part of a list.
    """

    caller: Principal
    peer: tuple[str, int]
    inner: bool = False
    part: bool = False


def read_forwarded_request(headers: Mapping[str, str], auth: InternalBackend) -> ForwardedRequest:
    """Return the origin of a request over the inner port. This node looks up the user and checks permissions itself.

    Raises: NotAuthorised, BadRequest.
    """
    try:
        fields = json.loads(headers.get(CALLER, ""))
        name, operator, host, port = fields["user"], fields["operator"], fields["peer"][0], fields["peer"][1]
    except (ValueError, KeyError, TypeError, IndexError):
        raise BadRequest("a request over the inner port does not name its caller") from None
    if operator is True:
        caller = Principal(User(str(name), ("administrator",)), True)
    elif not name:
        caller = Principal(User(""), False)  # a request without a login
    else:
        try:
            caller = Principal(
                auth.authenticate_external(str(name), True), False
            )  # the other node has checked the client's address
        except AuthenticationRefused as refused:
            raise NotAuthorised(f"this node refuses the user: {refused.reason}") from None
    return ForwardedRequest(caller, (str(host), int(port)), True, PART in headers)


def encode_caller(caller: Principal, peer: tuple[str, int]) -> str:
    """Return the text of the header CALLER."""
    return json.dumps({"user": caller.user.name, "operator": caller.operator, "peer": list(peer)})


class ClusterApi(Protocol):
    """The cluster as the admin API of one node uses it. `amqpd.cluster.api_gateway.ApiGateway` implements it.

    Attributes:
        name: the name of this node.
        control: operations on the cluster (move, rebalance, drain).
    """

    name: str
    control: ClusterControl | None

    async def session_user(self, node: str, digest: str, end: bool) -> str:
        """Ask `node` for the user of the login session with this digest. `end` also ends the session.

        Returns an empty text if there is no such session, or the node does not answer.
        """

    async def forward(
        self, request: web.BaseRequest, route: ApiRoute, params: Mapping[str, str], asked_by: ForwardedRequest
    ) -> web.StreamResponse | None:
        """Forward a request about another node or about a vhost of another node, and stream its answer to the client.

        Returns None if this node must answer itself, from its own state or for all nodes. Raises: ApiError.
        """

    async def wait_for_position(self, headers: Mapping[str, str]) -> None:
        """Wait until this node has read the position in the header POSITION, or a time limit has passed."""

    async def wait_until_owner(self, route: ApiRoute, params: Mapping[str, str], body: object) -> None:
        """Wait until this node owns the vhost of a request that another node has passed on.

        The vhost is in the path or in the body.

        Raises: Unavailable if the vhost does not arrive in time or another node owns it.
        """

    def handler(self, route: ApiRoute) -> Handler:
        """Return the handler for a request that this node answers from its own state or for all nodes."""

    def close(self) -> None:
        """Close the connections to other nodes, when this node stops."""
