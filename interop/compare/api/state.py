"""The state before the calls: two vhosts, users, permissions, exchanges, queues of each kind, bindings, a policy; and a
connection with a publisher, a consumer with unacked messages, gets, returns and a transaction.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pika
from pika.adapters.blocking_connection import BlockingChannel

from interop.compare.party import Address

PATIENCE_S: Final = 30.0


class State:
    """Created on entry, alive until exit. names: the values for `{connection}` and other marks in a path."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.names: dict[str, str] = {}
        self._connections: list[pika.BlockingConnection] = []

    def __enter__(self) -> Self:
        self._declare()
        self._talk()
        self._look()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in self._connections:
            with suppress(pika.exceptions.AMQPError):  # a call may have closed it
                each.close()

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """Make one call as guest and return the answer. Raises: AssertionError."""
        request = Request(f"http://{self.address.host}:{self.address.http_port}{path}", method=method)
        request.add_header("Authorization", "Basic " + b64encode(b"guest:guest").decode())
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        try:
            with urlopen(request, timeout=PATIENCE_S) as answer:
                text = answer.read()
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()}") from None
        return json.loads(text) if text else None

    def _declare(self) -> None:
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self.api("PUT", "/api/vhosts/shop", {"description": "orders", "tags": "a"})
        self.api("PUT", "/api/users/ann", {"password": "pw", "tags": "management"})
        self.api("PUT", "/api/users/nobody", {"password": "pw", "tags": ""})
        self.api("PUT", "/api/users/alone", {"password": "pw", "tags": "monitoring"})
        self.api("PUT", "/api/permissions/shop/guest", everything)
        self.api("PUT", "/api/permissions/shop/ann", everything)
        self.api("PUT", "/api/permissions/%2F/nobody", everything)
        self.api("PUT", "/api/topic-permissions/shop/ann", {"exchange": "logs", "write": ".*", "read": ".*"})
        self.api("PUT", "/api/vhost-limits/shop/max-queues", {"value": 1000})
        self.api("PUT", "/api/user-limits/ann/max-channels", {"value": 100})
        self.api("PUT", "/api/exchanges/shop/logs", {"type": "topic", "durable": True})
        self.api("PUT", "/api/exchanges/shop/spare", {"type": "fanout", "durable": True})
        for name, arguments in (
            ("orders", {"x-max-length": 1000}),
            ("quiet", {}),
            ("votes", {"x-queue-type": "quorum"}),
            ("events", {"x-queue-type": "stream"}),
            ("single", {"x-single-active-consumer": True}),
        ):
            self.api("PUT", f"/api/queues/shop/{name}", {"durable": True, "arguments": arguments})
        self.api("POST", "/api/bindings/shop/e/logs/q/orders", {"routing_key": "audit.#"})
        self.api("POST", "/api/bindings/shop/e/logs/q/orders", {"routing_key": "k", "arguments": {"x": 1}})
        self.api("POST", "/api/bindings/shop/e/logs/e/amq.fanout", {"routing_key": "all"})
        policy = {"pattern": "^quiet$", "definition": {"max-length": 10}, "apply-to": "queues", "priority": 0}
        self.api("PUT", "/api/policies/shop/keep", policy)

    def _channel(self) -> BlockingChannel:
        parameters = pika.ConnectionParameters(
            self.address.host,
            self.address.port,
            "shop",
            pika.PlainCredentials("guest", "guest"),
            client_properties={"connection_name": "compare"},
        )
        connection = pika.BlockingConnection(parameters)
        self._connections.append(connection)
        return connection.channel()

    def _talk(self) -> None:
        """Cause one event of each counted kind."""
        channel = self._channel()
        channel.queue_declare("mine", exclusive=True)
        channel.confirm_delivery()
        for number in range(6):
            channel.basic_publish("logs", "audit.x", b"m%d" % number, pika.BasicProperties(delivery_mode=2))
            channel.basic_publish("", "orders", b"x")
        channel.basic_publish("", "votes", b"v")
        channel.basic_publish("", "events", b"e")
        with suppress(pika.exceptions.UnroutableError):
            channel.basic_publish("", "nosuch", b"back", mandatory=True)
        channel.basic_publish("", "nosuch", b"lost")
        reader = self._channel()
        reader.basic_qos(prefetch_count=4)
        taken: list[int] = []
        reader.basic_consume("orders", lambda _c, method, _p, _b: taken.append(method.delivery_tag))
        reader.basic_consume("single", lambda *_: None)
        acking = self._channel()
        for _ in range(2):
            method, _, _ = acking.basic_get("votes")
            if method:
                acking.basic_nack(method.delivery_tag, requeue=True)
            acking.basic_get("votes", auto_ack=False)
        acking.basic_get("quiet")
        reader.connection.process_data_events(0.5)
        if len(taken) > 1:
            reader.basic_ack(taken[0])
            reader.basic_nack(taken[1], requeue=True)
        reader.connection.process_data_events(0.2)

    def _look(self) -> None:
        """Wait until the lists have the counts: RabbitMQ updates them periodically, and rates need two samples."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            channels = self.api("GET", "/api/channels")
            queue = self.api("GET", "/api/queues/shop/orders")
            full = all("message_stats" in each for each in channels) and len(channels) >= 3
            if full and "message_stats" in queue and queue.get("messages_unacknowledged"):
                break
            time.sleep(0.2)
        time.sleep(6)
        connections = self.api("GET", "/api/connections")
        self.names = {
            "node": quote(self.api("GET", "/api/overview")["node"], safe=""),
            "connection": quote(connections[0]["name"], safe=""),
            "channel": quote(self.api("GET", "/api/channels")[0]["name"], safe=""),
            "amqp_port": str(self.address.port),
        }
