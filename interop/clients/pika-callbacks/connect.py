"""pika's connections with callbacks: connections."""

import common
from common import open_channel
from loop import LOOP, Callback
from pika.exceptions import AMQPConnectionError, AMQPError


async def connect():
    await common.hello(await open_channel(await common.connect()))


bad_password = bad_vhost = tls = client_certificate = connect


async def heartbeat():
    connection = await common.connect(heartbeat=1)
    await LOOP.sleep(4)
    await common.hello(await open_channel(connection))


async def channels():
    connection = await common.connect()
    opened = [await open_channel(connection) for _ in range(100)]
    await common.call(opened[0].queue_declare, "channels")
    for channel in opened:
        common.send(channel, "channels", b"x")
    print(len(await common.receive(opened[0], "channels", 100)))


async def blocked():
    connection = await common.connect()
    channel = await open_channel(connection)

    def start(done):
        connection.add_on_connection_blocked_callback(lambda _connection, frame: done(frame.method.reason))
        common.send(channel, "nowhere", b"held")

    print(await Callback(start))
    print("ready", flush=True)  # the runner ends the alarm
    await Callback(lambda done: connection.add_on_connection_unblocked_callback(lambda *_: done()))
    print("unblocked")


async def reconnect():
    channel = await open_channel(await common.connect())
    await common.publish_confirmed(channel, "kept", b"kept")
    await common.receive(channel, "kept", auto_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        await Callback(lambda _done: None)
    except AMQPError:
        connection = None
    while connection is None:
        try:
            connection = await common.connect()
        except AMQPConnectionError:
            await LOOP.sleep(0.1)
    common.show(await common.receive(await open_channel(connection), "kept"))


common.run(globals(), with_channel=False)
