"""What a picture of the topology is drawn from."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.auth.internal_backend import User
from amqpd.broker.vhost import declare
from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.declare import bind
from amqpd.cluster.api_gateway import _add
from amqpd.config import load
from amqpd.management.request import ApiRequest, Principal
from amqpd.management.stats import QUEUE, READERS, Rates, Sample
from amqpd.management.topology import get_topology
from amqpd.server import Server


def links(found: Any) -> list[tuple[str, str, str]]:
    names = {each["id"]: each["name"] for each in (*found["exchanges"], *found["queues"])}
    return sorted((link["kind"], names[link["source"]], names[link["destination"]]) for link in found["links"])


def names(found: Any, kind: str) -> list[str]:
    return sorted(each["name"] for each in found[kind])


def test_what_leads_where(api, v, channel) -> None:
    channel.exchange_declare("in", "topic", arguments={"alternate-exchange": "lost"})
    channel.exchange_declare("lost", "fanout")
    channel.exchange_declare("dead", "fanout")
    channel.queue_declare("work", arguments={"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "k"})
    channel.queue_declare("graves")
    channel.queue_declare("alone")
    for key in ("a", "b", "c", "d", "e", "f"):
        channel.queue_bind("work", "in", key)
    channel.queue_bind("graves", "dead", "")
    channel.exchange_bind("dead", "lost", "")
    found = api.get(f"/api/amqpd/topology/{v}")
    assert links(found) == [
        ("alternate", "in", "lost"),
        ("binding", "dead", "graves"),
        ("binding", "in", "work"),
        ("binding", "lost", "dead"),
        ("dead_letter", "work", "dead"),
        ("default", "", "alone"),
    ]
    assert names(found, "exchanges") == ["", "dead", "in", "lost"]  # amq.* are idle
    several = next(link for link in found["links"] if link["count"] > 1)
    assert (several["count"], len(several["keys"])) == (6, 5)
    assert found["totals"] == {"exchanges": 10, "queues": 3}


def test_who_publishes_and_consumes(api, v, channel) -> None:
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", "#")
    channel.basic_consume("q", lambda *_: None)
    for _ in range(5):
        channel.basic_publish("amq.topic", "k", b"x")
    until = time.monotonic() + 30
    while True:
        found = api.get(f"/api/amqpd/topology/{v}")
        queue = found["queues"][0]
        if (queue["messages"], len(found["publishers"])) == (5, 1) or time.monotonic() > until:
            break
        time.sleep(0.05)
    assert (queue["name"], queue["messages"], queue["consumers"]) == ("q", 5, 1)
    exchange = found["exchanges"][0]
    assert (exchange["name"], exchange["bindings"]) == ("amq.topic", 1)
    consumer, publisher = found["consumers"][0], found["publishers"][0]
    assert (consumer["queue"], consumer["user"], consumer["count"]) == (queue["id"], "guest", 1)
    assert (publisher["exchange"], publisher["connection"]) == (exchange["id"], consumer["connection"])


@pytest.mark.slow
def test_rates_are_those_of_lists_and_shared_where_several_lead_to_a_queue(api, v, channel) -> None:
    channel.queue_declare("one")
    channel.queue_declare("both")
    channel.queue_bind("one", "amq.topic", "#")
    channel.queue_bind("both", "amq.topic", "#")
    channel.queue_bind("both", "amq.fanout", "")
    until = time.monotonic() + 60
    while True:
        for _ in range(20):
            channel.basic_publish("amq.topic", "k", b"x")
        found = api.get(f"/api/amqpd/topology/{v}")
        rates = {each["name"]: each["in_rate"] for each in found["queues"]}
        if (rates["one"] > 0 and rates["both"] > 0) or time.monotonic() > until:
            break
        time.sleep(0.1)
    exchanges = {each["id"]: each["name"] for each in found["exchanges"]}
    queues = {each["id"]: each["name"] for each in found["queues"]}
    told = {
        (exchanges[each["source"]], queues[each["destination"]]): (each["rate"], each["estimated"])
        for each in found["links"]
    }
    assert told["amq.topic", "one"] == (rates["one"], False)
    assert told["amq.topic", "both"] == (rates["both"], True)  # nobody publishes to the other one
    assert told["amq.fanout", "both"] == (0, True)


def test_of_many_the_busiest_and_those_of_a_name_with_what_they_are_bound_to(api, v, channel) -> None:
    for number in range(30):
        channel.queue_declare(f"q{number:02}")
    channel.queue_bind("q29", "amq.topic", "k")
    channel.queue_bind("q28", "amq.topic", "k")
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "q17", b"x")
    found = api.get(f"/api/amqpd/topology/{v}?count=10")
    assert len(found["queues"]) == 9  # and amq.topic
    assert found["queues"][0]["name"] == "q17"
    assert found["totals"]["queues"] == 30
    found = api.get(f"/api/amqpd/topology/{v}?name=Q29")
    assert (names(found, "queues"), names(found, "exchanges")) == (["q29"], ["amq.topic"])
    found = api.get(f"/api/amqpd/topology/{v}?name=amq.topic")
    assert (names(found, "queues"), names(found, "exchanges")) == (["q28", "q29"], ["amq.topic"])
    for wrong in ("count=0", "count=2001", "count=x"):
        assert api("GET", f"/api/amqpd/topology/{v}?{wrong}").status == 400


def test_who_may_see_it(user, api, v, channel) -> None:
    channel.queue_declare("q")
    assert user("management", read="none")("GET", f"/api/amqpd/topology/{v}").status == 200
    assert user("management")("GET", f"/api/amqpd/topology/{v}").status == 401
    assert user("monitoring")("GET", f"/api/amqpd/topology/{v}").status == 200
    assert user("", read=".*")("GET", f"/api/amqpd/topology/{v}").status == 401
    assert user("management").get("/api/amqpd/topology")["queues"] == []
    assert "q" in names(user("monitoring").get("/api/amqpd/topology"), "queues")


class Asked(ApiRequest):
    """Of a node of that name, in a cluster."""

    def __init__(self, server: Server, node: str) -> None:
        caller = Principal(User("o", ("administrator",)), True)
        nothing: Any = {}
        rates = Rates(server.broker, server.connections)
        super().__init__(server.broker, server, rates, caller, "GET", {}, {}, nothing, None)
        self.name = node
        self.cluster: Any = SimpleNamespace()

    @property
    def node(self) -> str:
        return self.name


async def test_of_a_cluster_a_link_leads_to_its_own_nodes_queue(tmp_path) -> None:
    """Each node numbers what it has; what they say is put together."""
    found: dict[str, Any] = {}
    for number, name in enumerate(("one", "two")):
        settings = load(["--data-dir", str(tmp_path / name)], {}).settings
        server = Server(settings, asyncio.get_running_loop())
        server.load()
        vhost = server.broker.vhosts["/"]
        declare.declare_queue(vhost, QueueDeclaration(name, False, False, False, {}))
        bind(vhost, vhost.exchanges["amq.topic" if number else "amq.direct"], vhost.queues[name], "k", {})
        answer = await get_topology(Asked(server, f"{name}@host"))
        body = answer.body or b""
        _add(found, json.loads(body if isinstance(body, bytes) else b"".join(body)))
        server.stop()
        await server.stopped.wait()
    ids = Counter(each["id"] for each in (*found["exchanges"], *found["queues"]))
    assert set(ids.values()) == {1}
    assert links(found) == [("binding", "amq.direct", "one"), ("binding", "amq.topic", "two")]


async def test_a_link_between_exchanges_has_a_rate(tmp_path) -> None:
    """in -> shop -> lake. Clients publish 10 a second to the first and 1 to the last; 4 of the first are the shop's."""
    server = Server(load(["--data-dir", str(tmp_path)], {}).settings, asyncio.get_running_loop())
    server.load()
    vhost = server.broker.vhosts["/"]
    call = Asked(server, "one@host")
    for name, in_per_s in (("in", 10.0), ("shop", 0.0), ("lake", 1.0)):
        declare.declare_exchange(vhost, ExchangeDeclaration(name, "topic", False, False, False, {}))
        call.rates._samples[vhost.exchanges[name]] = Sample((0, 0), (in_per_s, 0.0), 0.0)
    bind(vhost, vhost.exchanges["in"], vhost.exchanges["shop"], "eu.#", {})
    bind(vhost, vhost.exchanges["shop"], vhost.exchanges["lake"], "#", {})
    for name, source, in_per_s in (("eu", "shop", 4.0), ("all", "lake", 5.0)):
        declare.declare_queue(vhost, QueueDeclaration(name, False, False, False, {}))
        queue = vhost.queues[name]
        bind(vhost, vhost.exchanges[source], queue, "#", {})
        counts = READERS[QUEUE](queue)
        call.rates._samples[queue] = Sample(counts, (in_per_s, *(0.0 for _ in counts[1:])), 0.0)
    answer = await get_topology(call)
    body = answer.body or b""
    found = json.loads(body if isinstance(body, bytes) else b"".join(body))
    server.stop()
    await server.stopped.wait()
    called = {each["id"]: each["name"] for each in (*found["exchanges"], *found["queues"])}
    told = {
        (called[each["source"]], called[each["destination"]]): (each["rate"], each["estimated"])
        for each in found["links"]
    }
    assert told["in", "shop"] == (4.0, True)
    assert told["shop", "lake"] == (4.0, True)
    assert told["lake", "all"] == (5.0, False)
