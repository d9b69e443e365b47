"""A login of the page at one node is valid at all nodes, as behind a load balancer, and ends at all of them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from relay_rig import Rig

pytestmark = pytest.mark.slow

PAGE = {"Amqpd-Page": "1", "Host": "broker.example"}
SESSION = "/api/amqpd/session"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, ("a", "b", "c")) as rig:
        yield rig


def ask(
    rig: Rig, node: str, method: str, path: str, cookie: str = "", body: object = None, **more: str
) -> tuple[int, Any]:
    """Return status and JSON of the reply. cookie: that of the browser."""
    headers = {**PAGE, **more, **({"Cookie": cookie} if cookie else {})}
    connection = http.client.HTTPConnection("127.0.0.1", rig[node].http_port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    return answer.status, json.loads(content) if content else None


def login(rig: Rig, node: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", rig[node].http_port, timeout=60)
    form = {**PAGE, "Content-Type": "application/x-www-form-urlencoded"}
    connection.request("POST", SESSION, "username=guest&password=guest", form)
    answer = connection.getresponse()
    assert answer.status == 200
    answer.read()
    connection.close()
    return str(answer.headers["Set-Cookie"]).partition(";")[0]


def test_login_is_valid_at_every_node_until_logout(nodes: Rig) -> None:
    cookie, other_cookie = login(nodes, "a"), login(nodes, "b")
    for node in ("a", "b", "c"):
        status, found = ask(nodes, node, "GET", SESSION, cookie)
        assert (status, found["name"], found["node"]) == (200, "guest", node)
        assert ask(nodes, node, "PUT", f"/api/vhosts/of-{node}", cookie, {})[0] == 201
    assert ask(nodes, "c", "DELETE", SESSION, cookie)[0] == 204
    assert [ask(nodes, node, "GET", SESSION, cookie)[0] for node in "abc"] == [401] * 3
    assert [ask(nodes, node, "GET", SESSION, other_cookie)[0] for node in "abc"] == [200] * 3


def test_password_change_ends_login_everywhere(nodes: Rig) -> None:
    cookie = login(nodes, "a")
    assert ask(nodes, "b", "GET", SESSION, cookie)[0] == 200
    nodes["a"].api("PUT", "/api/amqpd/users/guest/password", {"password": "another"})
    assert [ask(nodes, node, "GET", SESSION, cookie)[0] for node in "abc"] == [401] * 3


def test_login_is_invalid_while_its_node_is_down(nodes: Rig) -> None:
    cookie = login(nodes, "a")
    forged_cookie = cookie.partition("=")[0] + "=" + "x" * 43 + "." + cookie.rpartition(".")[2]
    assert ask(nodes, "b", "GET", SESSION, forged_cookie)[0] == 401
    # The request that nodes send each other is not available to clients.
    assert ask(nodes, "a", "GET", "/session", cookie, **{"Amqpd-Session-Digest": "0" * 64})[0] == 404
    nodes["a"].stop()
    assert ask(nodes, "b", "GET", SESSION, cookie)[0] == 401
    assert ask(nodes, "b", "GET", SESSION, login(nodes, "c"))[0] == 200
