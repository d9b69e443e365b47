"""The route table: every route's role, asked of the running broker with users of every tag."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amqpd.management.api import ROUTES
from amqpd.management.call import TAGS, MethodNotAllowed, NotThere, Role
from amqpd.management.router import Route, Router

MANUAL = Path(__file__).parents[2] / "docs" / "admin-api.md"
STOPPING = {
    f"api/amqpd/{name}"
    for name in ("stop", "stop_app", "start_app", "close_all_connections", "suspend_listeners", "resume_listeners")
}


class TestTable:
    def test_every_route_declares_its_role(self) -> None:
        assert all(isinstance(route.role, Role) for route in ROUTES)

    def test_only_these_are_public(self) -> None:
        assert sorted(route.path for route in ROUTES if route.role == Role.PUBLIC) == [
            *("", "api", "api/auth", "api/index.html", "api/openapi.json", "assets/{file}"),
            *("cli", "cli/index.html", "cli/rabbitmqadmin", "doc/stats.html", "health/live", "health/ready", "metrics"),
            "plain",
        ]

    def test_changes_of_users_and_vhosts_are_the_administrators(self) -> None:
        theirs = ("users", "permissions", "topic-permissions", "vhosts")
        for route in ROUTES:
            if route.method != "GET" and route.path.split("/")[1] in theirs:
                assert route.role == Role.ADMINISTRATOR, route

    def test_what_rabbitmq_does_not_have_is_documented(self) -> None:
        shown = {"vhost": "V", "queue": "Q", "file": "F", "user": "U", "name": "N", "job": "J", "node": "X"}
        ours = {
            (route.method, re.sub(r"{(\w+)}", lambda name: shown[name[1]], route.path.removeprefix("api/amqpd/")))
            for route in ROUTES
            if route.path.startswith("api/amqpd/")
        }
        rows = re.findall(r"^\| (GET|PUT|POST|DELETE) ([^|]*)\|", MANUAL.read_text("utf-8"), re.MULTILINE)
        assert {(method, path) for method, paths in rows for path in re.findall(r"`([^`]+)`", paths)} == ours

    def test_two_routes_of_one_path_are_refused(self) -> None:
        route = ROUTES[0]
        with pytest.raises(ValueError, match="two routes"):
            Router((route, Route("GET", route.path, route.role, route.handler)))

    def test_a_word_goes_before_a_name(self) -> None:
        router = Router(ROUTES)
        assert router.find("GET", "/api/users/without-permissions")[0].path == "api/users/without-permissions"
        assert router.find("GET", "/api/users/u%2Fv/permissions")[1] == {"user": "u/v"}

    def test_empty_segments_are_names(self) -> None:
        with pytest.raises(NotThere):
            Router(ROUTES).find("GET", "/api//queues")
        assert Router(ROUTES).find("GET", "/api/exchanges/%2F//bindings/source")[1] == {"vhost": "/", "exchange": ""}

    def test_what_else_is_allowed(self) -> None:
        with pytest.raises(MethodNotAllowed) as caught:
            Router(ROUTES).find("PATCH", "/api/queues/%2F/q")
        assert caught.value.headers == {"Allow": "DELETE, GET, HEAD, OPTIONS, PUT"}


@pytest.mark.parametrize("tag", ["", "management", "policymaker", "monitoring"])
def test_no_tag_opens_a_route_above_it(tag, user, api, v) -> None:
    """Every route with every tag: above the tag 401 and nothing done, else anything but a 500."""
    caller = user(tag, configure=".*", write=".*", read=".*")
    for route in ROUTES:
        if route.path in STOPPING and route.role <= Role.MONITORING:
            continue
        path = "/" + route.path.replace("{vhost}", v).replace("{", "no-such-").replace("}", "")
        answer = caller(route.method, path, {} if route.method in ("PUT", "POST") else None)
        allowed = route.role == Role.PUBLIC or tag in TAGS[route.role]
        if not allowed:
            assert answer.status == 401, (route, answer)
            assert answer.json["error"] == "not_authorised"
        else:
            assert answer.status != 500, (route, answer)
    assert api.get("/api/amqpd/status")["app_running"] is True


def test_an_administrator_gets_no_500_anywhere(api, v) -> None:
    for route in ROUTES:
        if route.path in STOPPING or (route.method == "DELETE" and route.path == "api/vhosts/{vhost}"):
            continue  # the test wants both to be there afterwards
        path = "/" + route.path.replace("{vhost}", v).replace("{", "no-such-").replace("}", "")
        for body in ({}, [], {"count": "x", "arguments": 1, "tags": 7, "users": {}, "properties": 1, "routing_key": 3}):
            answer = api(route.method, path, body if route.method in ("PUT", "POST") else None)
            assert answer.status != 500, (route, body, answer)


def test_feature_flags_are_all_enabled(api) -> None:
    """rabbitmqadmin, Ansible and clients' suites ask for the list, and enable what is on it."""
    flags = api.get("/api/feature-flags")
    assert {"quorum_queue", "stream_queue", "user_limits"} <= {flag["name"] for flag in flags}
    assert {flag["state"] for flag in flags} == {"enabled"}
    for flag in flags:
        assert api("PUT", f"/api/feature-flags/{flag['name']}/enable", {}).status == 204
    assert api("PUT", "/api/feature-flags/nosuch/enable", {}).status == 400
