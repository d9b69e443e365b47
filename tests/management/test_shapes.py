"""What `amqpd.management.api_types` says of answers, held with the answers of a broker at work."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pika
import pytest

from amqpd.management.api_types import ANSWERS
from amqpd.management.openapi import Schemas, openapi
from amqpd.management.routes import ROUTES

DESCRIPTION = openapi(ROUTES)
KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def faults(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """Where a value is not what a schema of ours says; as much of OpenAPI as they use."""
    if "$ref" in schema:
        return faults(value, DESCRIPTION["components"]["schemas"][schema["$ref"].rpartition("/")[2]], at)
    if value is None and schema.get("nullable"):
        return []
    for each in schema.get("allOf", ()):
        if found := faults(value, each, at):
            return found
    if "oneOf" in schema:
        tried = [faults(value, each, at) for each in schema["oneOf"]]
        return [] if sum(not each for each in tried) == 1 else [fault for each in tried for fault in each]
    kind = schema.get("type")
    if kind is not None:
        right = isinstance(value, KINDS[kind]) and not (kind in ("integer", "number") and isinstance(value, bool))
        if not right:
            return [f"{at}: {value!r} is no {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    found = [f"{at}: no {name}" for name in schema.get("required", ()) if name not in value]
    if kind == "object":
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            found += faults(item, inner, f"{at}.{name}")
    if kind == "array":
        for index, item in enumerate(value):
            found += faults(item, schema["items"], f"{at}[{index}]")
    return found


def schema_of(path: str, method: str = "get") -> dict[str, Any]:
    answer = DESCRIPTION["paths"][path][method]["responses"]["200"]
    schema: dict[str, Any] = answer["content"]["application/json"]["schema"]
    return schema


class TestTheTwin:
    """The judge itself can fail."""

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": 1, "tags": [], "ends_in_s": None, "node": "", "cluster_name": "", "clustered": False},
            {"name": "", "tags": [1], "ends_in_s": None, "node": "", "cluster_name": "", "clustered": False},
            {"name": "", "tags": [], "ends_in_s": True, "node": "", "cluster_name": "", "clustered": False},
            {"name": "", "tags": [], "node": "", "cluster_name": "", "clustered": False},
            [],
        ],
    )
    def test_it_sees_what_is_wrong(self, wrong):
        assert faults(wrong, schema_of("/api/amqpd/session"))

    def test_a_list_is_whole_or_a_page_and_nothing_between(self):
        page = dict.fromkeys(("filtered_count", "item_count", "page", "page_count", "page_size", "total_count"), 1)
        schema = schema_of("/api/connections")
        assert faults([], schema) == []
        assert faults({**page, "items": []}, schema) == []
        assert faults({"items": []}, schema)

    def test_what_has_no_schema_is_refused(self):
        with pytest.raises(TypeError):
            Schemas().of(set)


def test_every_shape_is_of_a_route_there_is():
    there = {f"{route.method} /{route.path}" for route in ROUTES}
    assert set(ANSWERS) - there == set()


@pytest.fixture
def at_work(amqpd_broker, amqpd_vhost):
    """A vhost with one of everything: names for the paths."""
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments={"x-retain": "1D"})
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("t", exclusive=True)
    channel.exchange_declare("x", "topic")
    channel.queue_bind("q", "x", "a.#", {"some": "thing"})
    for number in range(3):
        told = pika.BasicProperties(headers={"n": number}, message_id="m")
        channel.basic_publish("", "q", bytes([number, 255]), told)
        channel.basic_publish("x", "a.b", b"text", pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("", "s", b"record")
    channel.basic_get("q")
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("s", lambda *_: None, arguments={"x-stream-offset": "first"})
    channel.basic_consume("t", lambda *_: None, auto_ack=True)
    yield {"vhost": amqpd_vhost.name, "queue": "q", "exchange": "x"}
    # pika gives back what it has not handed over, which a stream's consumer may not.
    with suppress(pika.exceptions.AMQPError):
        connection.close()


def test_answers_are_what_they_are_said_to_be(api, at_work):
    v = quote(at_work["vhost"], safe="")
    names = dict(at_work)
    names["connection"] = api.get(f"/api/vhosts/{v}/connections")[0]["name"]
    names["channel"] = api.get(f"/api/vhosts/{v}/channels")[0]["name"]
    names["node"] = api.get("/api/overview")["node"]
    names["user"] = "guest"
    api("PUT", f"/api/queues/{v}/s/offsets/me", {"offset": 1})
    job = api("POST", f"/api/queues/{v}/q/jobs", {"action": "copy", "to_queue": "s", "dry_run": True, "wait_ms": 9000})
    assert faults(job.json, schema_of("/api/queues/{vhost}/{queue}/jobs", "post")) == []
    names["job"] = job.json["id"]
    queries = {
        "/api/overview": "?msg_rates_age=60&msg_rates_incr=5&lengths_age=60&lengths_incr=5",
        "/api/amqpd/rights/{vhost}": "?queue=q",
        "/api/amqpd/trace/{vhost}": "?id=m",
    }
    looked = set()
    for place in ANSWERS:
        method, _, path = place.partition(" ")
        missing = [name for name in ("policy", "name", "exchange_name") if f"{{{name}}}" in path]
        if method != "GET" or missing:
            continue
        given = {**names, "queue": "s"} if path.endswith("/offsets") else names
        asked = path.format(**{name: quote(value, safe="") for name, value in given.items()})
        answer = api("GET", asked + queries.get(path, ""))
        if answer.status == 404:
            continue  # of things that this vhost has none of
        assert answer.status == 200, (path, answer.body)
        assert faults(answer.json, schema_of(path)) == [], path
        looked.add(path)
        if "oneOf" in schema_of(path):
            page = api("GET", f"{asked}?page=1&page_size=1")
            assert faults(page.json, schema_of(path)) == [], path
    assert looked >= {
        *(
            "/api/overview",
            "/api/nodes",
            "/api/amqpd/arguments",
            "/api/amqpd/pulse",
            "/api/amqpd/rights/{vhost}",
            "/api/amqpd/trace/{vhost}",
        ),
        *("/api/queues/{vhost}", "/api/queues/{vhost}/{queue}", "/api/queues/{vhost}/{queue}/messages"),
        *("/api/queues/{vhost}/{queue}/offsets", "/api/exchanges/{vhost}/{exchange}", "/api/bindings/{vhost}"),
        *("/api/connections/{connection}", "/api/channels/{channel}", "/api/consumers/{vhost}", "/api/amqpd/session"),
    }


def test_the_description_is_json_and_names_each_schema_it_uses():
    text = json.dumps(DESCRIPTION)
    used = {each.split('"', 1)[0] for each in text.split("#/components/schemas/")[1:]}
    assert used == set(DESCRIPTION["components"]["schemas"])


class TestPulse:
    def test_what_may_be_done_is_what_would_be_allowed(self, api, at_work):
        v = quote(at_work["vhost"], safe="")
        api("PUT", "/api/users/reader", {"password": "p", "tags": "management"})
        api("PUT", f"/api/permissions/{v}/reader", {"configure": "", "write": "^q$", "read": "^q$"})
        reader = type(api)(api.broker, "reader", "p")
        place = f"/api/amqpd/rights/{v}"
        assert reader.get(f"{place}?queue=q") == {"configure": False, "write": True, "read": True}
        assert reader.get(f"{place}?exchange=x") == {"configure": False, "write": False, "read": False}
        assert api.get(f"{place}?exchange=") == {"configure": True, "write": True, "read": True}
        assert reader("GET", f"{place}?queue=q&exchange=x").status == 400
        assert reader("GET", place).status == 400
        assert reader("GET", "/api/amqpd/rights/none?queue=q").status == 401
        api("DELETE", "/api/users/reader")

    def test_counts_rise_with_what_is_synced(self, api, at_work):
        v = quote(at_work["vhost"], safe="")
        before = api.get("/api/amqpd/pulse")
        message = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {"delivery_mode": 2}}
        assert api("POST", f"/api/exchanges/{v}/amq.default/publish", message).json == {"routed": True}
        after = api.get("/api/amqpd/pulse")
        assert sum(after["sync"]["counts"]) > sum(before["sync"]["counts"])
        assert after["sync"]["total_s"] > before["sync"]["total_s"]
        assert len(after["sync"]["counts"]) == len(after["sync"]["bounds_s"]) + 1
        assert after["alarms"] == []
        assert set(after["held"]) == {"alarm", "sync", "backlog", "output", "sharing", "paced", "bodies"}

    def test_an_alarm_is_told_in_words(self, api):
        api("PUT", "/api/amqpd/alarms/disk")
        try:
            assert api.get("/api/amqpd/pulse")["alarms"] == ["low on disk"]
        finally:
            api("DELETE", "/api/amqpd/alarms/disk")
