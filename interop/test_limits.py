"""Limits of vhosts and users as in RabbitMQ's guides (Virtual Hosts, Access Control), set with the control command and
checked with pika. Also alarms set by hand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

Unique = Callable[[str], str]


class LimitedVhost:
    """A vhost and a user for one test, deleted at its end."""

    def __init__(self, broker: Any, name: str) -> None:
        self.broker = broker
        self.name = name
        self.opened: list[pika.BlockingConnection] = []
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        broker.api("PUT", f"/api/vhosts/{name}", {})
        broker.api("PUT", f"/api/users/{name}", {"password": "secret", "tags": ""})
        broker.api("PUT", f"/api/permissions/{name}/{name}", everything)

    def ctl(self, *arguments: str) -> str:
        done = self.broker.run_ctl("-q", *arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return str(done.stdout)

    def connect(self) -> pika.BlockingConnection:
        credentials = pika.PlainCredentials(self.name, "secret")
        self.opened.append(pika.BlockingConnection(self.broker.pika(virtual_host=self.name, credentials=credentials)))
        return self.opened[-1]

    def expect_refusal(self, text: str) -> None:
        with pytest.raises(pika.exceptions.ProbableAccessDeniedError) as caught:
            self.connect()
        assert text in str(caught.value)

    def limit_vhost(self, **limits: int) -> None:
        definition = {name.replace("_", "-"): limit for name, limit in limits.items()}
        self.ctl("set_vhost_limits", "-p", self.name, json.dumps(definition))

    def limit_user(self, **limits: int) -> None:
        definition = {name.replace("_", "-"): limit for name, limit in limits.items()}
        self.ctl("set_user_limits", self.name, json.dumps(definition))

    def end(self) -> None:
        for connection in self.opened:
            if connection.is_open:
                connection.close()
        self.broker.api("DELETE", f"/api/users/{self.name}")
        self.broker.api("DELETE", f"/api/vhosts/{self.name}")


@pytest.fixture
def vhost(broker: Any, unique: Unique) -> Iterator[LimitedVhost]:
    vhost = LimitedVhost(broker, unique("limits"))
    yield vhost
    vhost.end()


def test_max_connections_of_a_vhost_is_enforced(vhost: LimitedVhost) -> None:
    vhost.limit_vhost(max_connections=1)
    connection = vhost.connect()
    vhost.expect_refusal(
        f"access to vhost '{vhost.name}' refused for user '{vhost.name}': connection limit (1) is reached"
    )
    vhost.limit_vhost(max_connections=0)
    connection.close()
    vhost.expect_refusal("connection limit (0) is reached")
    vhost.limit_vhost(max_connections=-1)
    vhost.connect()
    vhost.connect()


def test_max_queues_of_a_vhost_is_enforced(vhost: LimitedVhost) -> None:
    vhost.limit_vhost(max_queues=2)
    connection = vhost.connect()
    channel = connection.channel()
    channel.queue_declare("one", durable=True)
    channel.queue_declare("two", exclusive=True)
    channel.queue_declare("one", durable=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        channel.queue_declare("three")
    assert caught.value.reply_code == 406
    assert caught.value.reply_text == (
        f"PRECONDITION_FAILED - cannot declare queue 'three': queue limit in vhost '{vhost.name}' (2) is reached"
    )
    vhost.ctl("clear_vhost_limits", "-p", vhost.name)
    connection.channel().queue_declare("three")
    assert vhost.ctl("list_vhost_limits", "-p", vhost.name) == "\n"


def test_max_connections_of_a_user_is_enforced(vhost: LimitedVhost) -> None:
    vhost.limit_user(max_connections=1)
    vhost.connect()
    vhost.expect_refusal(f"connection refused for user '{vhost.name}': user connection limit (1) is reached")
    assert json.loads(vhost.ctl("list_user_limits", "--user", vhost.name)) == {"max-connections": 1}
    vhost.ctl("clear_user_limits", vhost.name, "max-connections")
    vhost.connect()


def test_max_channels_of_a_user_is_enforced(vhost: LimitedVhost) -> None:
    vhost.limit_user(max_channels=2)
    first, second = vhost.connect(), vhost.connect()
    first.channel()
    second.channel()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        second.channel()
    assert caught.value.reply_code == 530
    assert caught.value.reply_text == (
        f"NOT_ALLOWED - number of channels opened for user '{vhost.name}' has reached the maximum allowed user limit "
        "of (2)"
    )
    vhost.ctl("clear_user_limits", vhost.name, "all")
    for _ in range(5):
        first.channel()


SET = "rabbit_alarm:set_alarm({{{{resource_limit, {}, node()}}, []}})."
CLEAR = "rabbit_alarm:clear_alarm({{resource_limit, {}, node()}})."


@pytest.mark.parametrize("how", ["eval memory", "eval disk", "disk limit"])
def test_alarm_set_by_hand_blocks_publishers(broker: Any, unique: Unique, eventually: Any, how: str) -> None:
    if broker.process is None and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("an alarm would stop the other workers' publishers")
    kind = how.rpartition(" ")[2] if how.startswith("eval") else "disk"
    begin, end = ("eval", SET.format(kind)), ("eval", CLEAR.format(kind))
    if how == "disk limit":
        begin, end = ("set_disk_free_limit", "900000000GB"), ("set_disk_free_limit", "50MB")
    notifications: list[str] = []
    with pika.BlockingConnection(broker.pika(blocked_connection_timeout=60)) as connection:
        connection.add_on_connection_blocked_callback(lambda _c, frame: notifications.append(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda _c, _frame: notifications.append("unblocked"))
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        assert broker.run_ctl(*begin).returncode == 0
        try:
            channel.basic_publish("", queue, b"held")
            eventually(lambda: connection.process_data_events(0.05) or notifications)
            assert notifications == [f"low on {kind}"]
        finally:
            assert broker.run_ctl(*end).returncode == 0
        eventually(lambda: connection.process_data_events(0.05) or notifications[1:])
        assert notifications == [f"low on {kind}", "unblocked"]
        assert channel.basic_get(queue, auto_ack=True)[2] == b"held"
