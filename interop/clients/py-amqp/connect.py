"""py-amqp: connections."""

import contextlib
import time

import common
from amqp import Message


def connect():
    connection = common.connect()
    common.hello(connection.channel())
    connection.close()


bad_password = bad_vhost = tls = client_certificate = connect


def heartbeat():
    connection = common.connect(heartbeat=1)
    for _ in range(40):
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        connection.heartbeat_tick()
    common.hello(connection.channel())


def channels():
    connection = common.connect()
    opened = [connection.channel() for _ in range(100)]
    common.declare_queue(opened[0], "channels")
    for channel in opened:
        common.send(channel, "channels", "x")
    print(len(common.receive(opened[0], "channels", 100)))


def blocked():
    told = []
    connection = common.connect(on_blocked=told.append, on_unblocked=lambda: told.append("unblocked"))
    connection.channel().basic_publish(Message("held"), routing_key="nowhere")
    while not told:
        connection.drain_events()
    print("ready", flush=True)  # the runner ends the alarm
    while len(told) < 2:
        connection.drain_events()
    print("pass" if told[1] == "unblocked" else told)  # py-amqp does not show the broker's reason


def reconnect():
    connection = common.connect()
    channel = connection.channel()
    common.declare_queue(channel, "kept", durable=True)
    channel.basic_publish_confirm(Message("kept", delivery_mode=2), routing_key="kept")
    common.receive(channel, "kept", no_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        while True:
            connection.drain_events()
    except connection.connection_errors:
        connection = None
    while connection is None:
        try:
            connection = common.connect()
        except OSError:
            time.sleep(0.1)
    common.show(common.receive(connection.channel(), "kept"))


common.run(globals(), with_channel=False)
