"""kombu: streams."""

from common import declare_queue, receive, run, send, show


def read(connection, stream, arguments):
    options = {"queue_arguments": {"x-queue-type": "stream"}, "consumer_arguments": arguments}
    queue = declare_queue(connection.default_channel, stream, durable=True, **options)
    for n in range(10):
        send(queue, str(n), headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    show(receive(queue, 5, no_ack=False, prefetch=10))


def stream_offset(connection):
    read(connection, "stream", {"x-stream-offset": 5})


def stream_filter(connection):
    read(connection, "filtered", {"x-stream-offset": "first", "x-stream-filter": "odd"})


run(globals())
