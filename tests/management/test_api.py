"""The route table: the role of every route, checked on a running broker with users of every tag."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from amqpd.management.request import TAGS, MethodNotAllowed, ResourceNotFound, Role
from amqpd.management.router import ApiRoute, Router
from amqpd.management.routes import ROUTES

MANUAL = Path(__file__).parents[2] / "docs" / "admin-api.md"
STOPPING = {
    f"api/amqpd/{name}"
    for name in ("stop", "stop_app", "start_app", "close_all_connections", "suspend_listeners", "resume_listeners")
}


class TestTable:
    def test_every_route_declares_its_role(self) -> None:
        assert all(isinstance(route.role, Role) for route in ROUTES)

    def test_list_of_public_routes(self) -> None:
        assert sorted(route.path for route in ROUTES if route.role == Role.PUBLIC) == [
            *("", "api", "api/auth", "api/index.html", "api/openapi.json", "assets/{file}"),
            *("cli", "cli/index.html", "cli/rabbitmqadmin", "doc/stats.html", "health/live", "health/ready", "metrics"),
            "plain",
        ]

    def test_changes_of_users_and_vhosts_need_administrator(self) -> None:
        administered = ("users", "permissions", "topic-permissions", "vhosts")
        for route in ROUTES:
            if route.method != "GET" and route.path.split("/")[1] in administered:
                assert route.role == Role.ADMINISTRATOR, route

    def test_routes_that_rabbitmq_lacks_are_documented(self) -> None:
        shown = {"vhost": "V", "queue": "Q", "file": "F", "user": "U", "name": "N", "job": "J", "node": "X"}
        own_routes = {
            (route.method, re.sub(r"{(\w+)}", lambda name: shown[name[1]], route.path.removeprefix("api/amqpd/")))
            for route in ROUTES
            if route.path.startswith("api/amqpd/")
        }
        rows = re.findall(r"^\| (GET|PUT|POST|DELETE) ([^|]*)\|", MANUAL.read_text("utf-8"), re.MULTILINE)
        assert {(method, path) for method, paths in rows for path in re.findall(r"`([^`]+)`", paths)} == own_routes, (
            MANUAL
        )

    def test_two_routes_with_the_same_path_are_refused(self) -> None:
        route = ROUTES[0]
        with pytest.raises(ValueError, match="two routes"):
            Router((route, ApiRoute("GET", route.path, route.role, route.handler)))

    def test_literal_segment_precedes_parameter(self) -> None:
        router = Router(ROUTES)
        assert router.find("GET", "/api/users/without-permissions")[0].path == "api/users/without-permissions"
        assert router.find("GET", "/api/users/u%2Fv/permissions")[1] == {"user": "u/v"}

    def test_empty_segment_is_a_name(self) -> None:
        with pytest.raises(ResourceNotFound):
            Router(ROUTES).find("GET", "/api//queues")
        assert Router(ROUTES).find("GET", "/api/exchanges/%2F//bindings/source")[1] == {"vhost": "/", "exchange": ""}

    def test_wrong_method_lists_allowed_methods(self) -> None:
        with pytest.raises(MethodNotAllowed) as caught:
            Router(ROUTES).find("PATCH", "/api/queues/%2F/q")
        assert caught.value.headers == {"Allow": "DELETE, GET, HEAD, OPTIONS, PUT"}


@pytest.mark.parametrize("tag", ["", "management", "policymaker", "monitoring"])
def test_tag_does_not_open_routes_of_higher_roles(tag, user, api, v) -> None:
    """Call every route with every tag. A route above the tag answers 401 and does nothing; others answer no 500."""
    caller = user(tag, configure=".*", write=".*", read=".*")
    for route in ROUTES:
        if route.path in STOPPING and route.role <= Role.MONITORING:
            continue
        path = "/" + route.path.replace("{vhost}", v).replace("{", "no-such-").replace("}", "")
        answer = caller(route.method, path, {} if route.method in ("PUT", "POST") else None)
        allowed = route.role == Role.PUBLIC or tag in TAGS[route.role]
        if not allowed:
            assert answer.status == 401, (route, answer)
            assert answer.json["error"] == ("not_authorized" if route.login_form else "not_authorised")
        else:
            assert answer.status != 500, (route, answer)
    assert api.get("/api/amqpd/status")["app_running"] is True


def test_administrator_gets_no_500_from_any_route(api, v) -> None:
    for route in ROUTES:
        if route.path in STOPPING or (route.method == "DELETE" and route.path == "api/vhosts/{vhost}"):
            continue  # these would stop the broker or delete the test's vhost
        path = "/" + route.path.replace("{vhost}", v).replace("{", "no-such-").replace("}", "")
        for body in ({}, [], {"count": "x", "arguments": 1, "tags": 7, "users": {}, "properties": 1, "routing_key": 3}):
            answer = api(route.method, path, body if route.method in ("PUT", "POST") else None)
            assert answer.status != 500, (route, body, answer)


def test_feature_flags_are_enabled_and_can_be_enabled(api) -> None:
    """rabbitmqadmin, Ansible and clients' test suites read the list and enable its flags."""
    flags = api.get("/api/feature-flags")
    assert {"quorum_queue", "stream_queue", "user_limits"} <= {flag["name"] for flag in flags}
    assert {flag["state"] for flag in flags} == {"enabled"}
    for flag in flags:
        assert api("PUT", f"/api/feature-flags/{flag['name']}/enable", {}).status == 204
    assert api("PUT", "/api/feature-flags/nosuch/enable", {}).status == 400


def test_json_has_no_spaces(api, v, channel) -> None:
    """RabbitMQ's JSON has none, and Spring's test library compares the text `{"status":"ok"}`."""
    api.send_ok("PUT", f"/api/queues/{v}/q", {"arguments": {"x-max-length": 3, "x-overflow": "drop-head"}})
    checked_count = 0
    for route in ROUTES:
        path = "/" + route.path.replace("{vhost}", v).replace("{queue}", "q").replace("{", "no-such-").replace("}", "")
        answer = api("GET", path) if route.method == "GET" else None
        if answer is not None and answer.headers.get("content-type") == "application/json":
            checked_count += 1
            assert answer.body == json.dumps(answer.json, separators=(",", ":")).encode(), path
    assert checked_count > 80
    assert api("GET", f"/api/aliveness-test/{v}").body == b'{"status":"ok"}'
    assert api("GET", "/api/queues?page=1").body.startswith(b'{"filtered_count":')


def test_404_body_equals_rabbitmq_and_adds_detail(api, v) -> None:
    """Clients compare `error` and `reason`; `detail` is our addition."""
    plain = {"error": "Object Not Found", "reason": "Not Found"}
    assert api("GET", "/api/nosuch").json == plain
    assert api("GET", f"/api/queues/{v}/nosuch").json == {**plain, "detail": f"no queue 'nosuch' in vhost '{v}'"}
    assert api("DELETE", "/api/users/nosuch").json["reason"] == "Not Found"


@pytest.mark.parametrize("word", ["true", "True", "TRUE"])
def test_true_query_flags(api, v, word) -> None:
    assert "memory" in api.get(f"/api/nodes?memory={word}")[0]
    api.send_ok("PUT", f"/api/queues/{v}/q", {})
    assert "message_stats" not in api.get(f"/api/queues/{v}?disable_stats={word}")[0]
    api.send_ok("PUT", f"/api/queues/{v}/p", {})
    assert [each["name"] for each in api.get(f"/api/queues/{v}?sort=name&sort_reverse={word}")] == ["q", "p"]
    assert api("DELETE", f"/api/queues/{v}/q?if-unused={word}&if-empty={word}").status == 204


@pytest.mark.parametrize("word", ["false", "False", "xyz", "1", ""])
def test_display_flags_are_false_for_other_words(api, v, word) -> None:
    api.send_ok("PUT", f"/api/queues/{v}/q", {})
    assert "memory" not in api.get(f"/api/nodes?memory={word}&binary={word}")[0]
    assert "message_stats" in api.get(f"/api/queues/{v}?disable_stats={word}&enable_queue_totals={word}")[0]


@pytest.mark.parametrize("name", ["if-unused", "if-empty"])
def test_deletion_flags_refuse_other_words(api, v, name) -> None:
    api.send_ok("PUT", f"/api/queues/{v}/q", {})
    for word in ("xyz", "1", ""):
        assert api("DELETE", f"/api/queues/{v}/q?{name}={word}").status == 400
    assert api("DELETE", f"/api/queues/{v}/q?{name}=False").status == 204


def test_columns_apply_to_single_objects(api) -> None:
    found = api.get("/api/overview?columns=node,object_totals.queues")
    assert found == {"node": found["node"], "object_totals": {"queues": found["object_totals"]["queues"]}}
    assert api.get("/api/whoami?columns=name") == {"name": "guest"}


def test_plugin_endpoints_answer_empty_lists(api, v) -> None:
    """Tools request these first and stop if the answer is an error."""
    assert api.get("/api/extensions") == [{"javascript": "dispatcher.js"}]
    assert {"rabbitmq_management", "rabbitmq_prometheus"} <= set(api.get("/api/nodes")[0]["enabled_plugins"])
    for path in ("federation-links", "shovels"):
        assert api.get(f"/api/{path}") == api.get(f"/api/{path}/{v}") == []
        assert api.get(f"/api/{path}?page=1")["items"] == []
        assert api("GET", f"/api/{path}/nosuch").status == 404


def test_cluster_id_has_rabbitmq_format(api) -> None:
    (found,) = [each["value"] for each in api.get("/api/global-parameters") if each["name"] == "internal_cluster_id"]
    assert re.fullmatch(r"rabbitmq-cluster-id-[A-Za-z0-9_-]{22}", found)
    assert api.get("/api/global-parameters/internal_cluster_id")["value"] == found


NAMES = ("name", "user", "vhost", "component", "type", "source", "destination", "destination_type")


@pytest.mark.parametrize("word", ["", "another"])
def test_names_in_the_path_override_names_in_the_body(api, v, word) -> None:
    """rabbit-hole, used by Terraform's provider and Kubernetes operators, always sends `"name": ""`."""
    names = dict.fromkeys(NAMES, word)
    vhost, user = f"{v}-two", f"{v}-ann"
    calls = (
        ("PUT", f"vhosts/{vhost}", {**names}),
        ("PUT", f"users/{user}", {**names, "password": "x", "tags": ""}),
        ("PUT", f"permissions/{v}/{user}", {**names, "configure": "", "write": "", "read": ""}),
        ("PUT", f"topic-permissions/{v}/{user}", {**names, "exchange": "amq.topic", "write": "", "read": ""}),
        ("PUT", f"exchanges/{v}/x", {**names, "type": "direct"}),
        ("PUT", f"queues/{v}/q", {**names, "type": "", "durable": True}),
        ("POST", f"bindings/{v}/e/x/q/q", {**names, "routing_key": "a", "arguments": {}}),
        ("PUT", f"policies/{v}/p", {**names, "pattern": "a", "definition": {"max-length": 1}, "apply-to": "all"}),
        ("PUT", f"operator-policies/{v}/p", {**names, "pattern": "a", "definition": {"max-length": 1}}),
        ("PUT", f"parameters/vhost-limits/{v}/limits", {**names, "value": {"max-queues": 9}}),
        ("PUT", f"vhost-limits/{v}/max-queues", {**names, "value": 9}),
        ("PUT", f"user-limits/{user}/max-channels", {**names, "value": 9}),
        ("PUT", f"global-parameters/{v}", {**names, "value": 9}),
    )
    for method, path, body in calls:
        assert api(method, f"/api/{path}", body).status in (201, 204), (path, api(method, f"/api/{path}", body))
    assert api.get(f"/api/users/{user}")["name"] == user
    for path in (f"users/{user}", f"vhosts/{vhost}", f"global-parameters/{v}"):
        assert api("DELETE", f"/api/{path}").status == 204
