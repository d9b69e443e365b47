"""The broker's log records starts, connections, changes by users, and the recovery after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpd.testing import BrokerProcess, BrokerThread


def read_log(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_log_of_start_changes_kill_and_recovery(tmp_path):
    file = tmp_path / "log"
    settings = {"log.file": file, "log.format": "json", "log.level": "debug"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        broker.add_vhost("shop")
        broker.api("PUT", "/api/users/anna", {"password": "secret-of-anna", "tags": "management"})
        broker.ctl("set_user_tags", "anna", "monitoring")
        connection = pika.BlockingConnection(pika.URLParameters(f"{broker.url}shop"))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"x", pika.BasicProperties(delivery_mode=2))
        channel.queue_declare("brief")
        channel.queue_delete("brief")
        channel.confirm_delivery()
        channel.basic_publish("", "orders", b"y", pika.BasicProperties(delivery_mode=2))
        connection.close()
        broker.kill()
        broker.start()
        client = pika.BlockingConnection(pika.URLParameters(f"{broker.url}shop"))
        assert client.channel().queue_declare("orders", passive=True).method.message_count == 2
        broker.delete_vhost("shop")
        with pytest.raises(pika.exceptions.AMQPError):
            client.process_data_events(30)
        broker.api("DELETE", "/api/users/anna")
        broker.stop()
        log = read_log(file)
    texts = [record["message"] for record in log]
    for text in (
        "vhost 'shop' was added",
        "user 'guest' did PUT /api/vhosts/shop",
        "user 'anna' was added",
        "user 'guest' did PUT /api/users/anna",
        "the tags of user 'anna' were changed",
        "amqpctl did PUT /api/amqpd/users/anna/tags",
        "the permissions of user 'guest' were changed",
        "user 'guest' has opened vhost 'shop'",
        "queue 'orders' was added",
        "queue 'brief' was deleted with 0 ready messages",
        "the client has closed its connection",
        "vhost 'shop' was deleted with its 1 queues",
        "user 'anna' was deleted",
        "a connection is closed: CONNECTION_FORCED - vhost 'shop' is deleted",
        "stopped, all logs are synced",
    ):
        assert text in texts, "\n".join(texts)
    assert "secret-of-anna" not in file.read_text()
    opened = next(record for record in log if record["message"].startswith("user 'guest' has opened"))
    assert (opened["vhost"], opened["user"]) == ("shop", "guest") and " -> " in opened["connection"]
    added = next(record for record in log if record["message"] == "queue 'orders' was added")
    assert (added["vhost"], added["queue"], added["level"]) == ("shop", "orders", "debug")
    recoveries = [record for record in log if "was recovered in" in record["message"]]
    (recovered,) = [record for record in recoveries if record["queue"] != "amq.audit"]
    assert recovered["queue"] == "orders"
    assert recovered["message"].endswith("ends at offset 2, 0 torn bytes were cut off, 0 offsets are lost")


def test_full_disk_is_logged_with_its_reason_and_once_a_minute(tmp_path, caplog):
    with BrokerThread(tmp_path, memory=True, settings={"limits.disk_free_bytes": 0}) as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        broker.server.storage.filesystem.is_full = True
        for _ in range(5):
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish("", "orders", b"x", pika.BasicProperties(delivery_mode=2))
        broker.server.storage.filesystem.is_full = False
        connection.close()
    texts = [record.getMessage() for record in caplog.records if "could not write" in record.getMessage()]
    reason = "could not write; publishers are nacked: No space left on device"
    assert texts == [f"queue 'orders' in vhost '/': the log {reason}"]
