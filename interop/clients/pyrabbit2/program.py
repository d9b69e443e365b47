"""pyrabbit2: the scenarios for the HTTP API of ../README.md."""

import contextlib
import os
import sys
import time
from importlib.metadata import version
from urllib.parse import unquote, urlsplit

import pika
from pyrabbit2 import Client
from pyrabbit2.api import PermissionError  # noqa: A004  # its name there

NOT_OFFERED = {
    "definitions": "pyrabbit2 exports definitions, and imports none",
    "scrape": "pyrabbit2 reads JSON only",
}
VHOST = unquote(urlsplit(os.environ.get("AMQP_URL", "")).path[1:])


def connect():
    parts = urlsplit(os.environ["HTTP_URL"])
    return Client(f"{parts.hostname}:{parts.port}", parts.username, parts.password, timeout=60)


def overview(client):
    assert client.get_overview()["management_version"]
    assert client.get_whoami()["name"] == "guest"
    assert len(client.get_nodes()) == 1


def refused(client):
    try:
        client.get_overview()
    except PermissionError as error:
        assert "401" in str(error), error
    else:
        raise AssertionError("not refused")


def vhosts(client):
    name = f"{VHOST}/made"
    client.create_vhost(name)
    assert name in client.get_vhost_names()
    client.delete_vhost(name)
    assert name not in client.get_vhost_names()


def users(client):
    client.create_user("made", password="secret", tags="monitoring")
    client.set_vhost_permissions(VHOST, "made", config="^c", rd=".*", wr="^w")
    [found] = client.get_user_permissions("made")
    assert (found["vhost"], found["configure"], found["write"], found["read"]) == (VHOST, "^c", "^w", ".*"), found
    assert "made" in [each["name"] for each in client.get_users()]
    client.delete_user("made")
    assert "made" not in [each["name"] for each in client.get_users()]


def exchanges(client):
    client.create_exchange(VHOST, "made", "topic", durable=True)
    found = client.get_exchange(VHOST, "made")
    assert (found["type"], found["durable"], found["auto_delete"]) == ("topic", True, False), found
    client.delete_exchange(VHOST, "made")
    assert "made" not in [each["name"] for each in client.get_exchanges(VHOST)]


def queues(client):
    client.create_queue(VHOST, "made", durable=True, arguments={"x-max-length": 5})
    found = client.get_queue(VHOST, "made")
    assert (found["durable"], found["arguments"]) == (True, {"x-max-length": 5}), found
    client.publish(VHOST, "amq.default", "made", "1")
    client.purge_queue(VHOST, "made")
    assert client.get_messages(VHOST, "made") == []
    client.delete_queue(VHOST, "made")
    assert client.get_queues(VHOST) == []


def bindings(client):
    client.create_queue(VHOST, "bound")
    client.create_binding(VHOST, "amq.topic", "bound", "a.#")
    found = [(each["source"], each["routing_key"]) for each in client.get_queue_bindings(VHOST, "bound")]
    assert sorted(found) == [("", "bound"), ("amq.topic", "a.#")], found
    client.delete_binding(VHOST, "amq.topic", "bound", "a.%23")
    assert len(client.get_queue_bindings(VHOST, "bound")) == 1


def messages(client):
    client.create_queue(VHOST, "messages")
    assert client.publish(VHOST, "amq.default", "messages", "grüße", properties={"headers": {"n": 1}}) is True
    assert client.publish(VHOST, "amq.default", "nowhere", "lost") is False
    [found] = client.get_messages(VHOST, "messages")
    assert (found["payload"], found["properties"]["headers"]) == ("grüße", {"n": 1}), found


def policies(client):
    client.create_policy(
        VHOST, "made", pattern="^p", definition={"max-length": 3}, priority=2, **{"apply-to": "queues"}
    )
    found = client.get_policy(VHOST, "made")
    assert (found["definition"], found["priority"]) == ({"max-length": 3}, 2), found
    client.delete_policy(VHOST, "made")
    assert "made" not in [each["name"] for each in client.get_all_policies() if each["vhost"] == VHOST]


def connections(client):
    with pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"])) as connection:
        connection.channel()
        while not (names := [each["name"] for each in client.get_connections() if each.get("vhost") == VHOST]):
            time.sleep(0.1)  # RabbitMQ shows a connection some seconds later
        while not [each for each in client.get_channels() if each.get("vhost") == VHOST]:
            time.sleep(0.1)
        client.delete_connection(names[0])
        with contextlib.suppress(pika.exceptions.AMQPError):
            while True:
                connection.process_data_events(1)
        assert connection.is_closed


def health(client):
    assert client.is_alive(VHOST) is True


def main(name):
    if name == "version":
        print(version("pyrabbit2"))
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        globals()[name](connect())
        print("pass")


main(*sys.argv[1:])
