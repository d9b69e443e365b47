"""Dry run of a definitions import whose objects belong to several nodes."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from amqpd.auth.internal_backend import User
from amqpd.broker.vhost import declare, vhosts
from amqpd.broker.vhost.declaration import QueueDeclaration
from amqpd.broker.vhost.pending import wait_done
from amqpd.cluster.api_gateway import ApiGateway
from amqpd.cluster.view import NodeState
from amqpd.config import load
from amqpd.management.request import ApiRequest, ApiResponse, Principal
from amqpd.management.router import ApiRoute
from amqpd.management.routes import ROUTES
from amqpd.management.stats import Rates
from amqpd.server import Server

TWO = NodeState("two@host", "127.0.0.1", 1, "f")
ROUTE = next(route for route in ROUTES if route.path == "api/amqpd/definitions/difference")
DOCUMENT = {
    "users": [{"name": "anna", "password": "secret", "tags": ""}],
    "vhosts": [{"name": "eu"}, {"name": "asia"}],
    "permissions": [{"user": "anna", "vhost": "eu", "configure": "", "write": ".*", "read": ".*"}],
    "queues": [
        {"vhost": "/", "name": "here"},
        {"vhost": "eu", "name": "there"},
        {"vhost": "eu", "name": "coming"},
        {"vhost": "asia", "name": "new"},
    ],
}


def start_server(folder: Path) -> Server:
    server = Server(load(["--data-dir", str(folder)], {}).settings, asyncio.get_running_loop())
    server.load()
    return server


def call(server: Server, body: Any, **query: str) -> ApiRequest:
    nothing: Any = {}
    caller = Principal(User("o", ("administrator",)), True)
    rates = Rates(server.broker, server.connections)
    return ApiRequest(server.broker, server, rates, caller, "POST", {}, query, nothing, body)


class TwoNodeGateway(ApiGateway):
    """The gateway of a node in a cluster with one more node, which serves `eu`."""

    def __init__(self, server: Server, other: Server) -> None:
        view: Any = SimpleNamespace(
            node_name="one@host", knows=lambda vhost: vhost == "eu", owner_of=lambda _: TWO, position=lambda: 0
        )
        nothing: Any = None
        super().__init__(server.broker, view, nothing)
        self.other = other

    async def _ask(self, node: NodeState, route: ApiRoute, request: ApiRequest) -> ApiResponse:
        assert node == TWO
        return await route.handler(call(self.other, json.loads(json.dumps(request.body)), **request.query))


async def difference(nodes: tuple[Server, Server], document: Any, **query: str) -> Any:
    one, two = nodes
    found = await TwoNodeGateway(one, two).handler(ROUTE)(call(one, document, **query))
    assert found.status == 200
    return json.loads(found.body if isinstance(found.body, bytes) else b"".join(found.body or []))


async def test_difference_combines_the_answers_of_all_nodes(tmp_path) -> None:
    one, two = start_server(tmp_path / "one"), start_server(tmp_path / "two")
    try:
        here, there = (QueueDeclaration(name, True, False, False, {}) for name in ("here", "there"))
        await wait_done(partial(declare.declare_queue, one.broker.vhosts["/"], here))
        await wait_done(partial(vhosts.declare, two.broker.vhosts, "eu", "", [], "classic"))
        await wait_done(partial(declare.declare_queue, two.broker.vhosts["eu"], there))
        found = await difference((one, two), DOCUMENT)
        assert found["possible"]
        assert found["counts"]["queues"] == {"new": 2, "changed": 0, "same": 2, "kept": 0}
        assert found["counts"]["users"] == {"new": 1, "changed": 0, "same": 0, "kept": 0}
        assert found["counts"]["permissions"] == {"new": 1, "changed": 0, "same": 0, "kept": 0}
        new = sorted(each["name"] for each in found["changes"] if each["what"] == "new")
        assert new == ["anna", "anna", "asia", "coming", "new"]
        paths = [each["path"] for each in found["changes"]]
        assert "two@host: queues[1]" in paths
        assert len(set(paths)) == len(paths)
        counted = await difference((one, two), DOCUMENT, count="0")
        assert (counted["changes"], counted["changes_left_out"]) == ([], 5)
        wrong = {"queues": [{"vhost": "eu", "name": "q", "arguments": {"x-max-length": "many"}}]}
        refused = await difference((one, two), wrong)
        assert not refused["possible"]
        assert [each["path"] for each in refused["skipped"]] == ["two@host: queues[0]"]
    finally:
        for server in (one, two):
            server.stop()
            await server.stopped.wait()
