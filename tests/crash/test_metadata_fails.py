"""The metadata cannot be written (a full disk), then it can: what was answered ok is what a restart finds."""

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
    """A broker with a switch."""

    def __init__(self, directory: Path) -> None:
        self.switch = directory / "metadata-fails"
        script = str(Path(__file__).with_name("failing_metadata.py"))
        self.process = BrokerProcess(directory / "data", command=[sys.executable, "-P", script, str(self.switch)])

    def fails(self, step: Callable[[BlockingChannel], object]) -> None:
        """`step` while nothing can be written; it is answered with 506."""
        self.switch.touch()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            self.does(step)
        self.switch.unlink()
        assert closed.value.reply_code == 506

    def does(self, step: Callable[[BlockingChannel], object]) -> None:
        with pika.BlockingConnection(pika.URLParameters(self.process.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            step(channel)

    def restart(self) -> None:
        self.process.stop()
        self.process.start()

    def asks(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Of the admin API: status and answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.process.http_port, timeout=60)
        headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
        data = None if body is None else json.dumps(body)
        connection.request(method, f"/api{path}", data, {**headers, "Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if text else None

    def definitions(self) -> Any:
        status, found = self.asks("GET", "/definitions")
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
    house = Failing(tmp_path)
    with house.process:
        yield house


@pytest.mark.slow
def test_what_could_not_be_declared_is_declared_anew_and_lasts(failing: Failing) -> None:
    """Queue, exchange and binding: refused, declared again, published to, and there after a clean restart."""
    failing.fails(lambda channel: channel.queue_declare("q", durable=True))
    failing.does(lambda channel: channel.queue_declare("q", durable=True))
    failing.fails(lambda channel: channel.exchange_declare("x", "fanout", durable=True))
    failing.does(lambda channel: channel.exchange_declare("x", "fanout", durable=True))
    failing.fails(lambda channel: channel.queue_bind("q", "x", "k"))
    failing.does(lambda channel: channel.queue_bind("q", "x", "k"))
    failing.does(lambda channel: channel.basic_publish("", "q", b"direct", KEPT, mandatory=True))
    failing.does(lambda channel: channel.basic_publish("x", "k", b"through x", KEPT, mandatory=True))
    failing.restart()
    failing.does(lambda channel: channel.basic_publish("x", "k", b"afterwards", KEPT, mandatory=True))
    assert failing.bodies("q") == [b"direct", b"through x", b"afterwards"]


@pytest.mark.slow
def test_what_could_not_be_deleted_does_not_come_back_once_it_can(failing: Failing) -> None:
    """The deletion is done when the disk takes it, without anybody asking again."""
    failing.does(lambda channel: channel.queue_declare("q", durable=True))
    failing.does(lambda channel: channel.basic_publish("", "q", b"old", KEPT))
    failing.fails(lambda channel: channel.queue_delete("q"))
    failing.does(lambda channel: channel.queue_declare("q", durable=True))
    failing.does(lambda channel: channel.basic_publish("", "q", b"new", KEPT))
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
def test_an_import_is_all_or_nothing(failing: Failing) -> None:
    before = failing.definitions()
    bad = {"name": "bad", "vhost": "/", "durable": False, "arguments": {"x-export": "lake"}}
    status, answer = failing.asks("POST", "/definitions", {**DOCUMENT, "queues": [*DOCUMENT["queues"], bad]})
    assert (status, answer["reason"].partition(":")[0]) == (400, "queues[2]")
    assert failing.definitions() == before
    failing.switch.touch()
    assert failing.asks("POST", "/definitions", DOCUMENT)[0] == 503
    assert failing.definitions() == before
    failing.switch.unlink()
    # What nearly came is declared, holds what is confirmed, and the import goes round it.
    failing.does(lambda channel: channel.queue_declare("q", durable=True))
    failing.does(lambda channel: channel.basic_publish("", "q", b"kept", KEPT))
    assert failing.asks("POST", "/definitions", DOCUMENT)[0] == 204
    after = failing.definitions()
    assert len(after["bindings"]) == len(before["bindings"]) + 2
    failing.restart()
    assert failing.definitions() == after
    assert failing.bodies("q") == [b"kept"]


@pytest.mark.slow
def test_changes_through_the_admin_api_that_fail_change_nothing(failing: Failing) -> None:
    assert failing.asks("POST", "/definitions", DOCUMENT)[0] == 204
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
        status, answer = failing.asks(method, path, body)
        assert status == 503, (method, path, answer)
        assert failing.definitions() == before, (method, path)
    failing.switch.unlink()
    failing.restart()
    assert failing.definitions() == before


@pytest.mark.slow
def test_what_the_admin_api_could_not_delete_goes_in_the_end(failing: Failing) -> None:
    assert failing.asks("POST", "/definitions", DOCUMENT)[0] == 204
    failing.switch.touch()
    assert failing.asks("DELETE", "/queues/new/q")[0] == 503
    assert failing.asks("DELETE", "/exchanges/new/x")[0] == 503
    assert failing.asks("PUT", "/queues/new/q", {})[0] == 503, "a restart would show the old one"
    failing.switch.unlink()
    deadline = time.monotonic() + 60
    while failing.asks("GET", "/queues/new/q")[0] != 404:  # 503 until it is written
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert failing.asks("GET", "/exchanges/new/x")[0] == 404
    failing.restart()
    assert failing.asks("GET", "/queues/new")[1] == []
    assert failing.asks("GET", "/exchanges/new/x")[0] == 404
