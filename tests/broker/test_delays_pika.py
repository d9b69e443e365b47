"""Delayed messages with pika, as the plugin's users have them, and what operators do: on a running broker."""

from __future__ import annotations

import json
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


def anew(channel: Any, kind: str = DELAYED) -> None:
    """Without what an earlier scene has left in it."""
    channel.exchange_delete("later")
    channel.queue_delete("later")
    declare(channel, kind)


def publish(channel: Any, headers: dict[str, Any], body: bytes = b"body", **more: Any) -> None:
    exchange, key, mandatory = more.pop("exchange", "later"), more.pop("key", "key"), more.pop("mandatory", False)
    more.setdefault("delivery_mode", 2)
    channel.basic_publish(exchange, key, body, pika.BasicProperties(headers=headers, **more), mandatory)


def take(channel: Any, queue: str = "later", within_s: float = 30.0) -> tuple[Any, Any, bytes]:
    deadline = time.monotonic() + within_s
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None:
            return method, properties, body
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.01)


def code_of(error: pytest.ExceptionInfo[Any]) -> tuple[int, str]:
    return error.value.reply_code, error.value.reply_text


class TestAsThePluginDocuments:
    def test_a_delay(self, channel: Any, in_time: InTime) -> None:
        """README of rabbitmq-delayed-message-exchange: "Usage"."""
        for scene in in_time(0.5):
            anew(channel)
            with scene:
                publish(channel, {"x-delay": scene.ms})
                assert channel.basic_get("later")[0] is None
        method, properties, body = take(channel, within_s=scene.seconds + 30)
        assert time.monotonic() - scene.began_s >= scene.seconds
        assert (method.exchange, method.routing_key, body, method.redelivered) == ("later", "key", b"body", False)
        assert properties.headers == {"x-delay": -scene.ms}

    @pytest.mark.parametrize("headers", [{"x-delay": 0}, {"x-delay": -1}, {"x-delay": "-5"}, {"other": 1}, None])
    def test_at_once(self, channel: Any, headers: Any) -> None:
        declare(channel)
        publish(channel, headers, mandatory=True)
        method, properties, _ = take(channel)
        assert (properties.headers, method.exchange) == (headers, "later")

    def test_a_text_of_digits(self, channel: Any) -> None:
        declare(channel)
        publish(channel, {"x-delay": "300"})
        assert take(channel)[1].headers == {"x-delay": -300}

    @pytest.mark.parametrize("kind", ["fanout", "topic", "headers", "direct"])
    def test_every_type_routes_as_itself(self, channel: Any, kind: str) -> None:
        declare(channel, x_delayed_type=kind)
        channel.queue_declare("never")
        if kind != "fanout":
            channel.queue_bind("never", "later", "no.key", {"x-match": "all", "never": 1})
        publish(channel, {"x-delay": 100})
        assert take(channel)[2] == b"body"
        assert channel.basic_get("never")[0] is None

    def test_mandatory_is_taken(self, channel: Any) -> None:
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
    def test_headers(self, channel: Any, headers: Any, text: str) -> None:
        declare(channel)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            publish(channel, headers)
        assert code_of(refused) == (406, f"PRECONDITION_FAILED - {text}")

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
    def test_declarations(self, channel: Any, arguments: Any, code: int, text: str) -> None:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.exchange_declare("x", DELAYED, arguments=arguments)
        assert code_of(refused) == (code, text)

    def test_an_unknown_type(self, channel: Any) -> None:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as refused:
            channel.exchange_declare("x", DELAYED, arguments={"x-delayed-type": "nonsense"})
        assert code_of(refused) == (503, "COMMAND_INVALID - unknown exchange type 'nonsense'")


class TestTogetherWith:
    def test_a_time_and_a_policy(
        self, channel: Any, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost, in_time: InTime
    ) -> None:
        declare(channel, "topic")
        amqpd_broker.ctl(
            "set_policy", "-p", amqpd_vhost.name, "d", "^later$", '{"delayed-message": true}', "--apply-to", "exchanges"
        )
        for scene in in_time(0.5):
            anew(channel, "topic")
            with scene:
                at = int(time.time() * 1000) + scene.ms
                publish(channel, {"x-deliver-at": at})
                assert channel.basic_get("later")[0] is None
        _, properties, _ = take(channel, within_s=scene.seconds + 30)
        assert time.time() * 1000 >= at
        assert properties.headers == {"x-delivered-at": at}

    def test_copies(self, channel: Any) -> None:
        declare(channel)
        for name in ("cc", "bcc"):
            channel.queue_declare(name)
            channel.queue_bind(name, "later", name)
        publish(channel, {"x-delay": 200, "CC": ["cc"], "BCC": ["bcc"]})
        for queue in ("later", "cc", "bcc"):
            assert take(channel, queue)[1].headers == {"x-delay": -200, "CC": ["cc"]}

    def test_a_transaction(self, amqpd_vhost: Vhost) -> None:
        with pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url)) as connection:
            channel = connection.channel()
            declare(channel)
            channel.tx_select()
            publish(channel, {"x-delay": 100}, b"back")
            channel.tx_rollback()
            for number in range(3):
                publish(channel, {"x-delay": 50}, b"%d" % number)
            time.sleep(0.2)
            assert channel.basic_get("later")[0] is None, "not committed"
            channel.tx_commit()
            assert [take(channel)[2] for _ in range(3)] == [b"0", b"1", b"2"]

    def test_what_a_message_says(self, channel: Any) -> None:
        declare(channel)
        publish(channel, {"x-delay": 100}, user_id="guest", priority=5, expiration="60000", correlation_id="c")
        _, properties, _ = take(channel)
        said = (properties.user_id, properties.priority, properties.expiration, properties.correlation_id)
        assert said == ("guest", 5, "60000", "c")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            publish(channel, {"x-delay": 100}, user_id="somebody")

    def test_over_http(self, channel: Any, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
        declare(channel)
        sent = {"routing_key": "key", "payload": "p", "properties": {"headers": {"x-delay": 200}}}
        path = f"/api/exchanges/{amqpd_vhost.name}/later/publish"
        assert amqpd_broker.api("POST", path, sent) == {"routed": True}
        assert take(channel)[2] == b"p"


def listed(broker: BrokerProcess, vhost: str, *more: str) -> list[dict[str, Any]]:
    told = broker.ctl("--formatter", "json", "list_delayed_messages", "-p", vhost, *more)
    assert told.returncode == 0, told.stderr
    found: list[dict[str, Any]] = json.loads(told.stdout)
    return found


def number_delayed(broker: BrokerProcess, vhost: str, exchange: str = "later") -> int:
    found: Any = broker.api("GET", f"/api/exchanges/{vhost}/{exchange}")
    return int(found["messages_delayed"])


def until_delayed(broker: BrokerProcess, count: int) -> None:
    """What is with its queue is settled where it waited when that has been synced."""
    until = time.monotonic() + 60
    while number_delayed(broker, "%2F") != count and time.monotonic() < until:
        time.sleep(0.05)
    assert number_delayed(broker, "%2F") == count


class TestOperators:
    @pytest.mark.slow
    def test_list_and_cancel(self, channel: Any, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
        declare(channel)
        declare(channel, name="other")
        began = time.time() * 1000
        for delay in (600_000, 300_000, 4_000_000, 400_000_000, 2_000_000_000):
            publish(channel, {"x-delay": delay}, b"x" * (delay // 10_000_000))
        publish(channel, {"x-delay": 700_000}, exchange="other")
        vhost = amqpd_vhost.name
        columns = ("id", "exchange", "due", "routing_keys", "payload_bytes", "persistent")
        items = listed(amqpd_broker, vhost, "--exchange", "later", *columns)
        delays = [round((item["due"] - began) / 100_000) * 100_000 for item in items]
        assert delays == [300_000, 600_000, 4_000_000, 400_000_000, 2_000_000_000]
        assert [item["payload_bytes"] for item in items] == [0, 0, 0, 40, 200]
        assert items[0]["routing_keys"] == ["key"] and items[0]["persistent"] is True
        assert len(listed(amqpd_broker, vhost)) == 6
        assert [item["due"] for item in listed(amqpd_broker, vhost, "--limit", "2")] == [
            item["due"] for item in items[:2]
        ]
        for limit in ("0", "10001", "9" * 5000, "many"):
            assert amqpd_broker.ctl("list_delayed_messages", "-p", vhost, "--limit", limit).returncode == 64
            with pytest.raises(BrokerFailed, match="-> 400 .*limit must be a number from 1 to 10000"):
                amqpd_broker.api("GET", f"/api/delayed/{vhost}?limit={limit}")
        assert number_delayed(amqpd_broker, vhost) == 5
        told: Any = amqpd_broker.api("GET", f"/api/vhosts/{vhost}")
        assert told["messages_delayed"] == 6
        for item in (items[4], items[1]):
            assert amqpd_broker.ctl("cancel_delayed_message", "-p", vhost, item["id"]).returncode == 0
            again = amqpd_broker.ctl("cancel_delayed_message", "-p", vhost, item["id"])
            assert again.returncode == 69 and "no delayed message" in again.stderr
        assert amqpd_broker.ctl("cancel_delayed_message", "-p", vhost, "nonsense").returncode == 64
        left = [item["id"] for item in listed(amqpd_broker, vhost, "--exchange", "later")]
        assert left == [items[0]["id"], items[2]["id"], items[3]["id"]]
        assert number_delayed(amqpd_broker, vhost) == 3

    def test_a_cancelled_one_does_not_come(
        self, channel: Any, amqpd_broker: BrokerProcess, amqpd_vhost: Vhost, in_time: InTime
    ) -> None:
        for scene in in_time(1.5):
            anew(channel)
            with scene:
                for body in (b"a", b"b", b"c"):
                    publish(channel, {"x-delay": scene.ms}, body)
                items = listed(amqpd_broker, amqpd_vhost.name)
                path = f"/api/delayed/{amqpd_vhost.name}/{items[1]['id']}"
                amqpd_broker.api("DELETE", path)
        assert [take(channel, within_s=scene.seconds + 30)[2], take(channel)[2]] == [b"a", b"c"]
        time.sleep(0.1)
        assert channel.basic_get("later")[0] is None

    def test_the_exchange_and_the_vhost_take_them_along(self, channel: Any, amqpd_broker: BrokerProcess) -> None:
        vhost = amqpd_broker.add_vhost()
        with pika.BlockingConnection(pika.URLParameters(vhost.url)) as connection:
            inner = connection.channel()
            inner.confirm_delivery()
            declare(inner)
            for delay in (60_000, 600_000, 6_000_000):
                publish(inner, {"x-delay": delay})
            assert number_delayed(amqpd_broker, vhost.name) == 3
            inner.exchange_delete("later")
            declare(inner)
            assert number_delayed(amqpd_broker, vhost.name) == 0
            publish(inner, {"x-delay": 60_000})
        amqpd_broker.delete_vhost(vhost.name)
        deadline = time.monotonic() + 30
        while any(amqpd_broker.data_dir.glob("vhosts/*/delays/*/*/*.log")):
            left = [str(each) for each in amqpd_broker.data_dir.glob("vhosts/*/delays/*/*/*.log")]
            if not [each for each in left if vhost.name in each]:
                break
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    def test_metrics(self, channel: Any, amqpd_broker: BrokerProcess) -> None:
        import urllib.request

        declare(channel)
        publish(channel, {"x-delay": 60_000})
        with urllib.request.urlopen(f"{amqpd_broker.http_url}/metrics") as answer:
            text = answer.read().decode()
        assert "amqpd_delayed_messages 0\n" not in text
        assert "amqpd_delayed_messages_released_total" in text


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_restarts(tmp_path: Path, how: str) -> None:
    """What was confirmed comes, in its time, once; what is transient went with the broker."""
    with BrokerProcess(tmp_path) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            declare(channel)
            began = time.time()
            for number in range(50):
                publish(channel, {"x-delay": 3000 + number, "n": number})
            publish(channel, {"x-delay": 3000, "n": -1}, delivery_mode=1)
            publish(channel, {"x-delay": 600_000, "n": 1000})
        getattr(broker, how)()
        broker.start()
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            channel = connection.channel()
            found = [take(channel)[1].headers["n"] for _ in range(50)]
            assert time.time() - began >= 3
            assert sorted(found) == list(range(50))
            time.sleep(0.3)
            assert channel.basic_get("later")[0] is None
            until_delayed(broker, 1)
        checked = broker.ctl("verify_log", str(broker.data_dir))
        assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
def test_what_a_kill_left_is_made_whole_by_another_thread(tmp_path: Path) -> None:
    """A torn tail in every log, as of what was on its way to the disk: each is opened, and what it has comes."""
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
            assert [take(channel)[1].headers["n"] for _ in range(20)] == list(range(20))
        until_delayed(broker, 1)


@pytest.mark.slow
def test_kills_in_the_middle_of_the_release(tmp_path: Path) -> None:
    """Nothing that was confirmed is lost; what comes twice says so."""
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
            told: Any = broker.api("GET", "/api/queues/%2F/later")
            if told["messages"] > 0 and kills < 5:
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
