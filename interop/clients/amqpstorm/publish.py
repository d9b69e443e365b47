"""AMQPStorm: confirms, returns, transactions, headers and bodies."""

from datetime import UTC, datetime
from decimal import Decimal

from amqpstorm import AMQPMessageError
from common import receive, run, send, show

CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}
HEADERS = CROSSING | {
    "long": 1 << 40,
    "double": 1.5,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "deep": [{"a": {"b": ["c"]}}],
}


def confirm(_connection, channel):
    channel.queue.declare("confirmed", durable=True)
    channel.confirm_deliveries()
    send(channel, "confirmed", "safe", delivery_mode=2)  # returns when it is confirmed
    print(channel.queue.purge("confirmed")["message_count"])


def confirm_batch(_connection, _channel):
    print("not offered: publish waits for the confirm of each message")


def mandatory(_connection, channel):
    channel.confirm_deliveries()
    try:
        channel.basic.publish("lost", "nowhere", mandatory=True)
    except AMQPMessageError as error:
        print(error.error_code)


def tx(_connection, channel):
    channel.queue.declare("tx")
    channel.tx.select()
    send(channel, "tx", "no")
    channel.tx.rollback()
    send(channel, "tx", "yes")
    channel.tx.commit()
    show(receive(channel, "tx"))


def headers(_connection, channel):
    channel.queue.declare("headers")
    send(channel, "headers", "", headers=HEADERS)
    [message] = receive(channel, "headers")
    got = message.properties["headers"]
    print("pass" if got == HEADERS else got)


def bodies(_connection, channel):
    channel.queue.declare("bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(channel, "bodies", "x" * size)
        [message] = receive(channel, "bodies")
        print(len(message.body))


def write(_connection, channel):
    channel.queue.declare("crossing")
    send(channel, "crossing", bytes(range(256)), content_type="text/plain", message_id="7", headers=CROSSING)
    print("pass")


def read(_connection, channel):
    [message] = receive(channel, "crossing")
    assert (message._body, message.properties["headers"]) == (bytes(range(256)), CROSSING), message.properties
    assert (message.properties["content_type"], message.message_id) == ("text/plain", "7"), message.properties
    print("pass")


run(globals())
