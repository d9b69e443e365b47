"""Connections and channels with pika's BlockingConnection: handshake, lifetime, closing, alarms."""

from __future__ import annotations

import os
import threading
from typing import Any

import pika
import pytest
from conversation import Eventually, Received, Unique, channel_error, connection_error, get, send, serve
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

# -- connection


def test_server_properties_and_capabilities(connection: pika.BlockingConnection) -> None:
    properties = connection._impl.server_properties
    for name in ("product", "version", "platform", "copyright", "information", "cluster_name"):
        assert isinstance(properties[name], str), name
    assert properties["product"] in ("amqpd", "RabbitMQ")
    capabilities = (
        "publisher_confirms exchange_exchange_bindings basic.nack consumer_cancel_notify connection.blocked "
        "consumer_priorities authentication_failure_close per_consumer_qos direct_reply_to"
    )
    assert {name: properties["capabilities"].get(name) for name in capabilities.split()} == dict.fromkeys(
        capabilities.split(), True
    )


def test_default_tune_values(broker: Any) -> None:
    with pika.BlockingConnection(broker.pika()) as connection:
        params = connection._impl.params
        assert (params.channel_max, params.frame_max, params.heartbeat) == (2047, 131072, 60)


def test_tune_accepts_the_clients_values(broker: Any) -> None:
    with pika.BlockingConnection(broker.pika(channel_max=10, frame_max=8192, heartbeat=7)) as connection:
        params = connection._impl.params
        assert (params.channel_max, params.frame_max, params.heartbeat) == (10, 8192, 7)


def test_wrong_password_is_refused(broker: Any) -> None:
    with pytest.raises(ProbableAuthenticationError) as caught:
        pika.BlockingConnection(broker.pika(credentials=pika.PlainCredentials("guest", "wrong")))
    assert "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN" in repr(caught.value)


def test_unknown_vhost_is_refused(broker: Any) -> None:
    with pytest.raises((pika.exceptions.ConnectionClosedByBroker, ProbableAccessDeniedError)) as caught:
        pika.BlockingConnection(broker.pika(virtual_host="nosuch"))
    assert "NOT_ALLOWED - vhost nosuch not found" in repr(caught.value)


def test_update_secret_keeps_the_connection(connection: pika.BlockingConnection, queue: str) -> None:
    connection.update_secret("another secret", "rotation")
    assert get(connection.channel(), queue) is None


@pytest.mark.slow
def test_heartbeats_keep_an_idle_connection(broker: Any) -> None:
    with pika.BlockingConnection(broker.pika(heartbeat=2)) as connection:
        connection.sleep(5)
        assert connection.channel().queue_declare("", exclusive=True).method.message_count == 0
        assert connection._impl._heartbeat_checker._heartbeat_frames_received >= 1


def test_heartbeat_can_be_disabled(broker: Any) -> None:
    with pika.BlockingConnection(broker.pika(heartbeat=0)) as connection:
        assert connection._impl.params.heartbeat == 0
        assert connection.channel().is_open


@pytest.mark.slow
def test_2047_channels_can_be_open(broker: Any) -> None:
    with pika.BlockingConnection(broker.pika(heartbeat=0)) as connection:
        channels = [connection.channel() for _ in range(2047)]
        queue = channels[0].queue_declare("", exclusive=True).method.queue
        for channel in channels[::97]:
            send(channel, queue, str(channel.channel_number))
            assert get(channel, queue)[2] == str(channel.channel_number)
        with pytest.raises(pika.exceptions.NoFreeChannels):
            connection.channel()
        channels[5].close()
        assert connection.channel().channel_number == channels[5].channel_number


def test_channel_above_channel_max_closes_the_connection(broker: Any) -> None:
    connection = pika.BlockingConnection(broker.pika(channel_max=3))
    for _ in range(3):
        connection.channel()
    text = "NOT_ALLOWED - number of channels opened (3) has reached the negotiated channel_max (3)"
    with connection_error(530, text):
        connection._impl._send_method(4, pika.spec.Channel.Open())  # bypasses pika's own check
        serve(connection)


def test_delivery_tags_belong_to_their_channel(connection: pika.BlockingConnection, queue: str) -> None:
    left, right = connection.channel(), connection.channel()
    send(left, queue, "one")
    method, _, _ = get(left, queue, auto_ack=False)
    with channel_error(406, "PRECONDITION_FAILED - unknown delivery tag 1"):
        right.basic_ack(method.delivery_tag)
        right.queue_declare("", exclusive=True)
    left.basic_ack(method.delivery_tag)
    assert get(left, queue) is None


def test_reopened_channel_number_starts_with_tag_1(connection: pika.BlockingConnection, queue: str) -> None:
    for _ in range(3):
        channel = connection.channel(5)
        send(channel, queue, "m")
        assert get(channel, queue, auto_ack=False)[0].delivery_tag == 1
        with channel_error(404, "NOT_FOUND - no queue 'nosuch' in vhost '/'"):
            channel.queue_declare("nosuch", passive=True)
        assert channel.is_closed
        again = connection.channel(5)
        method, _, body = get(again, queue, auto_ack=False)
        assert (body, method.redelivered, method.delivery_tag) == ("m", True, 1)
        again.basic_ack(1)
        again.close()


def test_connection_closed_by_an_operator_raises(broker: Any, unique: Unique) -> None:
    name = unique("client")
    connection = pika.BlockingConnection(broker.pika(client_properties={"connection_name": name}))
    channel = connection.channel()
    broker.close_from_outside(name, "because")
    with connection_error(320, "CONNECTION_FORCED - because"):
        serve(connection)
    assert connection.is_closed
    assert channel.is_closed


def test_publish_from_another_thread_keeps_order(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    received = Received(channel)
    channel.basic_consume(queue, received, auto_ack=True)
    publish = [lambda n=n: send(channel, queue, str(n)) for n in range(20)]
    thread = threading.Thread(target=lambda: [connection.add_callback_threadsafe(call) for call in publish])
    thread.start()
    assert received.wait(20).bodies == [str(n) for n in range(20)]
    thread.join()


# -- errors that end the connection


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (pika.spec.Basic.Qos(prefetch_size=10), 540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)"),
        (pika.spec.Basic.Recover(requeue=False), 540, "NOT_IMPLEMENTED - requeue=false"),
        (pika.spec.Channel.Flow(active=False), 540, "NOT_IMPLEMENTED - active=false"),
        (pika.spec.Channel.Open(), 504, "CHANNEL_ERROR - second 'channel.open' seen"),
        (
            pika.spec.Exchange.Declare(exchange="x", type="nosuch"),
            503,
            "COMMAND_INVALID - unknown exchange type 'nosuch'",
        ),
    ],
    ids=lambda value: getattr(value, "NAME", None),
)
def test_hard_error_closes_the_connection(broker: Any, method: Any, code: int, text: str) -> None:
    connection = pika.BlockingConnection(broker.pika())
    channel = connection.channel()
    with connection_error(code, text):
        channel._impl._send_method(method)
        serve(connection)
    assert connection.is_closed


def test_immediate_publish_closes_the_connection(broker: Any, queue: str) -> None:
    connection = pika.BlockingConnection(broker.pika())
    channel = connection.channel()
    with connection_error(540, "NOT_IMPLEMENTED - immediate=true"):
        publish = pika.spec.Basic.Publish(exchange="", routing_key=queue, immediate=True)
        channel._impl._send_method(publish, (pika.BasicProperties(), b"m"))
        serve(connection)


def test_method_on_a_closed_channel_closes_the_connection(broker: Any) -> None:
    connection = pika.BlockingConnection(broker.pika())
    with connection_error(504, "CHANNEL_ERROR - expected 'channel.open'"):
        connection._impl._send_method(7, pika.spec.Basic.Qos(prefetch_count=1))
        serve(connection)


# -- alarms


def test_memory_alarm_blocks_and_unblocks_the_connection(broker: Any, unique: Unique, eventually: Eventually) -> None:
    """A memory alarm blocks publishers and notifies them; consumers continue."""
    if broker.process is None and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("an alarm would stop the other workers' publishers")
    probe = broker.run_ctl("set_vm_memory_high_watermark", "0.4")
    if probe.returncode == 64:
        pytest.skip("the control command knows no memory watermark")
    assert probe.returncode == 0, probe.stderr
    notifications: list[str] = []
    with pika.BlockingConnection(broker.pika(blocked_connection_timeout=60)) as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        connection.add_on_connection_blocked_callback(lambda _c, frame: notifications.append(frame.method.reason))
        connection.add_on_connection_unblocked_callback(lambda _c, _frame: notifications.append("unblocked"))
        send(channel, queue, "before")
        assert get(channel, queue)[2] == "before"
        try:
            assert broker.run_ctl("set_vm_memory_high_watermark", "0.0000001").returncode == 0
            eventually(lambda: send(channel, queue, "m") or connection.process_data_events(0.05) or notifications)
            assert notifications == ["low on memory"]
        finally:
            assert broker.run_ctl("set_vm_memory_high_watermark", "0.4").returncode == 0
        eventually(lambda: connection.process_data_events(0.05) or notifications[1:])
        assert notifications == ["low on memory", "unblocked"]
        assert get(channel, queue)[2] == "m"
