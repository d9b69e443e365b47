"""Definitions exported by RabbitMQ 3.10, 3.13 and 4.1 are imported completely and exported with the same values."""

from __future__ import annotations

import json
from pathlib import Path

import pika
import pytest

from amqpd.testing import BrokerProcess

SAMPLES = Path(__file__).parent.parent / "samples" / "definitions"
NOTHING = {"unknown": [], "unknown_count": 0, "skipped": [], "skipped_count": 0}
SETTINGS = {"auth.password_hashing": "rabbit_password_hashing_sha256"}


def sample(name):
    return json.loads((SAMPLES / f"{name}.json").read_text("utf-8"))


def missing_items(definitions, exported):
    """Return items of `given` without an item in `exported` that has the same values under the keys of `given`."""
    missing = []
    for kind, items in definitions.items():
        if isinstance(items, list):
            exported_items = [
                {key: value for key, value in each.items() if value is not None} for each in exported.get(kind, [])
            ]
            missing += [(kind, item) for item in items if not any(agrees(kind, item, each) for each in exported_items)]
    return missing


def agrees(kind, item, exported):
    if kind == "queues":
        item = {**item, "type": item["arguments"].get("x-queue-type", "classic")}
    if kind == "vhosts":
        item = {key: value for key, value in item.items() if key != "limits"}
        item["metadata"] = exported["metadata"] | item.get("metadata", {})
    return exported | item == exported


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rabbitmq-3.10.8", "rabbitmq-3.13", "rabbitmq-4.1"])
def test_exported_definitions_equal_imported_definitions(tmp_path, api, name):
    definitions = sample(name)
    with BrokerProcess(tmp_path / "one", settings=SETTINGS) as broker:
        api_one = type(api)(broker)
        reply = api_one("POST", "/api/definitions?report=true", definitions)
        assert (reply.status, reply.json) == (200, NOTHING)
        credentials = pika.PlainCredentials("alice", "wonder")
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "shop", credentials)
        with pika.BlockingConnection(parameters) as connection:
            for queue in definitions["queues"]:
                connection.channel().queue_declare(queue["name"], passive=True)
        exported = api_one.get("/api/definitions")
        assert missing_items(definitions, exported) == []
        assert len(missing_items(definitions, {**exported, "queues": []})) == len(definitions["queues"])
    with BrokerProcess(
        tmp_path / "two", settings={**SETTINGS, "load_definitions": str(SAMPLES / f"{name}.json")}
    ) as two:
        assert missing_items(definitions, type(api)(two).get("/api/definitions")) == []


@pytest.mark.parametrize("name", ["rabbitmq-3.10.8-vhost", "rabbitmq-4.1-vhost"])
def test_definitions_of_one_vhost_are_imported_and_exported(api, v, name):
    definitions = sample(name)
    reply = api("POST", f"/api/definitions/{v}?report=true", definitions)
    assert (reply.status, reply.json) == (200, NOTHING)
    exported = api.get(f"/api/definitions/{v}")
    exported["parameters"] = [{**each, "vhost": "shop"} for each in exported["parameters"]]
    exported["policies"] = [{**each, "vhost": "shop"} for each in exported["policies"]]
    assert missing_items(definitions, exported) == []
    assert api.get(f"/api/vhost-limits/{v}")[0]["value"] in ({"max-queues": 50}, {"max-queues": 7})
