"""pika's BlockingConnection: streams."""

from common import receive, run, send, show


def read(channel, stream, arguments):
    channel.queue_declare(stream, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        send(channel, stream, b"%d" % n, headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    channel.basic_qos(prefetch_count=10)
    show(receive(channel, stream, 5, auto_ack=False, arguments=arguments))


def stream_offset(channel):
    read(channel, "stream", {"x-stream-offset": 5})


def stream_filter(channel):
    read(channel, "filtered", {"x-stream-offset": "first", "x-stream-filter": "odd"})


run(globals())
