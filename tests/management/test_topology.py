"""The topology endpoint: exchanges, queues, links, rates, and permissions."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from itertools import pairwise
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
from amqpd.management.topology import Topology, get_topology
from amqpd.server import Server


def links(topology: Any) -> list[tuple[str, str, str]]:
    names = {each["id"]: each["name"] for each in (*topology["exchanges"], *topology["queues"])}
    return sorted((link["kind"], names[link["source"]], names[link["destination"]]) for link in topology["links"])


def names(topology: Any, kind: str) -> list[str]:
    return sorted(each["name"] for each in topology[kind])


def test_links_show_bindings_alternates_and_dead_letter_exchanges(api, v, channel) -> None:
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
    topology = api.get(f"/api/amqpd/topology/{v}")
    assert links(topology) == [
        ("alternate", "in", "lost"),
        ("binding", "dead", "graves"),
        ("binding", "in", "work"),
        ("binding", "lost", "dead"),
        ("dead_letter", "work", "dead"),
        ("default", "", "alone"),
    ]
    assert names(topology, "exchanges") == ["", "dead", "in", "lost"]  # amq.* are idle
    several = next(link for link in topology["links"] if link["count"] > 1)
    assert (several["count"], len(several["keys"])) == (6, 5)
    assert topology["totals"] == {"exchanges": 10, "queues": 3}


def test_publishers_and_consumers_are_listed(api, v, channel) -> None:
    channel.queue_declare("q")
    channel.queue_bind("q", "amq.topic", "#")
    channel.basic_consume("q", lambda *_: None)
    for _ in range(5):
        channel.basic_publish("amq.topic", "k", b"x")
    until = time.monotonic() + 30
    while True:
        topology = api.get(f"/api/amqpd/topology/{v}")
        queue = topology["queues"][0]
        if (queue["messages"], len(topology["publishers"])) == (5, 1) or time.monotonic() > until:
            break
        time.sleep(0.05)
    assert (queue["name"], queue["messages"], queue["consumers"]) == ("q", 5, 1)
    exchange = topology["exchanges"][0]
    assert (exchange["name"], exchange["bindings"]) == ("amq.topic", 1)
    consumer, publisher = topology["consumers"][0], topology["publishers"][0]
    assert (consumer["queue"], consumer["user"], consumer["count"]) == (queue["id"], "guest", 1)
    assert (publisher["exchange"], publisher["connection"]) == (exchange["id"], consumer["connection"])


@pytest.mark.slow
def test_link_rate_is_estimated_when_several_links_lead_to_a_queue(api, v, channel) -> None:
    channel.queue_declare("one")
    channel.queue_declare("both")
    channel.queue_bind("one", "amq.topic", "#")
    channel.queue_bind("both", "amq.topic", "#")
    channel.queue_bind("both", "amq.fanout", "")
    until = time.monotonic() + 60
    while True:
        for _ in range(20):
            channel.basic_publish("amq.topic", "k", b"x")
        topology = api.get(f"/api/amqpd/topology/{v}")
        rates = {each["name"]: each["in_rate"] for each in topology["queues"]}
        if (rates["one"] > 0 and rates["both"] > 0) or time.monotonic() > until:
            break
        time.sleep(0.1)
    exchanges = {each["id"]: each["name"] for each in topology["exchanges"]}
    queues = {each["id"]: each["name"] for each in topology["queues"]}
    rates_by_link = {
        (exchanges[each["source"]], queues[each["destination"]]): (each["rate"], each["estimated"])
        for each in topology["links"]
    }
    assert rates_by_link["amq.topic", "one"] == (rates["one"], False)
    assert rates_by_link["amq.topic", "both"] == (rates["both"], True)  # amq.fanout gets no publishes
    assert rates_by_link["amq.fanout", "both"] == (0, True)


def test_busiest_queues_come_first_and_name_filter_adds_bound_objects(api, v, channel) -> None:
    for number in range(30):
        channel.queue_declare(f"q{number:02}")
    channel.queue_bind("q29", "amq.topic", "k")
    channel.queue_bind("q28", "amq.topic", "k")
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "q17", b"x")
    topology = api.get(f"/api/amqpd/topology/{v}?count=10")
    assert len(topology["queues"]) == 9  # and amq.topic
    assert topology["queues"][0]["name"] == "q17"
    assert topology["totals"]["queues"] == 30
    topology = api.get(f"/api/amqpd/topology/{v}?name=Q29")
    assert (names(topology, "queues"), names(topology, "exchanges")) == (["q29"], ["amq.topic"])
    topology = api.get(f"/api/amqpd/topology/{v}?name=amq.topic")
    assert (names(topology, "queues"), names(topology, "exchanges")) == (["q28", "q29"], ["amq.topic"])
    for wrong in ("count=0", "count=2001", "count=x"):
        assert api("GET", f"/api/amqpd/topology/{v}?{wrong}").status == 400


def test_topology_requires_monitoring_tag_or_permissions_on_the_vhost(user, api, v, channel) -> None:
    channel.queue_declare("q")
    assert user("management", read="none")("GET", f"/api/amqpd/topology/{v}").status == 200
    assert user("management")("GET", f"/api/amqpd/topology/{v}").status == 401
    assert user("monitoring")("GET", f"/api/amqpd/topology/{v}").status == 200
    assert user("", read=".*")("GET", f"/api/amqpd/topology/{v}").status == 401
    assert user("management").get("/api/amqpd/topology")["queues"] == []
    assert "q" in names(user("monitoring").get("/api/amqpd/topology"), "queues")


class FakeRequest(ApiRequest):
    """A request to the cluster node with the given name."""

    def __init__(self, server: Server, node: str) -> None:
        caller = Principal(User("o", ("administrator",)), True)
        unused: Any = {}
        rates = Rates(server.broker, server.connections)
        super().__init__(server.broker, server, rates, caller, "GET", {}, {}, unused, None)
        self.name = node
        self.cluster: Any = SimpleNamespace()

    @property
    def node(self) -> str:
        return self.name


async def test_links_stay_correct_when_node_answers_are_merged(tmp_path) -> None:
    """Each node numbers its own objects. The gateway merges the answers of all nodes."""
    topology: dict[str, Any] = {}
    for number, name in enumerate(("one", "two")):
        settings = load(["--data-dir", str(tmp_path / name)], {}).settings
        server = Server(settings, asyncio.get_running_loop())
        server.load()
        vhost = server.broker.vhosts["/"]
        declare.declare_queue(vhost, QueueDeclaration(name, False, False, False, {}))
        bind(vhost, vhost.exchanges["amq.topic" if number else "amq.direct"], vhost.queues[name], "k", {})
        answer = await get_topology(FakeRequest(server, f"{name}@host"))
        body = answer.body or b""
        _add(topology, json.loads(body if isinstance(body, bytes) else b"".join(body)))
        server.stop()
        await server.stopped.wait()
    ids = Counter(each["id"] for each in (*topology["exchanges"], *topology["queues"]))
    assert set(ids.values()) == {1}
    assert links(topology) == [("binding", "amq.direct", "one"), ("binding", "amq.topic", "two")]


async def test_link_between_exchanges_has_estimated_rate(tmp_path) -> None:
    """The chain is in -> shop -> lake. Clients publish 10/s to `in` and 1/s to `lake`; `shop` gets 4/s of the 10."""
    server = Server(load(["--data-dir", str(tmp_path)], {}).settings, asyncio.get_running_loop())
    server.load()
    vhost = server.broker.vhosts["/"]
    call = FakeRequest(server, "one@host")
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
    topology = json.loads(body if isinstance(body, bytes) else b"".join(body))
    server.stop()
    await server.stopped.wait()
    names_by_id = {each["id"]: each["name"] for each in (*topology["exchanges"], *topology["queues"])}
    rates_by_link = {
        (names_by_id[each["source"]], names_by_id[each["destination"]]): (each["rate"], each["estimated"])
        for each in topology["links"]
    }
    assert rates_by_link["in", "shop"] == (4.0, True)
    assert rates_by_link["shop", "lake"] == (4.0, True)
    assert rates_by_link["lake", "all"] == (5.0, False)


def new_topology(sources: dict[Any, list[Any]]) -> tuple[Any, Any, list[Any]]:
    """Return a topology of exchanges with a rate of 1 each, its vhost, and a list of the exchanges looked at."""
    looked_at: list[Any] = []

    def bindings_to(thing: Any) -> list[Any]:
        looked_at.append(thing)
        return [SimpleNamespace(source=each, routing_key="k") for each in sources.get(thing, ())]

    vhost = SimpleNamespace(bindings_to=bindings_to)
    call = SimpleNamespace(rates=SimpleNamespace(per_s=lambda *_: (1.0, 1.0)))
    return Topology(call, [vhost]), vhost, looked_at  # type: ignore[arg-type,list-item]


async def test_long_chain_of_exchanges_is_followed_to_its_ends() -> None:
    chain = list(range(3000))
    topology, vhost, _ = new_topology({each: [each - 1] for each in chain[1:]})
    assert await topology._incoming_rate_max(vhost, chain[-1]) == len(chain)
    topology._bound = {each: [each + 1] for each in chain[:-1]}
    topology._busiest = {chain[-1]: 5000.0}
    assert topology._from_exchanges(chain[0]) == 5000 - len(chain)


async def test_shares_of_many_sources_cost_each_source_once() -> None:
    """A queue bound to each exchange of a chain would cost the cube of their number, without a pause."""
    chain = [f"e{number}" for number in range(200)]
    topology, vhost, looked_at = new_topology({"q": chain, **{later: [each] for each, later in pairwise(chain)}})
    topology._ids = {each: str(each) for each in chain} | {"q": "q"}
    found = await topology._links_to("q", vhost)
    assert len(found) == len(chain)
    assert len(looked_at) <= len(chain) ** 2
