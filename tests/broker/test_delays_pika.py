"""Delayed messages over AMQP with pika: the plugin's documented behaviour, operators' commands, restarts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from amqpd.testing import BrokerFailed, BrokerProcess, Vhost

DELAYED = "x-delayed-message"
InTime = Callable[[float], Any]


@pytest.fixture
def channel(amqpd_vhost: Vhost) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def declare(channel: Any, kind: str = DELAYED, name: str = "later", **arguments: Any) -> None:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    if kind == DELAYED:
        table.setdefault("x-delayed-type", "direct")
    channel.exchange_declare(name, kind, durable=True, arguments=table)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, "key")


def redeclare(channel: Any, kind: str = DELAYED) -> None:
    """Delete and declare the exchange and the queue again, to remove messages of an earlier attempt."""
    channel.exchange_delete("later")
    channel.queue_delete("later")
    declare(channel, kind)


def publish(channel: Any, headers: dict[str, Any], body: bytes = b"body", **more: Any) -> None:
    exchange, key, mandatory = more.pop("exchange", "later"), more.pop("key", "key"), more.pop("mandatory", False)
    more.setdefault("delivery_mode", 2)
    channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers, **more), mandatory)


def get_message(channel: Any, queue: str = "later", within_s: float = 30.0) -> tuple[Any, Any, bytes]:
    deadline = time.monotonic() + within_s
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            return method, properties, body
        assert time.monotonic() < deadline, "no message arrived"
        time.sleep(0.01)


def code_and_text(error: pytest.ExceptionInfo[Any]) -> tuple[int, str]:
    return error.value.reply_code, error.value.reply_text


class TestDelay:
    def test_message_is_delayed_and_header_negated(self, channel: Any, in_time: InTime) -> None:
        """README of rabbitmq-delayed-message-exchange: "Usage"."""
        for scene in in_time(0.5):
            redeclare(channel)
            with scene:
                publish(channel, {"x-delay": scene.ms})
                assert channel.basic_get("later")[0] is None
        method, properties, body = get_message(channel, within_s=scene.seconds + 30)
        assert time.monotonic() - scene.started_s >= scene.seconds
        assert (method.exchange, method.routing_key, body, method.redelivered) == ("later", "key", b"body", False)
        assert properties.headers == {"x-delay": -scene.ms}

    @pytest.mark.parametrize("headers", [{"x-delay": 0}, {"x-delay": -1}, {"x-delay": "-5"}, {"other": 1}, None])
    def test_message_without_positive_delay_is_routed_at_once(self, channel: Any, headers: Any) -> None:
        declare(channel)
        publish(channel, headers, mandatory=True)
        method, properties, _ = get_message(channel)
        assert (properties.headers, method.exchange) == (headers, "later")

    def test_delay_as_string_of_digits(self, channel: Any) -> None:
        declare(channel)
        publish(channel, {"x-delay": "300"})
        assert get_message(channel)[1].headers == {"x-delay": -300}

    @pytest.mark.parametrize("kind", ["fanout", "topic", "headers", "direct"])
    def test_delayed_type_decides_routing(self, channel: Any, kind: str) -> None:
        declare(channel, x_delayed_type=kind)
        channel.queue_declare("never")
        if kind != "fanout":
            channel.queue_bind("never", "later", "no.key", {"x-match": "all", "never": 1})
        publish(channel, {"x-delay": 100})
        assert get_message(channel)[2] == b"body"
        assert channel.basic_get("never")[0] is None

    def test_mandatory_delayed_message_is_not_returned(self, channel: Any) -> None:
        declare(channel)
        publish(channel, {"x-delay": 100}, key="nobody", mandatory=True)
        with pytest.raises(pika.exceptions.UnroutableError):
            publish(channel, {}, key="nobody", mandatory=True)


class TestRefused:
    @pytest.mark.parametrize(
        ("headers", "text"),
        [
            ({"x-delay": "soon"}, "invalid header 'x-delay': expected a number of milliseconds, got longstr soon"),
            ({"x-delay": 315_360_000_001}, "invalid header 'x-delay': {value_too_large,315360000001}"),
            ({"x-deliver-at": True}, "invalid header 'x-deliver-at': expected a number of milliseconds, got bool True"),
        ],
    )
    def test_invalid_header_closes_channel(self, channel: Any, headers: Any, text: str) -> None:
        declare(channel)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            publish(channel, headers)
        assert code_and_text(refused) == (406, f"PRECONDITION_FAILED - {text}")

    @pytest.mark.parametrize(
        ("arguments", "code", "text"),
        [
            ({}, 406, "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' must be an existing exchange type"),
            (
                {"x-delayed-type": DELAYED},
                406,
                "PRECONDITION_FAILED - Invalid argument, 'x-delayed-type' can't be used for 'x-delayed-message'",
            ),
        ],
    )
    def test_invalid_delayed_type_closes_channel(self, channel: Any, arguments: Any, code: int, text: str) -> None:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.exchange_declare("x", DELAYED, arguments=arguments)
        assert code_and_text(refused) == (code, text)

    def test_unknown_delayed_type_closes_connection(self, channel: Any) -> None:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused:
            channel.exchange_declare("x", DELAYED, arguments={"x-delayed-type": "nonsense"})
        assert code_and_text(refused) == (503, "COMMAND_INVALID - unknown exchange type 'nonsense'")


class TestWithOtherFeatures:
    def test_policy_delays_message_with_x_deliver_at(
        self, channel: Any, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost, in_time: InTime
    ) -> None:
        declare(channel, "topic")
        amqpd_broker.ctl(
            "set_policy", "-p", amqpd_vhost.name, "d", "^later$", '{"delayed-message": true}', "--apply-to", "exchanges"
        )
        for scene in in_time(0.5):
            redeclare(channel, "topic")
            with scene:
                at = int(time.time() * 1000) + scene.ms
                publish(channel, {"x-deliver-at": at})
                assert channel.basic_get("later")[0] is None
        _, properties, _ = get_message(channel, within_s=scene.seconds + 30)
        assert time.time() * 1000 >= at
        assert properties.headers == {"x-delivered-at": at}

    def test_cc_and_bcc_copies_are_delayed(self, channel: Any) -> None:
        declare(channel)
        for name in ("cc", "bcc"):
            channel.queue_declare(name)
            channel.queue_bind(name, "later", name)
        publish(channel, {"x-delay": 200, "CC": ["cc"], "BCC": ["bcc"]})
        for queue in ("later", "cc", "bcc"):
            assert get_message(channel, queue)[1].headers == {"x-delay": -200, "CC": ["cc"]}

    def test_delay_begins_at_commit(self, amqpd_vhost: Vhost) -> None:
        with pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url)) as connection:
            channel = connection.channel()
            declare(channel)
            channel.tx_select()
            publish(channel, {"x-delay": 100}, b"back")
            channel.tx_rollback()
            for number in range(3):
                publish(channel, {"x-delay": 50}, b"%d" % number)
            time.sleep(0.2)
            assert channel.basic_get("later")[0] is None, "messages are routed before the commit"
            channel.tx_commit()
            assert [get_message(channel)[2] for _ in range(3)] == [b"0", b"1", b"2"]

    def test_properties_are_kept_and_user_id_is_checked(self, channel: Any) -> None:
        declare(channel)
        publish(channel, {"x-delay": 100}, user_id="guest", priority=5, expiration="60000", correlation_id="c")
        _, properties, _ = get_message(channel)
        values = (properties.user_id, properties.priority, properties.expiration, properties.correlation_id)
        assert values == ("guest", 5, "60000", "c")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            publish(channel, {"x-delay": 100}, user_id="somebody")

    def test_publish_over_http_api_is_delayed(
        self, channel: Any, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost
    ) -> None:
        declare(channel)
        message = {"routing_key": "key", "payload": "p", "properties": {"headers": {"x-delay": 200}}}
        path = f"/api/exchanges/{amqpd_vhost.name}/later/publish"
        assert amqpd_broker.api("POST", path, message) == {"routed": True}
        assert get_message(channel)[2] == b"p"


def list_delayed(broker: BrokerProcess, vhost: str, *more: str) -> list[dict[str, Any]]:
    result = broker.ctl("--formatter", "json", "list_delayed_messages", "-p", vhost, *more)
    assert result.returncode == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def logs_below(directory: Path) -> list[str]:
    """Return the log files, also while the broker removes directories."""
    return [f"{folder}/{name}" for folder, _, names in os.walk(directory) for name in names if name.endswith(".log")]


def number_delayed(broker: BrokerProcess, vhost: str, exchange: str = "later") -> int:
    found: Any = broker.api("GET", f"/api/exchanges/{vhost}/{exchange}")
    return int(found["messages_delayed"])


def wait_for_delayed_count(broker: BrokerProcess, count: int) -> None:
    """Wait for the number of delayed messages. A released message counts until its queue has synced it."""
    deadline = time.monotonic() + 60
    while number_delayed(broker, "%2F") != count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert number_delayed(broker, "%2F") == count


class TestOperators:
    @pytest.mark.slow
    def test_amqpctl_lists_and_cancels(self, channel: Any, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
        declare(channel)
        declare(channel, name="other")
        started_ms = time.time() * 1000
        for delay in (600_000, 300_000, 4_000_000, 400_000_000, 2_000_000_000):
            publish(channel, {"x-delay": delay}, b"x" * (delay // 10_000_000))
        publish(channel, {"x-delay": 700_000}, exchange="other")
        vhost = amqpd_vhost.name
        columns = ("id", "exchange", "due", "routing_keys", "payload_bytes", "persistent")
        items = list_delayed(amqpd_broker, vhost, "--exchange", "later", *columns)
        delays = [round((item["due"] - started_ms) / 100_000) * 100_000 for item in items]
        assert delays == [300_000, 600_000, 4_000_000, 400_000_000, 2_000_000_000]
        assert [item["payload_bytes"] for item in items] == [0, 0, 0, 40, 200]
        assert items[0]["routing_keys"] == ["key"] and items[0]["persistent"] is True
        assert len(list_delayed(amqpd_broker, vhost)) == 6
        assert [item["due"] for item in list_delayed(amqpd_broker, vhost, "--limit", "2")] == [
            item["due"] for item in items[:2]
        ]
        for limit in ("0", "10001", "9" * 5000, "many"):
            assert amqpd_broker.ctl("list_delayed_messages", "-p", vhost, "--limit", limit).returncode == 64
            with pytest.raises(BrokerFailed, match="-> 400 .*limit must be a number from 1 to 10000"):
                amqpd_broker.api("GET", f"/api/delayed/{vhost}?limit={limit}")
        assert number_delayed(amqpd_broker, vhost) == 5
        vhost_status: Any = amqpd_broker.api("GET", f"/api/vhosts/{vhost}")
        assert vhost_status["messages_delayed"] == 6
        for item in (items[4], items[1]):
            assert amqpd_broker.ctl("cancel_delayed_message", "-p", vhost, item["id"]).returncode == 0
            second = amqpd_broker.ctl("cancel_delayed_message", "-p", vhost, item["id"])
            assert second.returncode == 69 and "no delayed message" in second.stderr
        assert amqpd_broker.ctl("cancel_delayed_message", "-p", vhost, "nonsense").returncode == 64
        remaining = [item["id"] for item in list_delayed(amqpd_broker, vhost, "--exchange", "later")]
        assert remaining == [items[0]["id"], items[2]["id"], items[3]["id"]]
        assert number_delayed(amqpd_broker, vhost) == 3

    def test_cancelled_message_is_not_released(
        self, channel: Any, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost, in_time: InTime
    ) -> None:
        for scene in in_time(1.5):
            redeclare(channel)
            with scene:
                for body in (b"a", b"b", b"c"):
                    publish(channel, {"x-delay": scene.ms}, body)
                items = list_delayed(amqpd_broker, amqpd_vhost.name)
                path = f"/api/delayed/{amqpd_vhost.name}/{items[1]['id']}"
                amqpd_broker.api("DELETE", path)
        assert [get_message(channel, within_s=scene.seconds + 30)[2], get_message(channel)[2]] == [b"a", b"c"]
        time.sleep(0.1)
        assert channel.basic_get("later")[0] is None

    def test_deletion_of_exchange_or_vhost_deletes_messages(self, channel: Any, amqpd_broker: BrokerProcess) -> None:
        vhosts = amqpd_broker.data_dir / "vhosts"
        before = set(vhosts.glob("*"))
        vhost = amqpd_broker.add_vhost()
        with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
            other_channel = connection.channel()
            other_channel.confirm_delivery()
            declare(other_channel)
            for delay in (60_000, 600_000, 6_000_000):
                publish(other_channel, {"x-delay": delay})
            assert number_delayed(amqpd_broker, vhost.name) == 3
            other_channel.exchange_delete("later")
            declare(other_channel)
            assert number_delayed(amqpd_broker, vhost.name) == 0
            publish(other_channel, {"x-delay": 60_000})
        (directory,) = set(vhosts.glob("*")) - before
        assert logs_below(directory)
        amqpd_broker.delete_vhost(vhost.name)
        deadline = time.monotonic() + 30
        while remaining := logs_below(directory) + logs_below(directory.with_suffix(".deleted")):
            assert time.monotonic() < deadline, remaining
            time.sleep(0.05)

    def test_metrics_count_delayed_messages(self, channel: Any, amqpd_broker: BrokerProcess) -> None:
        import urllib.request

        declare(channel)
        publish(channel, {"x-delay": 60_000})
        with urllib.request.urlopen(f"{amqpd_broker.http_url}/metrics") as answer:
            text = answer.read().decode()
        assert "amqpd_delayed_messages 0\n" not in text
        assert "amqpd_delayed_messages_released_total" in text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_restart_releases_confirmed_messages_when_due(tmp_path: Path, how: str) -> None:
    """Confirmed persistent messages are released once, when due. A transient message is dropped by the restart."""
    with BrokerProcess(tmp_path) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel)
            started_s = time.time()
            for number in range(50):
                publish(channel, {"x-delay": 3000 + number, "n": number})
            publish(channel, {"x-delay": 3000, "n": -1}, delivery_mode=1)
            publish(channel, {"x-delay": 600_000, "n": 1000})
        getattr(broker, how)()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            found = [get_message(channel)[1].headers["n"] for _ in range(50)]
            assert time.time() - started_s >= 3
            assert sorted(found) == list(range(50))
            time.sleep(0.3)
            assert channel.basic_get("later")[0] is None
            wait_for_delayed_count(broker, 1)
        checked = broker.ctl("verify_log", str(broker.data_dir))
        assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_logs_with_torn_tail_are_repaired(tmp_path: Path) -> None:
    """Every log of a bucket has a torn tail, as from an unfinished write. All confirmed messages are released."""
    with BrokerProcess(tmp_path) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel)
            for number in range(20):
                publish(channel, {"x-delay": 2000 + number, "n": number})
            publish(channel, {"x-delay": 600_000, "n": 1000})
        broker.kill()
        logs = list(tmp_path.glob("vhosts/*/delays/*/*/*.log"))
        assert len(logs) > 1
        for each in logs:
            with each.open("ab") as file:
                file.write(bytes(50))
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            assert [get_message(channel)[1].headers["n"] for _ in range(20)] == list(range(20))
        wait_for_delayed_count(broker, 1)


@pytest.mark.slow
def test_kills_during_release_lose_nothing(tmp_path: Path) -> None:
    """No confirmed message is lost. A repeated one is marked as redelivered."""
    with BrokerProcess(tmp_path) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel)
            for number in range(1000):
                channel.basic_publish(
                    "later",
                    "key",
                    b"%d" % number,
                    pika.BasicProperties(headers={"x-delay": 8000 + number % 7}, delivery_mode=2),
                )
        deadline = time.monotonic() + 60
        kills = 0
        while number_delayed(broker, "%2F") > 0 and time.monotonic() < deadline:
            queue_status: Any = broker.api("GET", "/api/queues/%2F/later")
            if queue_status["messages"] > 0 and kills < 5:
                kills += 1
                broker.kill()
                broker.start()
            time.sleep(0.02)
        seen: dict[bytes, list[bool]] = {}
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            empty = 0
            while empty < 20:
                method, properties, body = channel.basic_get("later", auto_ack=True)
                if method is None:
                    empty += 1
                    time.sleep(0.02)
                    continue
                seen.setdefault(body, []).append("x-delayed-redelivered" in properties.headers)
        assert len(seen) == 1000
        for body, marks in seen.items():
            assert len(marks) - sum(marks) <= 1, (body, marks)
