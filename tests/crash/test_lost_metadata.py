"""A damaged SQLite WAL: SQLite reads it up to the first wrong bit; the rest is restored from the queue directories."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pika
import pytest

from amqpd.testing import BrokerFailed, BrokerProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)
ARGUMENTS: dict[str, Any] = {"x-max-priority": 3, "x-single-active-consumer": False}


def connect(broker: BrokerProcess, vhost: str = "/") -> Any:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.amqp_port, vhost))


def declare_and_fill(channel: Any, name: str, count: int, arguments: dict[str, Any] | None = None) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    for number in range(count):
        channel.basic_publish("", name, b"%d" % number, PERSISTENT, mandatory=True)


def queues(broker: BrokerProcess) -> list[tuple[str, str, int]]:
    listed: Any = broker.api("GET", "/api/queues?columns=vhost,name,messages")
    return sorted((each["vhost"], each["name"], each["messages"]) for each in listed)


def lose_tail(data_dir: Path, damage: str) -> None:
    path = data_dir / "metadata.sqlite-wal"
    assert path.stat().st_size > 4096, "the WAL holds nothing of this life"
    if damage == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[32 + 24 + 1000] ^= 1
        path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["one wrong bit", "missing"])
def test_queues_and_vhosts_lost_from_wal_are_restored_at_start(tmp_path: Path, damage: str) -> None:
    """Queues with messages and arguments, and vhosts, are restored once; deleted ones are not."""
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        declare_and_fill(channel, "kept", 2)
        declare_and_fill(channel, "old", 3)
        channel.queue_declare("old and never filled", durable=True)
        broker.api("PUT", "/api/vhosts/leaving", {})
        broker.api("PUT", "/api/permissions/leaving/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        with connect(broker, "leaving") as other:
            declare_and_fill(other.channel(), "in it", 1)
        connection.close()
    with broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        declare_and_fill(channel, "orders", 5, ARGUMENTS)
        declare_and_fill(channel, "brief", 4)
        channel.queue_bind("orders", "amq.fanout")
        channel.queue_declare("never filled", durable=True)
        channel.queue_delete("brief")
        channel.queue_delete("old")
        channel.queue_delete("old and never filled")
        broker.api("PUT", "/api/vhosts/shop", {})
        broker.api("PUT", "/api/permissions/shop/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        with connect(broker, "shop") as other:
            inside = other.channel()
            inside.confirm_delivery()
            declare_and_fill(inside, "carts", 1)
        broker.api("DELETE", "/api/vhosts/leaving")
        connection.close()
        broker.kill()
    lose_tail(broker.data_dir, damage)
    expected = [("/", "kept", 2), ("/", "orders", 5), ("shop", "carts", 1)]
    with broker:
        assert queues(broker) == expected
        status = broker.ctl("status").stdout
        assert "Restored at this start" in status
        assert "queue 'orders' in vhost '/'" in status
        assert "vhost 'shop'" in status
        report: Any = broker.api("GET", "/api/amqpd/status")
        assert sorted(each["name"] for each in report["restored"]["queues"]) == ["carts", "orders"]
        assert report["restored"]["vhosts"] == ["shop"]
        log_line = "queue 'orders' in vhost '/' was missing in the metadata and is declared again"
        assert broker.says(log_line), broker.stderr
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments=ARGUMENTS)
        bodies = [channel.basic_get("orders", auto_ack=False)[2] for _ in range(5)]
        assert bodies == [b"%d" % number for number in range(5)]
        connection.close()
        assert not (broker.data_dir / "lost+found").exists()
        broker.kill()
    with broker:
        assert queues(broker) == expected, "another start changes nothing"
        restored: Any = broker.api("GET", "/api/amqpd/status")
        assert restored["restored"]["queues"] == []
        assert "Restored at this start" not in broker.ctl("status").stdout
    deleted_marks = [path.name for path in broker.data_dir.glob("vhosts/**/*.deleted")]
    assert deleted_marks == [], "a clean stop writes everything to the database"
    with broker:
        assert queues(broker) == expected


@pytest.mark.slow
def test_start_without_database_fails_until_instance_id_is_removed(tmp_path: Path) -> None:
    """A wrong `metadata.url` looks the same, so nothing is restored before the operator confirms the loss."""
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        declare_and_fill(channel, "orders", 3, ARGUMENTS)
        connection.close()
        broker.kill()
    for path in broker.data_dir.glob("metadata.sqlite*"):
        path.unlink()
    with pytest.raises(BrokerFailed, match="exit code 69") as failed:
        broker.start()
    instance = broker.data_dir / "instance-id"
    assert f"If the database is lost, remove {instance}" in str(failed.value)
    instance.unlink()
    with broker:
        assert queues(broker) == [("/", "orders", 3)], "in the vhost that this start created"
        with connect(broker) as connection:
            assert connection.channel().basic_get("orders")[2] == b"0"
    with broker:
        assert queues(broker) == [("/", "orders", 3)]


def test_queue_deleted_counter_counts_every_kind_of_deletion(amqpd_broker: BrokerProcess) -> None:
    """Deletion by a client, with its connection, and with its vhost."""

    def deleted_count() -> int:
        overview: Any = amqpd_broker.api("GET", "/api/overview?columns=churn_rates.queue_deleted")
        return int(overview["churn_rates"]["queue_deleted"])

    before = deleted_count()
    amqpd_broker.api("PUT", "/api/vhosts/counted", {})
    amqpd_broker.api("PUT", "/api/permissions/counted/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    with connect(amqpd_broker, "counted") as connection:
        channel = connection.channel()
        for name in ("one", "two", "three"):
            channel.queue_declare(name, durable=name != "three")
        channel.queue_declare("mine", exclusive=True)
        channel.queue_delete("one")
        assert deleted_count() == before + 1
    deadline = time.monotonic() + 30
    while deleted_count() < before + 2:
        assert time.monotonic() < deadline, "the exclusive queue is not counted"
        time.sleep(0.02)
    amqpd_broker.api("DELETE", "/api/vhosts/counted")
    assert deleted_count() == before + 4
