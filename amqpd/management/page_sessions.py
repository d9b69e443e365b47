"""The page's login and logout over HTTP; what a session is and what it is not stands in `sessions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amqpd.management.request import Call, Forbidden, Reply, Role, reply
from amqpd.management.router import Route
from amqpd.management.sessions import Sessions, cookie, token_of

PAGE_HEADER: Final = "Amqpd-Page"
"""Sent by the page with each request: its refusals bring no WWW-Authenticate, at which browsers ask for a password."""


def _sessions(call: Call) -> Sessions:
    assert call.sessions is not None  # server.py gives them to every call
    return call.sessions


def check_header(headers: Mapping[str, str]) -> None:
    """Of a change by cookie. Raises: Forbidden."""
    if PAGE_HEADER not in headers:
        raise Forbidden(f"a change by cookie needs the header {PAGE_HEADER}")


def _who(call: Call, left_s: float | None) -> dict[str, object]:
    user = call.caller.user
    return {
        "name": user.name,
        "tags": list(user.tags),
        "ends_in_s": None if left_s is None else int(left_s),
        "node": call.node,
        "cluster_name": call.broker.cluster_name,
        "clustered": _sessions(call).clustered,
    }


async def post_session(call: Call) -> Reply:
    """Logs in: name and password of the form open a session, whose cookie the answer sets."""
    check_header(call.headers)
    sessions = _sessions(call)
    token = sessions.open(call.caller.user.name, call.broker.auth)
    left_s = sessions.left_s(token) or 0.0
    answer = reply(_who(call, left_s))
    return answer._replace(headers={"Set-Cookie": cookie(call.headers, token, int(left_s))})


async def get_session(call: Call) -> Reply:
    """Who is logged in, with which tags, and for how long."""
    return reply(_who(call, _sessions(call).left_s(token_of(call.headers))))


async def delete_session(call: Call) -> Reply:
    """Logs out."""
    await _sessions(call).close(token_of(call.headers))
    return Reply(204, headers={"Set-Cookie": cookie(call.headers, "", 0)})


_PATH: Final = "api/amqpd/session"
ROUTES: Final = (
    Route("POST", _PATH, Role.MANAGEMENT, post_session, quiet=True, login_form=True),
    Route("GET", _PATH, Role.MANAGEMENT, get_session),
    Route("DELETE", _PATH, Role.MANAGEMENT, delete_session, quiet=True),
)
