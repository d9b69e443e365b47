"""What RabbitMQ 3.10, 3.13 and 4.1 export comes in whole, goes out, and says the same."""

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


def what_is_missing(given, exported):
    """Items of `given` that have no item in `exported` with the same values under the keys that 3.10.8 knows."""
    missing = []
    for kind, items in given.items():
        if isinstance(items, list):
            there = [
                {key: value for key, value in each.items() if value is not None} for each in exported.get(kind, [])
            ]
            missing += [(kind, item) for item in items if not any(agrees(kind, item, each) for each in there)]
    return missing


def agrees(kind, item, there):
    if kind == "queues":
        item = {**item, "type": item["arguments"].get("x-queue-type", "classic")}
    if kind == "vhosts":
        item = {key: value for key, value in item.items() if key != "limits"}
        item["metadata"] = there["metadata"] | item.get("metadata", {})
    return there | item == there


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rabbitmq-3.10.8", "rabbitmq-3.13", "rabbitmq-4.1"])
def test_comes_in_and_goes_out(tmp_path, api, name):
    given = sample(name)
    with BrokerProcess(tmp_path / "one", settings=SETTINGS) as broker:
        first = type(api)(broker)
        told = first("POST", "/api/definitions?report=true", given)
        assert (told.status, told.json) == (200, NOTHING)
        credentials = pika.PlainCredentials("alice", "wonder")
        parameters = pika.ConnectionParameters("127.0.0.1", broker.amqp_port, "shop", credentials)
        with pika.BlockingConnection(parameters) as connection:
            for queue in given["queues"]:
                connection.channel().queue_declare(queue["name"], passive=True)
        exported = first.get("/api/definitions")
        assert what_is_missing(given, exported) == []
        assert len(what_is_missing(given, {**exported, "queues": []})) == len(given["queues"])
    with BrokerProcess(
        tmp_path / "two", settings={**SETTINGS, "load_definitions": str(SAMPLES / f"{name}.json")}
    ) as two:
        assert what_is_missing(given, type(api)(two).get("/api/definitions")) == []


@pytest.mark.parametrize("name", ["rabbitmq-3.10.8-vhost", "rabbitmq-4.1-vhost"])
def test_of_one_vhost(api, v, name):
    given = sample(name)
    told = api("POST", f"/api/definitions/{v}?report=true", given)
    assert (told.status, told.json) == (200, NOTHING)
    exported = api.get(f"/api/definitions/{v}")
    exported["parameters"] = [{**each, "vhost": "shop"} for each in exported["parameters"]]
    exported["policies"] = [{**each, "vhost": "shop"} for each in exported["policies"]]
    assert what_is_missing(given, exported) == []
    assert api.get(f"/api/vhost-limits/{v}")[0]["value"] in ({"max-queues": 50}, {"max-queues": 7})
