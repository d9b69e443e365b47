"""Definitions exchanged between RabbitMQ 3.10.8 and amqpd in both directions: the same objects, and logins work on
both.

RabbitMQ is Debian's package, started as a separate node by interop/bench, in about 20 s. Without the package the test
is skipped; with TEST_REQUIRE_RABBITMQ it is installed. RabbitMQ's export is stored in tests/samples/definitions
(TEST_RECORD_DEFINITIONS names that folder to write it again). With it tests/management/test_definitions_samples.py
tests everything except RabbitMQ's own part.
"""

from __future__ import annotations

import http.client
import json
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPConnectionError

from amqpd.testing import BrokerProcess
from interop.bench import machine
from interop.bench.rabbitmq import PACKAGE, RabbitMQ, find_or_install, is_installed
from interop.compare.definitions import keys_apart

pytestmark = pytest.mark.skipif("TEST_INTEROP_URL" in os.environ, reason="starts both brokers itself")

SHA256 = "rabbit_password_hashing_sha256"


class Api:
    """The HTTP API of one broker, as user guest."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            token = b64encode(b"guest:guest").decode()
            headers = {"Authorization": f"Basic {token}", "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(content) if content else None

    def call(self, method: str, path: str, body: object = None) -> None:
        status, answer = self(method, path, body)
        assert status < 300, (method, path, status, answer)

    def get(self, path: str) -> Any:
        status, answer = self("GET", path)
        assert status == 200, (path, status, answer)
        return answer


def declare(api: Api) -> None:
    """Declare one of everything that both brokers have."""
    put = "PUT"
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    for method, path, body in (
        (put, "vhosts/shop", {"description": "web shop", "tags": "web,eu"}),
        (put, "users/alice", {"password": "wonder", "tags": "management"}),
        (put, "users/boss", {"password": "secret", "tags": "administrator"}),
        (put, "users/nobody", {"password_hash": "", "tags": ""}),
        (put, "permissions/shop/alice", {"configure": "^alice\\.", "write": ".*", "read": "^(orders|audit)$"}),
        (put, "permissions/shop/guest", everything),
        (put, "permissions/shop/boss", everything),
        (put, "topic-permissions/shop/alice", {"exchange": "events", "write": "^a", "read": ".*"}),
        (put, "user-limits/alice/max-connections", {"value": 12}),
        (put, "vhost-limits/shop/max-queues", {"value": 50}),
        (put, "global-parameters/team", {"value": {"name": "payments", "pager": [1, 2]}}),
        (
            put,
            "policies/shop/caps",
            {
                "pattern": "^(?!amq\\.).*",
                "definition": {"max-length": 9, "overflow": "reject-publish", "alternate-exchange": "rest"},
                "priority": 3,
                "apply-to": "all",
            },
        ),
        (put, "policies/shop/ha", {"pattern": "^ha", "definition": {"ha-mode": "all"}, "apply-to": "queues"}),
        (put, "operator-policies/shop/most", {"pattern": "", "definition": {"expires": 3600000}, "apply-to": "queues"}),
        (put, "exchanges/shop/events", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "rest"}}),
        (put, "exchanges/shop/rest", {"type": "fanout", "durable": True, "internal": True}),
        (put, "exchanges/shop/passing", {"type": "headers", "durable": False, "auto_delete": True}),
        (
            put,
            "queues/shop/orders",
            {
                "durable": True,
                "arguments": {
                    "x-message-ttl": 60000,
                    "x-dead-letter-exchange": "rest",
                    "x-max-priority": 5,
                    "x-queue-mode": "lazy",
                },
            },
        ),
        (put, "queues/shop/audit", {"durable": True, "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 4}}),
        (put, "queues/shop/history", {"durable": True, "arguments": {"x-queue-type": "stream", "x-max-age": "7D"}}),
        (put, "queues/shop/transient", {"durable": False}),
        (
            put,
            "queues/shop/going",
            {"durable": True, "auto_delete": True, "arguments": {"x-single-active-consumer": True}},
        ),
        ("POST", "bindings/shop/e/events/q/orders", {"routing_key": "order.#", "arguments": {"n": 1, "s": "t"}}),
        ("POST", "bindings/shop/e/events/q/history", {"routing_key": "#"}),
        ("POST", "bindings/shop/e/events/e/rest", {"routing_key": "e.*"}),
        ("POST", "bindings/shop/e/passing/q/transient", {"arguments": {"x-match": "any", "kind": "a"}}),
        ("POST", "bindings/shop/e/amq.fanout/q/going", {}),
    ):
        api.call(method, f"/api/{path}", body)


def equal_definitions(document: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if both declare the same objects. Print the differences."""
    found = []
    for each in (document, other):
        lines = set()
        for kind, items in each.items():
            if kind not in keys_apart(""):
                names = keys_apart(kind) if kind == "global_parameters" else frozenset[str]()
                comparable = [_comparable(kind, item) for item in items if item.get("name") not in names]
                lines |= {f"{kind} {json.dumps(item, sort_keys=True)}" for item in comparable}
        found.append(lines)
    for line in sorted(found[0] ^ found[1]):
        print("<" if line in found[0] else ">", line)
    return found[0] == found[1]


def _comparable(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    """Return the item in one form, without keys that only one broker has."""
    if kind == "queues":
        comparable = {"x-queue-type": item.get("type") or "classic"}
        item = {**item, "arguments": comparable | item["arguments"]}
    return {key: value for key, value in item.items() if key not in keys_apart(kind)}


def can_log_in(port: int, user: str, password: str, vhost: str = "shop") -> bool:
    parameters = pika.ConnectionParameters("127.0.0.1", port, vhost, pika.PlainCredentials(user, password))
    try:
        pika.BlockingConnection(parameters).close()
    except AMQPConnectionError:
        return False
    return True


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RabbitMQ, Api]]:
    if os.environ.get("TEST_REQUIRE_RABBITMQ"):
        missing = find_or_install(print)
        assert not missing, missing
    elif not is_installed():
        pytest.skip(f"needs RabbitMQ: apt install {PACKAGE}, or set TEST_REQUIRE_RABBITMQ=1")
    http_port = machine.free_port()
    config = f"management.tcp.port = {http_port}\nmanagement.tcp.ip = 127.0.0.1\n"
    node = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"), ["rabbitmq_management"], config)
    try:
        node.start()
        yield node, Api(http_port)
    finally:
        node.stop()


@pytest.mark.external
def test_definitions_survive_rabbitmq_to_amqpd_and_back(rabbitmq: tuple[RabbitMQ, Api], tmp_path: Path) -> None:
    node, theirs = rabbitmq
    declare(theirs)
    exported_by_rabbitmq = theirs.get("/api/definitions")
    if folder := os.environ.get("TEST_RECORD_DEFINITIONS"):
        text = json.dumps(exported_by_rabbitmq, indent=1, sort_keys=True)
        (Path(folder) / "rabbitmq-3.10.8.json").write_text(text + "\n", "utf-8")
        of_vhost = json.dumps(theirs.get("/api/definitions/shop"), indent=1, sort_keys=True)
        (Path(folder) / "rabbitmq-3.10.8-vhost.json").write_text(of_vhost + "\n", "utf-8")
    with BrokerProcess(tmp_path / "kept", settings={"auth.password_hashing": SHA256}) as broker:
        ours = Api(broker.http_port)
        assert ours("POST", "/api/definitions?report=true", exported_by_rabbitmq) == (
            200,
            {"unknown": [], "unknown_count": 0, "skipped": [], "skipped_count": 0},
        )
        assert can_log_in(broker.amqp_port, "alice", "wonder")
        assert not can_log_in(broker.amqp_port, "alice", "wrong")
        ours.call("PUT", "/api/users/new", {"password": "fresh", "tags": ""})
        ours.call("PUT", "/api/permissions/shop/new", {"configure": "", "write": "", "read": ""})
        exported = ours.get("/api/definitions")
    with BrokerProcess(tmp_path / "renewed") as broker:
        ours = Api(broker.http_port)
        ours.call("POST", "/api/definitions", exported_by_rabbitmq)
        assert can_log_in(broker.amqp_port, "alice", "wonder")
        renewed = ours.get("/api/definitions")
    theirs.call("DELETE", "/api/vhosts/shop")
    for user in ("alice", "boss", "nobody"):
        theirs.call("DELETE", f"/api/users/{user}")
    assert not can_log_in(node.port, "alice", "wonder")
    theirs.call("POST", "/api/definitions", exported)
    assert can_log_in(node.port, "alice", "wonder")
    assert can_log_in(node.port, "boss", "secret")
    assert can_log_in(node.port, "new", "fresh")
    theirs.call("DELETE", "/api/users/new")
    assert equal_definitions(exported_by_rabbitmq, theirs.get("/api/definitions"))
    # The login gave alice an argon2id hash, which RabbitMQ does not support. boss can still log in.
    theirs.call("POST", "/api/definitions", renewed)
    assert not can_log_in(node.port, "alice", "wonder")
    assert not can_log_in(node.port, "alice", "")
    assert can_log_in(node.port, "boss", "secret")
