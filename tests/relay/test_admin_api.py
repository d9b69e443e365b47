"""The admin API of any node covers the cluster: requests are forwarded, lists are merged."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pika
import pytest
from relay_rig import Rig, wait_until

from amqpd.cluster.api_gateway import OWNER_S, ApiGateway
from amqpd.cluster.peer_http import NotConnected, PeerTimeout
from amqpd.cluster.view import NodeState
from amqpd.management.routes import ROUTES


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: Any


def ask(rig: Rig, node: str, method: str, path: str, body: object = None, user: str = "guest") -> Answer:
    """Send one request to a node."""
    host, port = "127.0.0.1", rig[node].http_port
    login = base64.b64encode(f"{user}:{user}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    return Answer(answer.status, answer.headers, json.loads(content) if content else None)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Three nodes; each owns a vhost of its letter, with 5 queues."""
    with Rig(tmp_path_factory.mktemp("whole"), ("a", "b", "c")) as rig:
        for number, name in enumerate(("a", "b", "c")):
            rig[name].api("DELETE", "/api/vhosts/%2F")
            rig.own(f"v{name}", name)
            for queue in range(5):
                rig[name].api("PUT", f"/api/queues/v{name}/q{queue * 3 + number:02}", {})
        yield rig


@pytest.mark.slow
@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_list_has_queues_of_all_nodes(nodes: Rig, node: str) -> None:
    found = ask(nodes, node, "GET", "/api/queues")
    assert found.status == 200
    assert "Amqpd-Missing-Nodes" not in found.headers
    listed = [(each["vhost"], each["name"], each["node"]) for each in found.body]
    expected = [(f"v{name}", f"q{queue * 3 + n:02}", name) for n, name in enumerate("abc") for queue in range(5)]
    assert listed == expected


def test_pages_filters_and_sorting_apply_to_merged_list(nodes: Rig) -> None:
    pages = [
        ask(nodes, "b", "GET", f"/api/queues?page={page}&page_size=4&sort=name&columns=vhost,name").body
        for page in (1, 2, 3, 4)
    ]
    assert [each["name"] for page in pages for each in page["items"]] == [f"q{number:02}" for number in range(15)]
    assert set(pages[0]["items"][0]) == {"vhost", "name"}
    counts = [(p["total_count"], p["filtered_count"], p["item_count"], p["page"], p["page_count"]) for p in pages]
    assert counts == [(15, 15, 4, 1, 4), (15, 15, 4, 2, 4), (15, 15, 4, 3, 4), (15, 15, 3, 4, 4)]
    reversed_page = ask(nodes, "b", "GET", "/api/queues?page=1&page_size=3&sort=name&sort_reverse=true").body
    assert [each["name"] for each in reversed_page["items"]] == ["q14", "q13", "q12"]
    unsorted = [ask(nodes, "a", "GET", f"/api/queues?page={page}&page_size=4").body for page in (1, 2, 3, 4)]
    whole = ask(nodes, "a", "GET", "/api/queues").body
    assert [each["name"] for page in unsorted for each in page["items"]] == [each["name"] for each in whole]
    named = ask(nodes, "c", "GET", "/api/queues?page=1&name=q1&sort=name").body
    assert [each["name"] for each in named["items"]] == ["q10", "q11", "q12", "q13", "q14"]
    assert (named["filtered_count"], named["total_count"]) == (5, 15)
    regex = ask(nodes, "c", "GET", "/api/queues?page=1&name=%5Eq0%5B01%5D&use_regex=true&sort=name").body
    assert [each["name"] for each in regex["items"]] == ["q00", "q01"]
    beyond = ask(nodes, "a", "GET", "/api/queues?page=9&page_size=4")
    assert (beyond.status, beyond.body["reason"]) == (400, "Page out of range, page: 9 page size: 4, len: 15")


def test_requests_are_forwarded_to_owner(nodes: Rig) -> None:
    assert ask(nodes, "a", "PUT", "/api/queues/vb/made", {"durable": True}).status == 201
    assert ask(nodes, "c", "PUT", "/api/queues/vb/made", {"durable": True}).status == 204
    published = {"properties": {}, "routing_key": "made", "payload": "hello", "payload_encoding": "string"}
    assert ask(nodes, "a", "POST", "/api/exchanges/vb/amq.default/publish", published).body == {"routed": True}
    get_options = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    got = ask(nodes, "c", "POST", "/api/queues/vb/made/get", get_options).body
    assert [each["payload"] for each in got] == ["hello"]
    assert ask(nodes, "a", "GET", "/api/queues/vb/made").body["node"] == "b"
    assert ask(nodes, "a", "GET", "/api/queues/vb/none").status == 404
    assert ask(nodes, "a", "GET", "/api/queues/nowhere").status == 404
    assert ask(nodes, "a", "DELETE", "/api/queues/vb/made").status == 204
    assert ask(nodes, "b", "GET", "/api/queues/vb/made").status == 404


def test_lists_are_the_same_at_all_nodes(nodes: Rig) -> None:
    for kind, minimum in (("exchanges", 3), ("bindings", 15), ("vhosts", 3)):
        lists = [ask(nodes, node, "GET", f"/api/{kind}").body for node in "abc"]
        names = [sorted(json.dumps([each.get("vhost"), each.get("name"), each.get("destination")]) for each in found)
                 for found in lists]  # fmt: skip
        assert names[0] == names[1] == names[2]
        assert len(lists[0]) >= minimum
    assert ask(nodes, "a", "PUT", "/api/policies/vc/p", {"pattern": "x", "definition": {"max-length": 5}}).status == 201
    assert [each["name"] for each in ask(nodes, "b", "GET", "/api/policies").body] == ["p"]


def test_list_of_nodes_and_single_node(nodes: Rig) -> None:
    assert [(each["name"], each["running"]) for each in ask(nodes, "b", "GET", "/api/nodes").body] == [
        ("a", True),
        ("b", True),
        ("c", True),
    ]
    node_details = ask(nodes, "a", "GET", "/api/nodes/c").body
    assert (node_details["name"], node_details["os_pid"]) == ("c", str(nodes["c"].pid))
    assert ask(nodes, "a", "GET", "/api/nodes/nobody").status == 404


def test_overview_sums_all_nodes(nodes: Rig) -> None:
    found = [ask(nodes, node, "GET", "/api/overview").body for node in "abc"]
    assert [each["node"] for each in found] == ["a", "b", "c"]
    assert [each["object_totals"]["queues"] for each in found] == [15, 15, 15]
    assert found[0]["missing_nodes"] == []
    assert {each["node"] for each in found[0]["listeners"]} == {"a", "b", "c"}


def test_connections_and_channels_of_all_nodes(nodes: Rig) -> None:
    clients = [pika.BlockingConnection(pika.URLParameters(nodes.url("a", f"v{name}"))) for name in "abc"]
    for client in clients:
        client.channel()
    wait_until(lambda: len(ask(nodes, "b", "GET", "/api/channels").body) == 3, "the channels are listed")
    found = ask(nodes, "b", "GET", "/api/connections?sort=vhost").body
    assert [(each["vhost"], each["node"], each.get("owner")) for each in found] == [
        ("va", "a", None),
        ("vb", "a", "b"),
        ("vc", "a", "c"),
    ]
    name = found[2]["name"].replace(" ", "%20").replace(">", "%3E")
    assert ask(nodes, "b", "GET", f"/api/connections/{name}").body["vhost"] == "vc"
    assert ask(nodes, "b", "DELETE", f"/api/connections/{name}").status == 204
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        clients[2].process_data_events(60)
    assert ask(nodes, "b", "GET", f"/api/connections/{name}").status == 404
    assert ask(nodes, "c", "DELETE", "/api/connections/username/guest").status == 204
    for client in clients[:2]:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            client.process_data_events(60)


def test_permissions_are_checked_at_owner_too(nodes: Rig) -> None:
    for node in "ab":
        nodes[node].api("PUT", "/api/users/some", {"password": "some", "tags": "management"})
    nodes["b"].api("PUT", "/api/permissions/vb/some", {"configure": "", "write": "", "read": "^q01$"})
    assert [each["name"] for each in ask(nodes, "a", "GET", "/api/queues", user="some").body] == [
        f"q{number:02}" for number in (1, 4, 7, 10, 13)
    ]  # a user with access to the vhost sees it; c does not know the user and returns nothing
    assert ask(nodes, "a", "PUT", "/api/queues/vb/his", {}, user="some").status == 401
    assert ask(nodes, "a", "GET", "/api/queues/vc/q02", user="some").status == 401
    assert ask(nodes, "a", "GET", "/api/nodes", user="some").status == 401
    assert ask(nodes, "a", "GET", "/api/queues", user="stranger").status == 401


def test_definitions_of_all_nodes(nodes: Rig) -> None:
    found = ask(nodes, "c", "GET", "/api/definitions").body
    assert {each["vhost"] for each in found["queues"]} == {"va", "vb", "vc"}
    assert sorted(each["name"] for each in found["vhosts"]) == ["va", "vb", "vc"]
    assert [each["name"] for each in found["users"]].count("guest") == 1


@pytest.mark.slow
def test_definitions_are_refused_while_a_vhost_has_no_owner(rig: Rig) -> None:
    """A document without the vhost would be taken for a complete copy."""
    rig.own("moves", None)
    try:
        found = ask(rig, "a", "GET", "/api/definitions")
        assert (found.status, found.body["reason"]) == (503, "vhosts that are moving: moves")
    finally:
        rig.forget("moves")
    assert ask(rig, "a", "GET", "/api/definitions").status == 200


def test_amqpctl_over_unix_socket(nodes: Rig) -> None:
    found = nodes["a"].ctl("list_queues", "-p", "vc", "name", "--quiet")
    assert (found.returncode, found.stdout.split()) == (0, ["name", *(f"q{number:02}" for number in range(2, 15, 3))])
    purged = nodes["a"].ctl("purge_queue", "-p", "vb", "q01")
    assert purged.returncode == 0, purged.stderr


@pytest.mark.slow
def test_failing_node_is_reported_missing(tmp_path: Path) -> None:
    """Its part is missing, which must differ from an empty part."""
    with Rig(tmp_path, ("a", "b"), troubled="b") as rig:
        rig.own("va", "a")
        rig["a"].api("PUT", "/api/queues/va/here", {})
        found = ask(rig, "a", "GET", "/api/overview")
        assert (found.body["missing_nodes"], found.headers["Amqpd-Missing-Nodes"]) == (["b"], "b")
        found = ask(rig, "a", "GET", "/api/amqpd/topology")
        assert (found.body["missing_nodes"], found.headers["Amqpd-Missing-Nodes"]) == (["b"], "b")
        assert [each["name"] for each in found.body["queues"]] == ["here"]
        closed = ask(rig, "a", "DELETE", "/api/connections/username/guest")
        assert closed.headers["Amqpd-Missing-Nodes"] == "b"
        assert ask(rig, "a", "GET", "/api/health/checks/alarms").headers["Amqpd-Missing-Nodes"] == "b"
        assert ask(rig, "a", "GET", "/api/definitions").status == 503


@pytest.mark.slow
def test_killed_node_is_reported_missing(tmp_path: Path) -> None:
    """The parts of the other nodes are there, and the reply names the missing node."""
    with Rig(tmp_path, ("a", "b")) as rig:
        rig.own("va", "a")
        rig.own("vb", "b")
        rig["a"].api("PUT", "/api/queues/va/here", {})
        assert ask(rig, "a", "GET", "/api/queues/vb").status == 200
        rig["b"].kill()
        found = ask(rig, "a", "GET", "/api/queues")
        assert [each["name"] for each in found.body] == ["here"]
        assert found.headers["Amqpd-Missing-Nodes"] == "b"
        assert ask(rig, "a", "GET", "/api/queues?page=1").body["missing_nodes"] == ["b"]
        assert [(each["name"], each["running"]) for each in ask(rig, "a", "GET", "/api/nodes").body] == [
            ("a", True),
            ("b", False),
        ]
        for query, names in (("sort=name&sort_reverse=true", ["b", "a"]), ("name=a", ["a"])):
            found = ask(rig, "a", "GET", f"/api/nodes?columns=name&page=1&{query}")
            assert [each["name"] for each in found.body["items"]] == names
        assert ask(rig, "a", "GET", "/api/overview").body["missing_nodes"] == ["b"]
        started = time.monotonic()
        forwarded = ask(rig, "a", "GET", "/api/queues/vb/q")
        assert time.monotonic() - started > OWNER_S  # it waits for the next owner
        assert forwarded.status == 503
        assert "node b" in forwarded.body["reason"]
        assert ask(rig, "a", "GET", "/api/definitions").status == 503


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/api/permissions/{}/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("PUT", "/api/queues/{}/q", {"durable": True}),
        ("GET", "/api/exchanges/{}", None),
    ],
)
def test_request_waits_until_owner_has_the_vhost(rig: Rig, method: str, path: str, body: object) -> None:
    """The owner is known but has not loaded the vhost yet, as right after its declaration."""
    vhost = f"late {method} {path.split('/')[2]}".replace(" ", "-")
    rig.own(vhost, "b")
    found = ask(rig, "a", method, path.format(vhost), body)
    assert found.status in (200, 201, 204), found.body


@pytest.mark.slow
def test_request_waits_for_vhost_named_in_body(rig: Rig) -> None:
    rig.own("late in the body", "b")
    found = ask(rig, "a", "POST", "/api/amqpd/trace", {"vhost": "late in the body", "on": True})
    assert found.status == 204, found.body
    assert ask(rig, "a", "POST", "/api/amqpd/trace", {"vhost": "nowhere", "on": True}).status == 404


@pytest.mark.slow
def test_forwarded_request_waits_for_position_of_asking_node(rig: Rig) -> None:
    """A node that has not read the cluster's metadata up to the asking node's position waits: a user may be very
    new.
    """
    rig.position("b", 5)
    rig.position("a", 7)
    started = time.monotonic()
    with ThreadPoolExecutor() as pool:
        request = pool.submit(ask, rig, "a", "GET", "/api/queues/v")
        time.sleep(0.5)
        assert not request.done()
        rig.position("b", 7)
        assert request.result().status == 200
    assert time.monotonic() - started < 4
    rig.position("b", 0)
    rig.position("a", 0)


@pytest.mark.parametrize("path", ["api/queues/{vhost}/{queue}", "api/amqpd/purge_queue"])
async def test_request_waits_for_next_owner_of_dead_node(path: str) -> None:
    """Nothing was sent to the dead node, so the request can be sent to the next owner."""
    dead, after = NodeState("b", "127.0.0.1", 1, ""), NodeState("c", "127.0.0.1", 2, "")
    owners = [dead, dead, after]

    async def send(node: NodeState, *_: object, **__: object) -> Any:
        if node is dead:
            raise PeerTimeout("node b does not answer", False) if "purge" in path else NotConnected("node b")
        return SimpleNamespace(status=204, body=b"", headers={})

    async def changed(_timeout_s: float) -> None:
        owners.pop(0)

    view: Any = SimpleNamespace(
        node_name="a", knows=lambda _: True, owner_of=lambda _: owners[0], wait_change=changed, position=lambda: 0
    )
    gateway = ApiGateway(SimpleNamespace(vhosts={}), view, SimpleNamespace())  # type: ignore[arg-type]
    gateway._inner = SimpleNamespace(forward=send, request=send)  # type: ignore[assignment]
    route = next(each for each in ROUTES if each.path == path)
    params = {"vhost": "v", "queue": "q"}
    if "purge" in path:
        call: Any = SimpleNamespace(
            text=lambda *_: "v", body=params, caller=None, headers={}, params={}, query_pairs=[]
        )
        answer: Any = await gateway.handler(route)(call)
    else:
        answer = await gateway.forward(SimpleNamespace(), route, params, SimpleNamespace())  # type: ignore[arg-type]
    assert (answer.status, owners) == (204, [after])


@pytest.mark.slow
def test_check_of_alarms_covers_all_nodes(nodes: Rig) -> None:
    checks = "/api/health/checks/"
    assert ask(nodes, "a", "GET", f"{checks}alarms").status == 200
    assert ask(nodes, "c", "PUT", "/api/amqpd/alarms/memory").status == 204
    try:
        found = ask(nodes, "a", "GET", f"{checks}alarms")
        assert (found.status, found.body["alarms"]) == (503, [{"node": "c", "resource": "memory"}])
        assert ask(nodes, "a", "GET", f"{checks}local-alarms").status == 200
        assert ask(nodes, "c", "GET", f"{checks}local-alarms").status == 503
    finally:
        ask(nodes, "c", "DELETE", "/api/amqpd/alarms/memory")


@pytest.mark.slow
def test_amqpctl_is_not_told_that_the_app_of_the_asked_node_is_stopped(nodes: Rig) -> None:
    """`Amqpd-Needs-App` is about the asked node, which passes the request on."""
    assert ask(nodes, "b", "POST", "/api/amqpd/stop_app").status == 204
    try:
        found = nodes["a"].ctl("list_queues", "-p", "vb", "name")
        assert found.returncode == 0, found.stderr
    finally:
        assert ask(nodes, "b", "POST", "/api/amqpd/start_app").status == 204
