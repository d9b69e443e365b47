"""kombu: connections."""

import contextlib

import common


def connect():
    with common.connect() as connection:
        common.hello(connection)


bad_password = bad_vhost = tls = client_certificate = connect


def heartbeat():
    connection = common.connect(heartbeat=1)
    for _ in range(40):
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        connection.heartbeat_check()
    common.hello(connection)


def channels():
    connection = common.connect()
    queue = common.declare_queue(connection.default_channel, "channels")
    for channel in [connection.channel() for _ in range(100)]:
        common.send(queue(channel), "x")
    print(len(common.receive(queue, 100)))


def blocked():
    print("not offered: kombu has no callback for connection.blocked")


def reconnect():
    connection = common.connect()
    queue = common.declare_queue(connection.default_channel, "kept", durable=True)
    common.send(queue, "kept")
    common.receive(queue, no_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        while True:
            connection.drain_events()
    except connection.connection_errors:
        connection.ensure_connection(interval_start=0.1, interval_step=0)
    common.show(common.receive(queue(connection.channel())))


common.run(globals(), connected=False)
