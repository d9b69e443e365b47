"""The trace of one message: ready, unacked, settled and kept, dead-lettered, removed; and permissions."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from amqpd.testing import BrokerProcess, Vhost


def trace(api: Any, v: str, **query: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    next_page: dict[str, Any] = {}
    while True:
        text = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in {**query, **next_page}.items())
        page = api.get(f"/api/amqpd/trace/{v}?{text}")
        items += page["found"]
        if page["next"] is None:
            return items
        next_page = page["next"]


def states(items: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["queue"], each["state"]) for each in items]


def publish(channel: BlockingChannel, queue: str, id_: str) -> None:
    properties = pika.BasicProperties(delivery_mode=2, message_id=id_, correlation_id="c-" + id_)
    channel.basic_publish("", queue, b"x", properties)


def test_trace_follows_message_through_states_and_queues(
    channel: BlockingChannel, api: Any, v: str, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost
) -> None:
    channel.queue_declare("failed", durable=True)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    channel.queue_declare("orders", durable=True, arguments=arguments)
    channel.queue_declare("kept", durable=True, arguments={"x-retain": "1D"})
    for queue in ("orders", "kept"):
        publish(channel, queue, "it's")
        publish(channel, queue, "another")
    channel.confirm_delivery()
    publish(channel, "orders", "last")
    assert states(trace(api, v, id="it's")) == [("kept", "ready"), ("orders", "ready")]
    assert states(trace(api, v, id="c-it's", by="correlation_id")) == [("kept", "ready"), ("orders", "ready")]
    method, _, _ = channel.basic_get("kept")
    channel.basic_ack(method.delivery_tag)
    method, _, _ = channel.basic_get("orders")
    unacked = trace(api, v, id="it's")[-1]
    assert unacked["state"] == "unacked"
    assert unacked["connection"].count("->") == 1
    assert unacked["user"] == "guest"
    channel.basic_nack(method.delivery_tag, requeue=False)
    until = time.monotonic() + 30
    expected = {("failed", "ready"), ("kept", "settled")}
    while not expected <= set(states(trace(api, v, id="it's"))) and time.monotonic() < until:
        time.sleep(0.05)
    items = {each["queue"]: each for each in trace(api, v, id="it's")}
    assert items["failed"]["deaths"][0]["queue"] == "orders"
    assert items["kept"]["state"] == "settled"
    shown = amqpd_broker.ctl("trace_message", "-q", "-p", amqpd_vhost.name, "it's", "queue", "state")
    assert "failed\tready" in shown.stdout.splitlines(), shown
    assert {line.split("\t")[0] for line in shown.stdout.splitlines()} == {"queue", "failed", "kept", "orders"}
    missing = amqpd_broker.ctl("trace_message", "-p", amqpd_vhost.name, "nobody")
    assert missing.returncode == 0
    assert "No log has the message" in missing.stderr


def test_trace_shows_consumer_and_channel_of_each_copy(channel: BlockingChannel, api: Any, v: str) -> None:
    channel.queue_declare("q", durable=True)
    for _ in range(3000):
        publish(channel, "q", "other")
    for _ in range(4):
        publish(channel, "q", "m")
    other = channel.connection.channel()
    other.basic_qos(prefetch_count=3002)
    delivery_tags: list[int] = []
    tag = other.basic_consume("q", lambda *each: delivery_tags.append(each[1].delivery_tag))
    until = time.monotonic() + 20
    while len(delivery_tags) < 3002 and time.monotonic() < until:
        channel.connection.process_data_events(0.05)
    assert channel.basic_get("q")[0] is not None
    items = trace(api, v, id="m")
    assert [(each["offset"], each["state"], each["consumer"]) for each in items] == [
        (3000, "unacked", tag), (3001, "unacked", tag), (3002, "unacked", None), (3003, "ready", None)
    ]  # fmt: skip
    assert len({each["channel"] for each in items}) == 3


def test_trace_shows_no_connections_of_others_without_monitoring_tag(
    channel: BlockingChannel, user: Callable[..., Any], v: str
) -> None:
    channel.queue_declare("q", durable=True)
    publish(channel, "q", "m")
    assert channel.basic_get("q")[0] is not None
    seen = []
    for tag in ("management", "monitoring"):
        (item,) = user(tag, read=".*").get(f"/api/amqpd/trace/{v}?id=m")["found"]
        seen.append((item["state"], *(item[name] is not None for name in ("connection", "channel", "user"))))
    assert seen == [("unacked", False, False, False), ("unacked", True, True, True)]


def test_trace_skips_queues_without_read_permission(channel: BlockingChannel, user: Callable[..., Any], v: str) -> None:
    for queue in ("mine", "secret"):
        channel.queue_declare(queue, durable=True)
        publish(channel, queue, "m")
    channel.queue_declare("mine", passive=True)
    caller = user("management", read="^mine$")
    page = caller.get(f"/api/amqpd/trace/{v}?id=m")
    assert (states(page["found"]), page["skipped"]) == ([("mine", "ready")], 1)


def test_trace_includes_exclusive_queues_without_their_contents(
    channel: BlockingChannel, api: Any, user: Callable[..., Any], v: str
) -> None:
    """The trace names an exclusive queue of another connection, like the queue list. Its messages cannot be browsed."""
    channel.queue_declare("mine", exclusive=True)
    publish(channel, "mine", "m")
    channel.queue_declare("mine", passive=True)
    for caller in (api, user("management", read="^mine$")):
        assert [each["name"] for each in caller.get(f"/api/queues/{v}")] == ["mine"]
        page = caller.get(f"/api/amqpd/trace/{v}?id=m")
        assert (states(page["found"]), page["skipped"]) == ([("mine", "ready")], 0)
        refused = caller("GET", f"/api/queues/{v}/mine/messages")
        assert refused.status == 400 and "exclusive" in json.loads(refused.body)["reason"], refused
    page = user("management", read="^other$").get(f"/api/amqpd/trace/{v}?id=m")
    assert (page["found"], page["skipped"]) == ([], 1)


@pytest.mark.parametrize("query", ["", "id=", "id=x&by=body", "id=x&part=all", "id=x&offset=-1"])
def test_bad_trace_query_is_refused(api: Any, v: str, query: str) -> None:
    answer = api("GET", f"/api/amqpd/trace/{v}?{query}")
    assert answer.status == 400, answer
    assert json.loads(answer.body)["reason"]
