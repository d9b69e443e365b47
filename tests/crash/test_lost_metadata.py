"""SQLite believes its log up to the first wrong bit. What the rest of it told, the queues' directories still know."""

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


def filled(channel: Any, name: str, count: int, arguments: dict[str, Any] | None = None) -> None:
    channel.queue_declare(name, durable=True, arguments=arguments)
    for number in range(count):
        channel.basic_publish("", name, b"%d" % number, PERSISTENT, mandatory=True)


def queues(broker: BrokerProcess) -> list[tuple[str, str, int]]:
    listed: Any = broker.api("GET", "/api/queues?columns=vhost,name,messages")
    return sorted((each["vhost"], each["name"], each["messages"]) for each in listed)


def lose_tail(data_dir: Path, how: str) -> None:
    path = data_dir / "metadata.sqlite-wal"
    assert path.stat().st_size > 4096, "nothing of this life is in the log"
    if how == "missing":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[32 + 24 + 1000] ^= 1
        path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["one wrong bit", "missing"])
def test_what_the_metadata_lost_is_declared_again(tmp_path: Path, how: str) -> None:
    """Queues with their messages and arguments, and a vhost; nothing that was deleted, and not for ever after."""
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        filled(channel, "kept", 2)
        filled(channel, "old", 3)
        channel.queue_declare("old and never filled", durable=True)
        broker.api("PUT", "/api/vhosts/leaving", {})
        broker.api("PUT", "/api/permissions/leaving/guest", {"configure": ".*", "write": ".*", "read": ".*"})
        with connect(broker, "leaving") as other:
            filled(other.channel(), "in it", 1)
        connection.close()
    with broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        filled(channel, "orders", 5, ARGUMENTS)
        filled(channel, "brief", 4)
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
            filled(inside, "carts", 1)
        broker.api("DELETE", "/api/vhosts/leaving")
        connection.close()
        broker.kill()
    lose_tail(broker.data_dir, how)
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
        told = "queue 'orders' in vhost '/' was missing in the metadata and is declared again"
        assert broker.says(told), broker.stderr
        connection = connect(broker)
        channel = connection.channel()
        channel.queue_declare("orders", durable=True, arguments=ARGUMENTS)
        bodies = [channel.basic_get("orders", auto_ack=False)[2] for _ in range(5)]
        assert bodies == [b"%d" % number for number in range(5)]
        connection.close()
        assert not (broker.data_dir / "lost+found").exists()
        broker.kill()
    with broker:
        assert queues(broker) == expected, "and it stays so"
        restored: Any = broker.api("GET", "/api/amqpd/status")
        assert restored["restored"]["queues"] == []
        assert "Restored at this start" not in broker.ctl("status").stdout
    left = [path.name for path in broker.data_dir.glob("vhosts/**/*.deleted")]
    assert left == [], "a clean stop has put all of it into the database"
    with broker:
        assert queues(broker) == expected


@pytest.mark.slow
def test_a_lost_database_says_what_to_do(tmp_path: Path) -> None:
    """A wrong `metadata.url` looks the same: nothing is declared again before somebody has said so."""
    broker = BrokerProcess(tmp_path / "data")
    with broker:
        connection = connect(broker)
        channel = connection.channel()
        channel.confirm_delivery()
        filled(channel, "orders", 3, ARGUMENTS)
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
        assert queues(broker) == [("/", "orders", 3)], "in the vhost that this start made anew"
        with connect(broker) as connection:
            assert connection.channel().basic_get("orders")[2] == b"0"
    with broker:
        assert queues(broker) == [("/", "orders", 3)]


def test_every_deleted_queue_is_counted(amqpd_broker: BrokerProcess) -> None:
    """By a client, with its connection, with its vhost."""

    def counted() -> int:
        found: Any = amqpd_broker.api("GET", "/api/overview?columns=churn_rates.queue_deleted")
        return int(found["churn_rates"]["queue_deleted"])

    before = counted()
    amqpd_broker.api("PUT", "/api/vhosts/counted", {})
    amqpd_broker.api("PUT", "/api/permissions/counted/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    with connect(amqpd_broker, "counted") as connection:
        channel = connection.channel()
        for name in ("one", "two", "three"):
            channel.queue_declare(name, durable=name != "three")
        channel.queue_declare("mine", exclusive=True)
        channel.queue_delete("one")
        assert counted() == before + 1
    deadline = time.monotonic() + 30
    while counted() < before + 2:
        assert time.monotonic() < deadline, "the exclusive queue is not counted"
        time.sleep(0.02)
    amqpd_broker.api("DELETE", "/api/vhosts/counted")
    assert counted() == before + 4
