"""kombu: confirms, returns, headers and bodies."""

from datetime import datetime
from decimal import Decimal

from common import declare_queue, receive, run, send
from kombu import Producer

CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}
HEADERS = CROSSING | {
    "long": 1 << 40,
    "double": 1.5,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  # UTC
    "deep": [{"a": {"b": ["c"]}}],
}


def confirm(connection):
    queue = declare_queue(connection.default_channel, "confirmed", durable=True)
    send(queue, "safe")  # confirm_publish: returns when it is confirmed
    print(queue.purge())


def confirm_batch(_connection):
    print("not offered: publish waits for the confirm of each message")


def mandatory(connection):
    producer = Producer(connection.default_channel, on_return=lambda error, *_message: print(error.reply_code))
    producer.publish("lost", routing_key="nowhere", mandatory=True)


def tx(_connection):
    print("not offered: kombu has no transactions")


def headers(connection):
    queue = declare_queue(connection.default_channel, "headers")
    send(queue, "", headers=HEADERS)
    [message] = receive(queue)
    print("pass" if message.headers == HEADERS else message.headers)


def bodies(connection):
    queue = declare_queue(connection.default_channel, "bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(queue, "x" * size)
        [message] = receive(queue)
        print(message.payload.count("x"))


def write(connection):
    queue = declare_queue(connection.default_channel, "crossing")
    properties = {"content_type": "text/plain", "content_encoding": "binary", "message_id": "7"}
    send(queue, bytes(range(256)), headers=CROSSING, **properties)
    print("pass")


def read(connection):
    [message] = receive(declare_queue(connection.default_channel, "crossing"))
    assert (bytes(message.body), message.headers) == (bytes(range(256)), CROSSING), message.headers
    assert (message.content_type, message.properties["message_id"]) == ("text/plain", "7"), message.properties
    print("pass")


run(globals())
