"""A broker with examples of everything on the page: users of each kind, hostile names, all kinds of messages, streams,
policies, limits, exports, a Kafka group, and active clients.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from typing import Any, Self
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

PASSWORD = "a password of tests"
# Name: tags. All have permissions in "/". `nobody` has no tag and cannot log in.
USERS = {
    "anna": "administrator",
    "mona": "monitoring",
    "polly": "policymaker",
    "manny": "management",
    "nobody": "",
}
SCRIPT = "<script>document.title='taken over'</script><img src=x onerror=\"document.title='taken over'\">"
LONG = "long-" + "x" * 250
RIGHT_TO_LEFT = "\u202eabc \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627"
CONTROL = "bell\x07 escape\x1b[31m tab\t del\x7f"
WORDS = "a/b?c=d&e#f %2F 100% ünï \U0001f430"
HOSTILE = (SCRIPT, LONG, RIGHT_TO_LEFT, CONTROL, WORDS, "constructor", "__proto__", "..", " ")
"""Allowed but hostile names of a vhost, exchange, queue, user or policy."""


def part(name: str) -> str:
    """Encode a name as a path segment."""
    return quote(name, safe="")


class Shop:
    """A broker whose clients publish and consume while the context is entered. process: the broker."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []
        self._connections = ExitStack()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.process, name)

    def __enter__(self) -> Self:
        self._make_users()
        with pika.BlockingConnection(self._parameters("shop set-up")) as connection:
            self._make_topology(connection.channel())
        self._make_rules()
        self._make_hostile()
        for work in (self._publish, self._consume):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(30)
        self._connections.close()

    def _parameters(self, name: str) -> pika.URLParameters:
        parameters = pika.URLParameters(f"{self.process.url}%2F")
        parameters.client_properties = {"connection_name": name}
        return parameters

    def put(self, path: str, body: object) -> None:
        self.process.api("PUT", path, body)

    def _make_users(self) -> None:
        for name, tags in USERS.items():
            self.put(f"/api/users/{name}", {"password": PASSWORD, "tags": tags})
            if tags:
                self.put(f"/api/permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
        self.put("/api/topic-permissions/%2F/manny", {"exchange": "orders", "write": "^eu\\.", "read": ".*"})
        self.put("/api/user-limits/manny/max-connections", {"value": 10})

    def _make_topology(self, channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        channel.exchange_declare("orders", "topic", durable=True, arguments={"alternate-exchange": "unrouted"})
        channel.exchange_declare("unrouted", "fanout", durable=True)
        channel.exchange_declare("dead", "direct", durable=True)
        channel.exchange_declare("audit", "headers", durable=True)
        work = {"x-dead-letter-exchange": "dead", "x-queue-type": "quorum"}
        for country in ("eu", "us", "asia"):
            channel.queue_declare(f"orders.{country}", durable=True, arguments=work)
            channel.queue_bind(f"orders.{country}", "orders", f"{country}.#")
        channel.queue_declare("invoices", durable=True, arguments={"x-export": "lake"})
        channel.queue_bind("invoices", "orders", "*.paid")
        channel.queue_declare("graveyard", durable=True)
        for country in ("eu", "us", "asia"):
            channel.queue_bind("graveyard", "dead", f"{country}.paid")
        channel.queue_declare("lost", durable=True)
        channel.queue_bind("lost", "unrouted", "")
        channel.exchange_bind("audit", "orders", "#")
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_bind("events", "audit", "", {"x-match": "all", "kind": "order"})
        channel.queue_declare("tasks", durable=True, arguments={"x-max-priority": 5})
        for number in range(120):
            body = json.dumps({"order": number, "lines": [{"item": "tea", "count": number % 7 + 1}]}).encode()
            headers = {"kind": "order", "attempt": number % 3, "shop": "Zürich"}
            properties = pika.BasicProperties("application/json", headers=headers, message_id=f"order-{number}")
            country = ("eu", "us", "asia")[number % 3]
            channel.basic_publish("orders", f"{country}.paid", body, properties)
        channel.basic_publish("", "tasks", b"plain text", pika.BasicProperties("text/plain", priority=3))
        channel.basic_publish("", "tasks", bytes(range(256)), pika.BasicProperties("application/octet-stream"))
        channel.basic_publish("", "tasks", SCRIPT.encode(), pika.BasicProperties("text/html", headers={SCRIPT: SCRIPT}))
        channel.basic_publish("orders", "nowhere", b"nobody wants it")

    def _make_rules(self) -> None:
        policy = {"pattern": "^orders\\.", "definition": {"max-length": 100_000}, "priority": 3}
        self.put("/api/policies/%2F/orders", policy)
        self.put("/api/operator-policies/%2F/ceiling", {"pattern": ".*", "definition": {"max-length": 1_000_000}})
        self.put("/api/vhosts/shop-eu", {"description": "The European shop", "tags": "production"})
        self.put("/api/vhost-limits/shop-eu/max-queues", {"value": 50})
        self.put("/api/amqpd/exports/%2F/orders.eu", {"name": "warehouse", "max_bytes": 1 << 30})
        place = {"topic": "events", "to": "earliest"}
        self.process.api("POST", "/api/amqpd/kafka/groups/%2F/report/offsets", place)

    def _make_hostile(self) -> None:
        """Create a vhost, user and policy of each hostile name, and an exchange and queue of each in one vhost."""
        self.put("/api/vhosts/hostile", {})
        for name in HOSTILE:
            at = part(name)
            self.put(f"/api/users/{at}", {"password": PASSWORD, "tags": "management"})
            self.put(f"/api/permissions/hostile/{at}", {"configure": "", "write": "", "read": ".*"})
            if name not in ("..", " "):
                self.put(f"/api/vhosts/{at}", {"description": name})
            self.put(f"/api/policies/hostile/{at}", {"pattern": "^none$", "definition": {"max-length": 5}})
            self.put(f"/api/exchanges/hostile/{at}", {"type": "topic"})
            self.put(f"/api/queues/hostile/{at}", {})
            binding = {"routing_key": name[:200], "arguments": {name: name}}
            self.process.api("POST", f"/api/bindings/hostile/e/{at}/q/{at}", binding)

    # -- clients at work ----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        with pika.BlockingConnection(self._parameters("till 1")) as connection:
            channel = connection.channel()
            number = 0
            while not self._done.wait(0.05):
                number += 1
                key = ("eu.new", "us.new", "asia.new", "eu.paid")[number % 4]
                properties = pika.BasicProperties("application/json", headers={"kind": "order"}, delivery_mode=2)
                channel.basic_publish("orders", key, json.dumps({"order": number}).encode(), properties)

    def _consume(self) -> None:
        """Consume eu and us; the queue of asia grows."""
        with pika.BlockingConnection(self._parameters("packing eu")) as connection:
            channel = connection.channel()
            channel.basic_qos(prefetch_count=50)
            for queue in ("orders.eu", "orders.us"):
                channel.basic_consume(queue, _pack, consumer_tag=f"packer of {queue}")
            while not self._done.is_set():
                connection.process_data_events(0.2)


def _pack(channel: BlockingChannel, method: Any, _properties: object, _body: bytes) -> None:
    channel.basic_ack(method.delivery_tag)
