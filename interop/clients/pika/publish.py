"""pika's BlockingConnection: confirms, returns, transactions, headers and bodies."""

from datetime import UTC, datetime
from decimal import Decimal

from common import receive, run, send, show
from pika.exceptions import UnroutableError

CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}
HEADERS = CROSSING | {
    "long": 1 << 40,
    "nothing": None,
    "decimal": Decimal("-3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "bytes": b"\x00\xff",
    "deep": [{"a": {"b": ["c"]}}],
}


def confirm(channel):
    channel.queue_declare("confirmed", durable=True)
    channel.confirm_delivery()
    send(channel, "confirmed", b"safe", delivery_mode=2)  # raises NackError unless the broker confirms
    print(channel.queue_purge("confirmed").method.message_count)


def confirm_batch(_channel):
    print("not offered: BlockingChannel waits for the confirm of each message")


def mandatory(channel):
    channel.confirm_delivery()
    try:
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)
    except UnroutableError as error:
        print(error.messages[0].method.reply_code)


def tx(channel):
    channel.queue_declare("tx")
    channel.tx_select()
    send(channel, "tx", b"no")
    channel.tx_rollback()
    send(channel, "tx", b"yes")
    channel.tx_commit()
    show(receive(channel, "tx"))


def headers(channel):
    channel.queue_declare("headers")
    send(channel, "headers", b"", headers=HEADERS)
    [(_method, properties, _body)] = receive(channel, "headers")
    print("pass" if properties.headers == HEADERS else properties.headers)


def bodies(channel):
    channel.queue_declare("bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(channel, "bodies", b"x" * size)
        [(_method, _properties, body)] = receive(channel, "bodies")
        print(body.count(b"x"))


def write(channel):
    channel.queue_declare("crossing")
    send(channel, "crossing", bytes(range(256)), content_type="text/plain", message_id="7", headers=CROSSING)
    channel.connection.close()
    print("pass")


def read(channel):
    [(_method, properties, body)] = receive(channel, "crossing")
    assert (body, properties.headers) == (bytes(range(256)), CROSSING), properties
    assert (properties.content_type, properties.message_id) == ("text/plain", "7"), properties
    print("pass")


run(globals())
