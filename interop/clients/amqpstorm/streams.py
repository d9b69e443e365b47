"""AMQPStorm: streams."""

from common import receive, run, send, show


def read(channel, stream, arguments):
    channel.queue.declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        send(channel, stream, str(n), headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    channel.basic.qos(10)
    show(receive(channel, stream, 5, no_ack=False, arguments=arguments))


def stream_offset(_connection, channel):
    read(channel, "stream", {"x-stream-offset": 5})


def stream_filter(_connection, channel):
    read(channel, "filtered", {"x-stream-offset": "first", "x-stream-filter": "odd"})


run(globals())
