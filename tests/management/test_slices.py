"""Slicing of large answers and documents: 100,000 queues and as many bindings, in the test process.

Tests count loop turns while a handler works. Slices have length zero, so a handler that does not yield shows too
few turns. The on-demand tests measure CPU time of the loop's thread.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from amqpd.auth.internal_backend import User
from amqpd.broker.session import Session
from amqpd.broker.vhost import declare as declarations
from amqpd.broker.vhost.declaration import ExchangeDeclaration, QueueDeclaration
from amqpd.broker.vhost.declare import bind, declare_exchange
from amqpd.broker.vhost.pending import DeclarationPending, ObjectName
from amqpd.config import load
from amqpd.management import (
    bindings,
    definitions,
    definitions_import,
    exchanges,
    log_files,
    overview,
    policies,
    queues,
    time_slice,
    topology,
    users,
    vhosts,
)
from amqpd.management import collectors as metrics
from amqpd.management.json_body import parse_json
from amqpd.management.request import ApiError, ApiRequest, Principal
from amqpd.management.stats import Rates
from amqpd.management.time_slice import free_in_slices
from amqpd.server import Server

FEW = 600
MANY = 100_000
DOCUMENT = {
    "vhosts": [{"name": "new"}],
    "queues": [{"name": f"n{n}", "vhost": "new", "durable": False, "arguments": {}} for n in range(10_000)],
    "bindings": [
        {"source": "amq.topic", "vhost": "new", "destination": f"n{n}", "destination_type": "queue",
         "routing_key": f"a.{n}", "arguments": {}} for n in range(10_000)
    ],
}  # fmt: skip


def settle_collector() -> None:
    """Configure the garbage collector like a started broker does, for the rest of this process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture
async def server(tmp_path) -> AsyncIterator[Server]:
    server = Server(load(["--data-dir", str(tmp_path)], {}).settings, asyncio.get_running_loop())
    server.load()
    yield server
    server.stop()
    await server.stopped.wait()


def declare(server: Server, count: int) -> None:
    vhost = server.broker.vhosts["/"]
    for number in range(count):
        declare_exchange(vhost, ExchangeDeclaration(f"x{number}", "fanout", False, False, False, {}))
    for number in range(count):
        name = f"q{(number * 7919) % count}"
        declarations.declare_queue(vhost, QueueDeclaration(name, False, False, False, {}))
        bind(vhost, vhost.exchanges["amq.topic"], vhost.queues[name], f"a.{number}", {})


def make_request(
    server: Server,
    params: dict[str, str] | None = None,
    body: Any = None,
    pairs: Sequence[tuple[str, str]] = (),
    **query: str,
) -> ApiRequest:
    rates = Rates(server.broker, server.connections)
    caller = Principal(User("o", ("administrator",)), True)
    headers: Any = SimpleNamespace(get=dict.get)
    return ApiRequest(server.broker, server, rates, caller, "GET", params or {}, query, headers, body, pairs)


V = {"vhost": "/"}
HANDLERS = {
    "queues": lambda server: queues.get_queues(make_request(server)),
    "a page of queues": lambda server: queues.get_queues(make_request(server, V, page="3", name="q")),
    "queues with samples": lambda server: queues.get_queues(
        make_request(server, msg_rates_age="60", msg_rates_incr="5", lengths_age="3600", lengths_incr="60")
    ),
    "exchanges": lambda server: exchanges.get_exchanges(make_request(server)),
    "queues by messages": lambda server: queues.get_queues(make_request(server, V, page="1", sort="messages")),
    "vhosts": lambda server: vhosts.get_vhosts(make_request(server)),
    "bindings": lambda server: bindings.get_bindings(make_request(server)),
    "bindings of the default": lambda server: bindings.get_source_bindings(
        make_request(server, {"vhost": "/", "exchange": "amq.default"})
    ),
    "bindings of an exchange": lambda server: bindings.get_source_bindings(
        make_request(server, {"vhost": "/", "exchange": "amq.topic"})
    ),
    "definitions": lambda server: definitions.get_definitions(make_request(server)),
    "definitions of a vhost": lambda server: definitions.get_vhost_definitions(make_request(server, V)),
    "overview": lambda server: overview.overview(make_request(server)),
    "metrics": lambda server: metrics.metrics(make_request(server)),
    "metrics per object": lambda server: metrics.per_object(make_request(server)),
    "detailed metrics": lambda server: metrics.detailed(
        make_request(server, pairs=[("family", "queue_coarse_metrics")])
    ),
    "rates": lambda server: Rates(server.broker, server.connections).sweep(),
    "topology": lambda server: topology.get_topology(make_request(server, V, count="2000")),
    "a search in the topology": lambda server: topology.get_topology(make_request(server, V, name="amq.topic")),
    "exports": lambda server: log_files.get_all_exports(make_request(server)),
    "a policy's preview": lambda server: policies.preview(
        False, make_request(server, V, {"name": "p", "pattern": "^q", "definition": {"max-length": 5}})
    ),
    "an import's difference": lambda server: definitions_import.post_difference(
        make_request(server, {}, {"queues": [{"vhost": "/", "name": f"q{number}"} for number in range(FEW)]})
    ),
    "bulk delete": lambda server: users.bulk_delete(make_request(server, {}, {"users": ["guest"] * FEW})),
}


async def test_handlers_with_long_answers_yield_to_the_loop(server, monkeypatch):
    declare(server, FEW)
    monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
    too_long = []
    for name, handler in HANDLERS.items():
        task = asyncio.ensure_future(handler(server))
        turns = 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
        await task
        if turns < FEW:
            too_long.append(name)
    assert not too_long


@pytest.mark.parametrize("at", ["the dry run", "the calls"])
async def test_document_that_waits_for_a_reserved_name_is_freed_in_slices(server, monkeypatch, at):
    """The document is parsed again when the name is free."""
    released = []
    monkeypatch.setattr(definitions_import, "free_in_slices", lambda items: released.append(items) or asyncio.sleep(0))
    if at == "the calls":
        monkeypatch.setattr(definitions_import.Import, "check", lambda self: asyncio.sleep(0))
    server.broker.catalogue.declared.hold(ObjectName("/", "queue", "q"))
    with pytest.raises(DeclarationPending):
        await definitions_import.post_definitions(make_request(server, {}, {"queues": [{"name": "q", "vhost": "/"}]}))
    assert [item["name"] for items in released for item in items] == ["q"]


async def test_exclusive_queues_may_be_deleted_during_listing(server, monkeypatch):
    monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
    vhost = server.broker.vhosts["/"]
    shown = set()
    for turns in range(20):
        session = Session(server.broker, vhost, User("o"), "mine", ("127.0.0.1", 1))
        for number in range(5):
            declarations.declare_queue(vhost, QueueDeclaration(f"q{number}", False, True, False, {}, session))
        answer = asyncio.ensure_future(queues.get_queues(make_request(server)))
        for _ in range(turns):
            await asyncio.sleep(0)
        declarations.delete_queues(vhost, vhost.exclusive_queues(session))
        items = json.loads(b"".join((await answer).body))
        assert all(item["exclusive"] for item in items)
        shown.add(sum("owner_pid_details" in item for item in items))
    assert {0, 5} < shown, "the runs must include one with no owner and one with all owners"


@pytest.mark.on_demand
@pytest.mark.parametrize("name", [*HANDLERS, "import", "9 MB of {}", "a long payload", "a policy"])
async def test_handler_blocks_the_loop_for_at_most_20_ms(server, name):
    text = json.dumps(DOCUMENT)

    async def import_document() -> None:
        document = await parse_json(text, True)
        await definitions_import.post_definitions(make_request(server, {}, document))
        await free_in_slices(document)

    if name == "import":
        work: Any = import_document()
    elif name == "a policy":
        declare(server, MANY)
        definition = {"max-length": 5, "message-ttl": 60_000, "dead-letter-exchange": "d"}
        body = {"pattern": "^q", "definition": definition}
        work = policies.put_policy(False, make_request(server, {"vhost": "/", "name": "p"}, body))
    elif name == "9 MB of {}":
        work = parse_json("[" + "{}," * 3_000_000 + "{}]", True)
    elif name == "a long payload":
        work = parse_json(json.dumps({"payload": "x\\n" * 3_000_000}))
    else:
        declare(server, MANY)
        work = HANDLERS[name](server)
    longest = 0.0
    settle_collector()
    start = time.perf_counter()
    task = asyncio.ensure_future(work)
    while not task.done():
        before = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - before)
    error = task.exception()
    del task
    assert error is None or isinstance(error, ApiError), error
    print(f"{name}: {longest * 1000:.1f} ms of {time.perf_counter() - start:.2f} s")
    # Objects that a policy creates stay alive, so the collector scans them: 40 ms.
    assert longest < (0.040 if name == "a policy" else 0.020)
