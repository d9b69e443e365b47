"""AMQPStorm: connections."""

import contextlib
import time

import common
from amqpstorm import AMQPError


def connect():
    with common.connect() as connection:
        common.hello(connection.channel())


bad_password = bad_vhost = tls = client_certificate = connect


def heartbeat():
    with common.connect(heartbeat=1) as connection:
        time.sleep(4)
        common.hello(connection.channel())


def channels():
    with common.connect() as connection:
        opened = [connection.channel() for _ in range(100)]
        opened[0].queue.declare("channels")
        for channel in opened:
            common.send(channel, "channels", "x")
        print(len(common.receive(opened[0], "channels", 100)))


def blocked():
    with common.connect() as connection:
        connection.channel().basic.publish("held", "nowhere")
        while not connection.is_blocked:
            time.sleep(0.01)
        print("ready", flush=True)  # the runner ends the alarm
        while connection.is_blocked:
            time.sleep(0.01)
    print("pass")


def reconnect():
    channel = common.connect(heartbeat=2).channel()  # 3.1.4 notices a lost connection by its heartbeat only
    channel.queue.declare("kept", durable=True)
    channel.confirm_deliveries()
    common.send(channel, "kept", "kept", delivery_mode=2)
    common.receive(channel, "kept", no_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    with contextlib.suppress(AMQPError):
        common.show(channel.build_inbound_messages())
    connection = None
    while connection is None:
        try:
            connection = common.connect()
        except AMQPError:
            time.sleep(0.1)
    with connection:
        common.show(common.receive(connection.channel(), "kept"))


common.run(globals(), connected=False)
