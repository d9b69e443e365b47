"""pika's BlockingConnection: connections."""

import common
from pika.exceptions import AMQPConnectionError


def connect():
    connection = common.connect()
    common.hello(connection.channel())
    connection.close()


bad_password = bad_vhost = tls = client_certificate = connect


def heartbeat():
    connection = common.connect(heartbeat=1)
    connection.sleep(4)
    common.hello(connection.channel())


def channels():
    connection = common.connect()
    opened = [connection.channel() for _ in range(100)]
    opened[0].queue_declare("channels")
    for channel in opened:
        common.send(channel, "channels", b"x")
    print(len(common.receive(opened[0], "channels", 100)))


def blocked():
    connection = common.connect()
    told = []
    connection.add_on_connection_blocked_callback(lambda _connection, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    common.send(connection.channel(), "nowhere", b"held")
    while not told:
        connection.process_data_events(1)
    print("ready", flush=True)  # the runner ends the alarm
    while len(told) < 2:
        connection.process_data_events(1)
    print(*told, sep="\n")


def reconnect():
    connection = common.connect()
    channel = connection.channel()
    channel.queue_declare("kept", durable=True)
    channel.confirm_delivery()
    common.send(channel, "kept", b"kept", delivery_mode=2)
    common.receive(channel, "kept", auto_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        while True:
            connection.process_data_events(1)
    except AMQPConnectionError:
        connection = common.connect(connection_attempts=600, retry_delay=0.1)
    common.show(common.receive(connection.channel(), "kept"))


common.run(globals(), with_channel=False)
