"""Metadata that cannot be written for a while (a full disk): a restart finds exactly what was answered with ok."""

from __future__ import annotations

import base64
import http.client
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess

KEPT = pika.BasicProperties(delivery_mode=2)


class Failing:
    """A broker whose metadata writes can be made to fail."""

    def __init__(self, directory: Path) -> None:
        self.switch = directory / "metadata-fails"
        script = str(Path(__file__).with_name("failing_metadata.py"))
        self.process = BrokerProcess(directory / "data", command=[sys.executable, "-P", script, str(self.switch)])

    def run_failing(self, step: Callable[[BlockingChannel], object]) -> None:
        """Run `step` while metadata cannot be written; expect error 506."""
        self.switch.touch()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            self.run(step)
        self.switch.unlink()
        assert closed.value.reply_code == 506

    def run(self, step: Callable[[BlockingChannel], object]) -> None:
        with pika.BlockingConnection(pika.URLParameters(self.process.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            step(channel)

    def restart(self) -> None:
        self.process.stop()
        self.process.start()

    def request(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request to the HTTP API. Return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.process.http_port, timeout=60)
        headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
        data = None if body is None else json.dumps(body)
        connection.request(method, f"/api{path}", data, {**headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text else None

    def definitions(self) -> Any:
        status, found = self.request("GET", "/definitions")
        assert status == 200
        return found

    def bodies(self, queue: str) -> list[bytes]:
        found = []
        with pika.BlockingConnection(pika.URLParameters(self.process.url)) as connection:
            channel = connection.channel()
            while (got := channel.basic_get(queue, auto_ack=True))[2] is not None:
                found.append(got[2])
        return found


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Failing]:
    broker = Failing(tmp_path)
    with broker.process:
        yield broker


@pytest.mark.slow
def test_declaration_that_failed_can_be_repeated_and_survives_restart(failing: Failing) -> None:
    """Queue, exchange and binding: refused, declared again, published to, and there after a clean restart."""
    failing.run_failing(lambda channel: channel.queue_declare("q", durable=True))
    failing.run(lambda channel: channel.queue_declare("q", durable=True))
    failing.run_failing(lambda channel: channel.exchange_declare("x", "fanout", durable=True))
    failing.run(lambda channel: channel.exchange_declare("x", "fanout", durable=True))
    failing.run_failing(lambda channel: channel.queue_bind("q", "x", "k"))
    failing.run(lambda channel: channel.queue_bind("q", "x", "k"))
    failing.run(lambda channel: channel.basic_publish("", "q", b"direct", KEPT, mandatory=True))
    failing.run(lambda channel: channel.basic_publish("x", "k", b"through x", KEPT, mandatory=True))
    failing.restart()
    failing.run(lambda channel: channel.basic_publish("x", "k", b"afterwards", KEPT, mandatory=True))
    assert failing.bodies("q") == [b"direct", b"through x", b"afterwards"]


@pytest.mark.slow
def test_failed_queue_deletion_is_retried_and_keeps_new_queue(failing: Failing) -> None:
    """The deletion is done when the disk can be written, without another request."""
    failing.run(lambda channel: channel.queue_declare("q", durable=True))
    failing.run(lambda channel: channel.basic_publish("", "q", b"old", KEPT))
    failing.run_failing(lambda channel: channel.queue_delete("q"))
    failing.run(lambda channel: channel.queue_declare("q", durable=True))
    failing.run(lambda channel: channel.basic_publish("", "q", b"new", KEPT))
    failing.restart()
    assert failing.bodies("q") == [b"new"]


DOCUMENT = {
    "users": [{"name": "u", "password_hash": "", "tags": ""}],
    "vhosts": [{"name": "new"}],
    "permissions": [
        {"user": "u", "vhost": "new", "configure": "", "write": "", "read": ""},
        {"user": "guest", "vhost": "new", "configure": ".*", "write": ".*", "read": ".*"},
    ],
    "exchanges": [{"name": "x", "vhost": "new", "type": "topic"}],
    "queues": [{"name": "q", "vhost": "/"}, {"name": "q", "vhost": "new"}],
    "bindings": [
        {"source": "x", "vhost": "new", "destination": "q", "destination_type": "queue", "routing_key": "a.*"},
        {"source": "amq.direct", "vhost": "/", "destination": "q", "destination_type": "queue", "routing_key": "k"},
    ],
}


@pytest.mark.slow
def test_definitions_import_is_all_or_nothing(failing: Failing) -> None:
    before = failing.definitions()
    bad = {"name": "bad", "vhost": "/", "durable": False, "arguments": {"x-export": "lake"}}
    status, answer = failing.request("POST", "/definitions", {**DOCUMENT, "queues": [*DOCUMENT["queues"], bad]})
    assert (status, answer["reason"].partition(":")[0]) == (400, "queues[2]")
    assert failing.definitions() == before
    failing.switch.touch()
    assert failing.request("POST", "/definitions", DOCUMENT)[0] == 503
    assert failing.definitions() == before
    failing.switch.unlink()
    # A queue of the failed import can be declared and keeps its message; the next import leaves it as it is.
    failing.run(lambda channel: channel.queue_declare("q", durable=True))
    failing.run(lambda channel: channel.basic_publish("", "q", b"kept", KEPT))
    assert failing.request("POST", "/definitions", DOCUMENT)[0] == 204
    after = failing.definitions()
    assert len(after["bindings"]) == len(before["bindings"]) + 2
    failing.restart()
    assert failing.definitions() == after
    assert failing.bodies("q") == [b"kept"]


@pytest.mark.slow
def test_failed_http_api_change_leaves_definitions_unchanged(failing: Failing) -> None:
    assert failing.request("POST", "/definitions", DOCUMENT)[0] == 204
    before = failing.definitions()
    failing.switch.touch()
    for method, path, body in (
        ("PUT", "/queues/new/other", {}),
        ("PUT", "/exchanges/new/other", {"type": "direct"}),
        ("POST", "/bindings/new/e/x/q/q", {"routing_key": "other"}),
        ("PUT", "/vhosts/other", {}),
        ("PUT", "/vhosts/new", {"default_queue_type": "quorum"}),
        ("PUT", "/users/other", {"password": "", "tags": ""}),
        ("PUT", "/users/u", {"password_hash": "", "tags": "monitoring"}),
        ("PUT", "/permissions/new/u", {"configure": ".*", "write": ".*", "read": ".*"}),
        ("PUT", "/topic-permissions/new/u", {"exchange": "x", "write": "a", "read": "b"}),
        ("DELETE", "/bindings/new/e/x/q/q/a.*", None),
        ("DELETE", "/permissions/new/u", None),
        ("DELETE", "/users/u", None),
        ("DELETE", "/vhosts/new", None),
    ):
        status, answer = failing.request(method, path, body)
        assert status == 503, (method, path, answer)
        assert failing.definitions() == before, (method, path)
    failing.switch.unlink()
    failing.restart()
    assert failing.definitions() == before


@pytest.mark.slow
def test_failed_http_api_deletion_is_retried_until_done(failing: Failing) -> None:
    assert failing.request("POST", "/definitions", DOCUMENT)[0] == 204
    failing.switch.touch()
    assert failing.request("DELETE", "/queues/new/q")[0] == 503
    assert failing.request("DELETE", "/exchanges/new/x")[0] == 503
    assert failing.request("PUT", "/queues/new/q", {})[0] == 503, (
        "its name is reserved: a restart would find the old queue"
    )
    failing.switch.unlink()
    deadline = time.monotonic() + 60
    while failing.request("GET", "/queues/new/q")[0] != 404:  # 503 until the deletion is written
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert failing.request("GET", "/exchanges/new/x")[0] == 404
    failing.restart()
    assert failing.request("GET", "/queues/new")[1] == []
    assert failing.request("GET", "/exchanges/new/x")[0] == 404
