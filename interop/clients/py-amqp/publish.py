"""py-amqp: confirms, returns, transactions, headers and bodies."""

from datetime import datetime
from decimal import Decimal

from amqp import Message
from common import declare_queue, receive, run, send, show

CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}
HEADERS = CROSSING | {
    "long": 1 << 40,
    "double": 1.5,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001  # UTC
    "deep": [{"a": {"b": ["c"]}}],
}


def confirm(channel):
    declare_queue(channel, "confirmed", durable=True)
    channel.basic_publish_confirm(Message("safe", delivery_mode=2), routing_key="confirmed")
    print(channel.queue_purge("confirmed"))


def confirm_batch(channel):
    confirmed = 0

    def on_ack(delivery_tag, multiple):
        nonlocal confirmed
        confirmed = delivery_tag if multiple else confirmed + 1

    declare_queue(channel, "batch", durable=True)
    channel.confirm_select()
    channel.events["basic_ack"].add(on_ack)
    send(channel, "batch", *map(str, range(1000)), delivery_mode=2)
    while confirmed < 1000:
        channel.connection.drain_events()
    print(channel.queue_purge("batch"))


def mandatory(channel):
    returned = []
    channel.events["basic_return"].add(lambda error, *_message: returned.append(error))
    channel.basic_publish_confirm(Message("lost"), routing_key="nowhere", mandatory=True)
    print(returned[0].reply_code)


def tx(channel):
    declare_queue(channel, "tx")
    channel.tx_select()
    send(channel, "tx", "no")
    channel.tx_rollback()
    send(channel, "tx", "yes")
    channel.tx_commit()
    show(receive(channel, "tx"))


def headers(channel):
    declare_queue(channel, "headers")
    send(channel, "headers", "", application_headers=HEADERS)
    [message] = receive(channel, "headers")
    print("pass" if message.headers == HEADERS else message.headers)


def bodies(channel):
    declare_queue(channel, "bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(channel, "bodies", "x" * size)
        [message] = receive(channel, "bodies")
        print(message.body.count("x"))


def write(channel):
    declare_queue(channel, "crossing")
    properties = {"content_type": "text/plain", "message_id": "7", "application_headers": CROSSING}
    send(channel, "crossing", bytes(range(256)), **properties)
    channel.connection.close()
    print("pass")


def read(channel):
    [message] = receive(channel, "crossing")
    assert (message.body, message.headers) == (bytes(range(256)), CROSSING), message.properties
    assert (message.content_type, message.properties["message_id"]) == ("text/plain", "7"), message.properties
    print("pass")


run(globals())
