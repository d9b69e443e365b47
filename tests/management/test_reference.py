"""The pages made from the routes, and the client that is fetched from the broker."""

from __future__ import annotations

import re

import pytest

from amqpd.management.openapi import openapi, summary
from amqpd.management.routes import ROUTES


@pytest.fixture
def anybody(api):
    return type(api)(api.broker, "")


def test_every_route_stands_on_the_page_and_in_the_description(anybody):
    page = anybody("GET", "/api/index.html").body.decode()
    described = anybody("GET", "/api/openapi.json").json
    for route in ROUTES:
        assert f"<td>{route.method}</td><td><code>/{route.path}</code></td>" in page
        assert route.method.lower() in described["paths"]["/" + route.path]
    assert len(re.findall("<tr><td>", page)) == len(ROUTES)


def test_every_route_says_what_it_is_for():
    assert [route for route in ROUTES if not summary(route)] == []


def test_a_description_names_each_parameter_of_its_path():
    for path, operations in openapi(ROUTES)["paths"].items():
        for operation in operations.values():
            named = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"]
            assert named == re.findall(r"{(\w+)}", path)
            assert operation["responses"]


@pytest.mark.parametrize("path", ["/api", "/api/", "/cli", "/cli/", "/doc/stats.html"])
def test_older_addresses_lead_to_the_pages(anybody, path):
    answer = anybody("GET", path)
    assert answer.status == 301
    assert anybody("GET", answer.headers["location"]).status == 200


@pytest.mark.parametrize("path", ["/cli/index.html", "/cli/rabbitmqadmin"])
def test_the_place_of_rabbitmqadmin_says_where_to_get_it(anybody, path):
    answer = anybody("GET", path)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert b"cargo install rabbitmqadmin" in answer.body
