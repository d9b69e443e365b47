"""The reference pages made from the route table, and the page about rabbitmqadmin."""

from __future__ import annotations

import re

import pytest

from amqpd.management.openapi import openapi, summary
from amqpd.management.routes import ROUTES


@pytest.fixture
def anonymous(api):
    return type(api)(api.broker, "")


def test_every_route_is_on_the_page_and_in_openapi(anonymous):
    page = anonymous("GET", "/api/index.html").body.decode()
    described = anonymous("GET", "/api/openapi.json").json
    for route in ROUTES:
        assert f"<td>{route.method}</td><td><code>/{route.path}</code></td>" in page
        assert route.method.lower() in described["paths"]["/" + route.path]
    assert len(re.findall("<tr><td>", page)) == len(ROUTES)


def test_every_route_has_a_summary():
    assert [route for route in ROUTES if not summary(route)] == []


def test_openapi_names_each_path_parameter():
    for path, operations in openapi(ROUTES)["paths"].items():
        for operation in operations.values():
            named = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
            assert named == re.findall(r"{(\w+)}", path)
            assert operation["responses"]


@pytest.mark.parametrize("path", ["/api", "/api/", "/cli", "/cli/", "/doc/stats.html"])
def test_older_addresses_redirect_to_the_pages(anonymous, path):
    answer = anonymous("GET", path)
    assert answer.status == 301
    assert anonymous("GET", answer.headers["location"]).status == 200


@pytest.mark.parametrize("path", ["/cli/index.html", "/cli/rabbitmqadmin"])
def test_rabbitmqadmin_page_says_how_to_install(anonymous, path):
    answer = anonymous("GET", path)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert b"cargo install rabbitmqadmin" in answer.body
