"""py-amqp: streams."""

from common import declare_queue, receive, run, send, show


def read(channel, stream, arguments):
    declare_queue(channel, stream, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        send(channel, stream, str(n), application_headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    channel.basic_qos(0, 10, a_global=False)
    show(receive(channel, stream, 5, no_ack=False, arguments=arguments))


def stream_offset(channel):
    read(channel, "stream", {"x-stream-offset": 5})


def stream_filter(channel):
    read(channel, "filtered", {"x-stream-offset": "first", "x-stream-filter": "odd"})


run(globals())
