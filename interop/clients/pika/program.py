"""pika's BlockingConnection: the scenarios of ../README.md."""

import os
import ssl
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal

import pika
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker, UnroutableError

NOT_OFFERED = {
    "confirm-batch": "BlockingChannel waits for the confirm of each message",
    "float-argument": "pika does not send floats",
}
HEADERS = {
    "text": "grüße",
    "yes": True,
    "int": -5,
    "long": 1 << 40,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "bytes": b"\x00\xff",
    "array": [1, "two", {"three": 3}],
    "table": {"a": {"b": "c"}},
}
CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}


def connect(**changes):
    parameters = pika.URLParameters(os.environ["AMQP_URL"])
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
        parameters.ssl_options = pika.SSLOptions(context, "localhost")
    for name, value in changes.items():
        setattr(parameters, name, value)
    return pika.BlockingConnection(parameters)


def send(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def receive(channel, queue, count, auto_ack=True, arguments=None):
    got = []
    for message in channel.consume(queue, auto_ack=auto_ack, arguments=arguments):
        got.append(message)
        if len(got) == count:
            break
    if auto_ack:
        channel.cancel()
    return got


def bodies_of(messages):
    return [body for _method, _properties, body in messages]


def refused(code, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except AMQPError as error:
        assert str(code) in str(error) and text in str(error), error
    else:
        raise AssertionError("not refused")


def connects(channel):
    channel.queue_declare("hello")
    send(channel, "hello", b"Hello World!")
    assert bodies_of(receive(channel, "hello", 1)) == [b"Hello World!"]
    channel.connection.close()


def bad_password():
    refused(403, "ACCESS_REFUSED", connect)


def bad_vhost():
    refused(530, "NOT_ALLOWED", connect)


def heartbeat():
    connection = connect(heartbeat=1)
    connection.sleep(4)
    connects(connection.channel())


def declare(channel):
    channel.queue_declare("declared", durable=True)
    channel.exchange_declare("declared", "topic", durable=True)
    channel.queue_bind("declared", "declared", "#")
    channel.basic_publish("declared", "key", b"1")
    channel.queue_declare("declared", passive=True)
    channel.exchange_declare("declared", passive=True)
    assert channel.queue_purge("declared").method.message_count == 1
    channel.queue_unbind("declared", "declared", "#")
    channel.exchange_delete("declared")
    channel.queue_delete("declared")


def missing(channel):
    refused(404, "NOT_FOUND - no queue 'missing'", channel.queue_declare, "missing", passive=True)
    connects(channel.connection.channel())


def inequivalent(channel):
    channel.queue_declare("inequivalent", durable=True)
    refused(406, "inequivalent arg 'durable'", channel.queue_declare, "inequivalent", durable=False)


def work_queue(channel):
    channel.queue_declare("tasks", durable=True)
    done = {"a": [], "b": []}

    def worker(name):
        def on_message(channel, method, _properties, body):
            done[name].append(body)
            channel.basic_ack(method.delivery_tag)

        return on_message

    channel.basic_qos(prefetch_count=1)
    for name in done:
        channel.basic_consume("tasks", worker(name))
    send(channel, "tasks", *(b"%d" % n for n in range(10)), delivery_mode=2)
    while sum(map(len, done.values())) < 10:
        channel.connection.process_data_events(1)
    assert all(done.values()) and sorted(done["a"] + done["b"]) == [b"%d" % n for n in range(10)], done


def patterns(channel, exchange, kind, bindings, published, expected):
    channel.exchange_declare(exchange, kind)
    queue = channel.queue_declare("", exclusive=True).method.queue
    for key in bindings:
        channel.queue_bind(queue, exchange, key)
    for key in published:
        channel.basic_publish(exchange, key, key)
    assert [m.routing_key for m, _p, _b in receive(channel, queue, len(expected))] == expected


def publish_subscribe(channel):
    channel.exchange_declare("logs", "fanout")
    queues = [channel.queue_declare("", exclusive=True).method.queue for _subscriber in range(2)]
    for queue in queues:
        channel.queue_bind(queue, "logs")
    channel.basic_publish("logs", "", b"log")
    assert [bodies_of(receive(channel, queue, 1)) for queue in queues] == [[b"log"], [b"log"]]


def routing(channel):
    patterns(channel, "direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], ["warning", "error"])


def topics(channel):
    keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"]
    patterns(channel, "topic_logs", "topic", ["*.critical", "kern.#"], keys, [keys[0], keys[2], keys[3]])


def rpc(channel, callback=None):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def on_request(channel, _method, properties, body):
        result = str(fibonacci(int(body))).encode()
        send(channel, properties.reply_to, result, correlation_id=properties.correlation_id)

    replies = []
    channel.queue_declare("rpc_queue")
    channel.basic_consume("rpc_queue", on_request, auto_ack=True)
    callback = callback or channel.queue_declare("", exclusive=True).method.queue
    channel.basic_consume(callback, lambda _c, _m, p, body: replies.append((p.correlation_id, body)), auto_ack=True)
    send(channel, "rpc_queue", b"15", reply_to=callback, correlation_id="1")
    while not replies:
        channel.connection.process_data_events(1)
    assert replies == [("1", b"610")], replies


def direct_reply_to(channel):
    rpc(channel, "amq.rabbitmq.reply-to")


def confirm(channel):
    channel.queue_declare("confirmed", durable=True)
    channel.confirm_delivery()
    send(channel, "confirmed", b"safe", delivery_mode=2)  # raises NackError unless the broker confirms


def mandatory(channel):
    channel.confirm_delivery()
    try:
        channel.basic_publish("", "nowhere", b"lost", mandatory=True)
    except UnroutableError as error:
        assert error.messages[0].method.reply_code == 312, error
    else:
        raise AssertionError("not returned")


def tx(channel):
    channel.queue_declare("tx")
    channel.tx_select()
    send(channel, "tx", b"no")
    channel.tx_rollback()
    send(channel, "tx", b"yes")
    channel.tx_commit()
    assert bodies_of(receive(channel, "tx", 1)) == [b"yes"]


def headers(channel):
    channel.queue_declare("headers")
    send(channel, "headers", b"", headers=HEADERS)
    got = receive(channel, "headers", 1)[0][1].headers
    assert got == HEADERS, got


def bodies(channel):
    channel.queue_declare("bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(channel, "bodies", b"x" * size)
        assert bodies_of(receive(channel, "bodies", 1)) == [b"x" * size]


def channels(channel):
    opened = [channel.connection.channel() for _ in range(100)]
    channel.queue_declare("channels")
    for each in opened:
        send(each, "channels", b"x")
    assert len(receive(channel, "channels", 100)) == 100


def prefetch(channel):
    channel.queue_declare("prefetch")
    send(channel, "prefetch", *(b"%d" % n for n in range(10)))
    channel.basic_qos(prefetch_count=3)
    got = receive(channel, "prefetch", 3, auto_ack=False)
    assert channel.queue_declare("prefetch", passive=True).method.message_count == 7
    channel.basic_ack(got[-1][0].delivery_tag, multiple=True)
    assert bodies_of(receive(channel, "prefetch", 3, auto_ack=False)) == [b"3", b"4", b"5"]


def requeue(channel):
    channel.queue_declare("requeue")
    send(channel, "requeue", b"1", b"2", b"3")
    got = receive(channel, "requeue", 3, auto_ack=False)
    channel.cancel()  # returns to the queue what was not acked
    channel.basic_nack(got[-1][0].delivery_tag, multiple=True, requeue=True)
    got = [channel.basic_get("requeue") for _ in range(3)]
    assert [(m.redelivered, body) for m, _p, body in got] == [(True, b"1"), (True, b"2"), (True, b"3")], got
    channel.basic_reject(got[0][0].delivery_tag, requeue=False)
    channel.basic_ack(got[2][0].delivery_tag, multiple=True)
    assert channel.queue_purge("requeue").method.message_count == 0


def cancel(channel):
    channel.queue_declare("cancel")
    tag = channel.basic_consume("cancel", lambda *_: sys.exit("delivered after the cancel"), auto_ack=True)
    channel.basic_cancel(tag)
    send(channel, "cancel", b"stays")
    assert channel.queue_purge("cancel").method.message_count == 1


def broker_cancel(channel):
    told = []
    channel.queue_declare("cancelled")
    channel.basic_consume("cancelled", lambda *_: None, consumer_tag="reader")
    channel.add_on_cancel_callback(lambda frame: told.append(frame.method.consumer_tag))
    channel.connection.channel().queue_delete("cancelled")
    while not told:
        channel.connection.process_data_events(1)
    assert told == ["reader"]


def blocked(channel):
    told = []
    channel.connection.add_on_connection_blocked_callback(lambda _c, frame: told.append(frame.method.reason))
    channel.connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    send(channel, "nowhere", b"held")
    while not told:
        channel.connection.process_data_events(1)
    print("ready", flush=True)  # the runner ends the alarm
    while len(told) < 2:
        channel.connection.process_data_events(1)
    assert told == ["low on memory", "unblocked"], told


def dead_letter(channel):
    channel.queue_declare("dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("rejecting", arguments=to_dead)
    send(channel, "rejecting", b"bad")
    method, _properties, _body = receive(channel, "rejecting", 1, auto_ack=False)[0]
    channel.basic_reject(method.delivery_tag, requeue=False)
    channel.cancel()
    died = receive(channel, "dead", 1)[0][1].headers["x-death"][0]
    assert (died["queue"], died["reason"], died["count"]) == ("rejecting", "rejected", 1), died


def message_ttl(channel):
    channel.queue_declare("expired")
    channel.queue_declare("ttl", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"})
    send(channel, "ttl", b"short", expiration="50")
    assert receive(channel, "expired", 1)[0][1].headers["x-death"][0]["reason"] == "expired"


def queue_ttl(channel):
    channel.queue_declare("leased", arguments={"x-expires": 100})
    try:
        while True:  # a bind does not renew the lease
            channel.queue_bind("leased", "amq.fanout")
            time.sleep(0.05)
    except ChannelClosedByBroker as error:
        assert error.reply_code == 404, error


def priority(channel):
    channel.queue_declare("priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        send(channel, "priority", str(level), priority=level)
    assert bodies_of(receive(channel, "priority", 3)) == [b"5", b"3", b"1"]


def delayed(channel):
    channel.exchange_declare("delayed", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    channel.queue_declare("delayed")
    channel.queue_bind("delayed", "delayed")
    for body, delay in ((b"late", 1000), (b"soon", 1)):
        channel.basic_publish("delayed", "", body, pika.BasicProperties(headers={"x-delay": delay}))
    assert bodies_of(receive(channel, "delayed", 2)) == [b"soon", b"late"]


def stream(channel, name, arguments, count):
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        value = {"x-stream-filter-value": "odd" if n % 2 else "even"}
        send(channel, name, b"%d" % n, headers=value)
    channel.basic_qos(prefetch_count=10)
    return bodies_of(receive(channel, name, count, auto_ack=False, arguments=arguments))


def stream_offset(channel):
    assert stream(channel, "stream", {"x-stream-offset": 5}, 5) == [b"5", b"6", b"7", b"8", b"9"]


def stream_filter(channel):
    wanted = {"x-stream-offset": "first", "x-stream-filter": "odd"}
    assert stream(channel, "filtered", wanted, 5) == [b"1", b"3", b"5", b"7", b"9"]


def policy(channel):
    channel.queue_declare("limited")
    send(channel, "limited", b"1", b"2", b"3", b"4")
    assert channel.queue_purge("limited").method.message_count == 2


def reconnect(channel):
    channel.queue_declare("kept", durable=True)
    channel.confirm_delivery()
    send(channel, "kept", b"kept", delivery_mode=2)
    receive(channel, "kept", 1, auto_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        while True:
            channel.connection.process_data_events(1)
    except AMQPConnectionError:
        connection = connect(connection_attempts=600, retry_delay=0.1)
    assert bodies_of(receive(connection.channel(), "kept", 1)) == [b"kept"]


def write(channel):
    channel.queue_declare("crossing")
    send(channel, "crossing", bytes(range(256)), content_type="text/plain", message_id="7", headers=CROSSING)
    channel.connection.close()


def read(channel):
    _method, properties, body = receive(channel, "crossing", 1)[0]
    assert (body, properties.headers) == (bytes(range(256)), CROSSING), properties
    assert (properties.content_type, properties.message_id) == ("text/plain", "7"), properties


def main(name):
    if name == "version":
        print(pika.__version__)
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        if name in ("bad-password", "bad-vhost", "heartbeat"):
            globals()[name.replace("-", "_")]()
        elif name in ("connect", "tls", "client-certificate"):
            connects(connect().channel())
        else:
            globals()[name.replace("-", "_")](connect().channel())
        print("pass")


main(*sys.argv[1:])
