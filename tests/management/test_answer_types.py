"""The answer types in `amqpd.management.api_types`, compared with the answers of a running broker."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import pika
import pytest

from amqpd.management.api_types import ANSWERS
from amqpd.management.openapi import Schemas, openapi
from amqpd.management.routes import ROUTES
from amqpd.testing import BrokerProcess

DESCRIPTION = openapi(ROUTES)
KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def schema_errors(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """Return the places where a value differs from a schema. Supports only the parts of OpenAPI that are used here."""
    if "$ref" in schema:
        return schema_errors(value, DESCRIPTION["components"]["schemas"][schema["$ref"].rpartition("/")[2]], at)
    if value is None and schema.get("nullable"):
        return []
    for each in schema.get("allOf", ()):
        if found := schema_errors(value, each, at):
            return found
    if "oneOf" in schema:
        alternatives = [schema_errors(value, each, at) for each in schema["oneOf"]]
        return [] if sum(not each for each in alternatives) == 1 else [fault for each in alternatives for fault in each]
    kind = schema.get("type")
    if kind is not None:
        is_valid = isinstance(value, KINDS[kind]) and not (kind in ("integer", "number") and isinstance(value, bool))
        if not is_valid:
            return [f"{at}: {value!r} is no {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    found = [f"{at}: no {name}" for name in schema.get("required", ()) if name not in value]
    if kind == "object":
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            found += schema_errors(item, inner, f"{at}.{name}")
    if kind == "array":
        for index, item in enumerate(value):
            found += schema_errors(item, schema["items"], f"{at}[{index}]")
    return found


def schema_of(path: str, method: str = "get") -> dict[str, Any]:
    answer = DESCRIPTION["paths"][path][method]["responses"]["200"]
    schema: dict[str, Any] = answer["content"]["application/json"]["schema"]
    return schema


REST = {"cluster_name": "", "clustered": False, "kafka": False}


class TestSchemaCheck:
    """The check itself must be able to fail."""

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": 1, "tags": [], "ends_in_s": None, "node": "", **REST},
            {"name": "", "tags": [1], "ends_in_s": None, "node": "", **REST},
            {"name": "", "tags": [], "ends_in_s": True, "node": "", **REST},
            {"name": "", "tags": [], "node": "", **REST},
            [],
        ],
    )
    def test_wrong_value_is_reported(self, wrong):
        assert schema_errors(wrong, schema_of("/api/amqpd/session"))

    def test_list_is_an_array_or_a_complete_page(self):
        page = dict.fromkeys(("filtered_count", "item_count", "page", "page_count", "page_size", "total_count"), 1)
        schema = schema_of("/api/connections")
        assert schema_errors([], schema) == []
        assert schema_errors({**page, "items": []}, schema) == []
        assert schema_errors({"items": []}, schema)

    def test_unsupported_type_is_refused(self):
        with pytest.raises(TypeError):
            Schemas().of(set)


def test_every_answer_type_belongs_to_a_route():
    routes = {f"{route.method} /{route.path}" for route in ROUTES}
    assert set(ANSWERS) - routes == set()


@pytest.fixture
def busy_vhost(amqpd_broker, amqpd_vhost):
    """A vhost with one object of each kind. Yields the names for paths."""
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments={"x-retain": "1D"})
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    channel.queue_declare("t", exclusive=True)
    channel.exchange_declare("x", "topic")
    channel.queue_bind("q", "x", "a.#", {"some": "thing"})
    for number in range(3):
        properties = pika.BasicProperties(headers={"n": number}, message_id="m")
        channel.basic_publish("", "q", bytes([number, 255]), properties)
        channel.basic_publish("x", "a.b", b"text", pika.BasicProperties(delivery_mode=2))
        channel.basic_publish("", "s", b"record")
    channel.basic_get("q")
    channel.basic_qos(prefetch_count=5)
    channel.basic_consume("s", lambda *_: None, arguments={"x-stream-offset": "first"})
    channel.basic_consume("t", lambda *_: None, auto_ack=True)
    yield {"vhost": amqpd_vhost.name, "queue": "q", "exchange": "x"}
    # At close, pika rejects undelivered messages with requeue, which is an error on a stream.
    with suppress(pika.exceptions.AMQPError):
        connection.close()


def test_answers_match_their_schemas(api, busy_vhost):
    v = quote(busy_vhost["vhost"], safe="")
    names = dict(busy_vhost)
    names["connection"] = api.get(f"/api/vhosts/{v}/connections")[0]["name"]
    names["channel"] = api.get(f"/api/vhosts/{v}/channels")[0]["name"]
    names["node"] = api.get("/api/overview")["node"]
    names["user"] = "guest"
    api("PUT", f"/api/queues/{v}/s/offsets/me", {"offset": 1})
    job = api("POST", f"/api/queues/{v}/q/jobs", {"action": "copy", "to_queue": "s", "dry_run": True, "wait_ms": 9000})
    assert schema_errors(job.json, schema_of("/api/queues/{vhost}/{queue}/jobs", "post")) == []
    names["job"] = job.json["id"]
    queries = {
        "/api/overview": "?msg_rates_age=60&msg_rates_incr=5&lengths_age=60&lengths_incr=5",
        "/api/amqpd/rights/{vhost}": "?queue=q",
        "/api/amqpd/trace/{vhost}": "?id=m",
    }
    checked = set()
    for operation in ANSWERS:
        method, _, path = operation.partition(" ")
        missing = [name for name in ("policy", "name", "exchange_name") if f"{{{name}}}" in path]
        if method != "GET" or missing:
            continue
        path_names = {**names, "queue": "s"} if path.endswith("/offsets") else names
        url = path.format(**{name: quote(value, safe="") for name, value in path_names.items()})
        answer = api("GET", url + queries.get(path, ""))
        if answer.status == 404:
            continue  # the vhost has no such object
        assert answer.status == 200, (path, answer.body)
        assert schema_errors(answer.json, schema_of(path)) == [], path
        checked.add(path)
        if "oneOf" in schema_of(path):
            page = api("GET", f"{url}?page=1&page_size=1")
            assert schema_errors(page.json, schema_of(path)) == [], path
    assert checked >= {
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


@pytest.mark.slow
def test_answers_about_kafka_groups_match_their_schemas(tmp_path, make_api):
    with BrokerProcess(tmp_path, settings={"kafka.port": 0, "kafka.host": "127.0.0.1"}) as broker:
        api, path = make_api(broker), "/api/amqpd/kafka/groups"
        host, port = broker.ready.listeners["kafka"]
        api.send_ok("PUT", "/api/queues/%2F/t", {"durable": True, "arguments": {"x-queue-type": "stream"}})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from kafka import KafkaConsumer
        consumer = KafkaConsumer("t", bootstrap_servers=f"{host}:{port}", group_id="g")
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        change = api("POST", f"{path}/%2F/other/offsets", {"topic": "t", "to": "latest"})
        assert schema_errors(change.json, schema_of(f"{path}/{{vhost}}/{{name}}/offsets", "post")) == []
        for url, described in (("", ""), ("/%2F", "/{vhost}"), ("?page=1", ""), ("/%2F/g", "/{vhost}/{name}")):
            assert schema_errors(api.get(path + url), schema_of(path + described)) == [], url
        assert len(api.get(f"{path}/%2F/g")["members"]) == 1
        consumer.close()


def test_description_contains_exactly_the_used_schemas():
    text = json.dumps(DESCRIPTION)
    used = {each.split('"', 1)[0] for each in text.split("#/components/schemas/")[1:]}
    assert used == set(DESCRIPTION["components"]["schemas"])


class TestPulse:
    def test_rights_equal_the_permissions_of_the_user(self, api, busy_vhost):
        v = quote(busy_vhost["vhost"], safe="")
        api("PUT", "/api/users/reader", {"password": "p", "tags": "management"})
        api("PUT", f"/api/permissions/{v}/reader", {"configure": "", "write": "^q$", "read": "^q$"})
        reader = type(api)(api.broker, "reader", "p")
        path = f"/api/amqpd/rights/{v}"
        assert reader.get(f"{path}?queue=q") == {"configure": False, "write": True, "read": True}
        assert reader.get(f"{path}?exchange=x") == {"configure": False, "write": False, "read": False}
        assert api.get(f"{path}?exchange=") == {"configure": True, "write": True, "read": True}
        assert reader("GET", f"{path}?queue=q&exchange=x").status == 400
        assert reader("GET", path).status == 400
        assert reader("GET", "/api/amqpd/rights/none?queue=q").status == 401
        api("DELETE", "/api/users/reader")

    def test_sync_counts_rise_with_persistent_publish(self, api, busy_vhost):
        v = quote(busy_vhost["vhost"], safe="")
        before = api.get("/api/amqpd/pulse")
        message = {"routing_key": "q", "payload": "x", "payload_encoding": "string", "properties": {"delivery_mode": 2}}
        assert api("POST", f"/api/exchanges/{v}/amq.default/publish", message).json == {"routed": True}
        after = api.get("/api/amqpd/pulse")
        assert sum(after["sync"]["counts"]) > sum(before["sync"]["counts"])
        assert after["sync"]["total_s"] > before["sync"]["total_s"]
        assert len(after["sync"]["counts"]) == len(after["sync"]["bounds_s"]) + 1
        assert after["alarms"] == []
        assert set(after["held"]) == {"alarm", "sync", "backlog", "output", "sharing", "paced", "bodies"}

    def test_alarm_is_shown_as_text(self, api):
        api("PUT", "/api/amqpd/alarms/disk")
        try:
            assert api.get("/api/amqpd/pulse")["alarms"] == ["low on disk"]
        finally:
            api("DELETE", "/api/amqpd/alarms/disk")
