"""kombu: the scenarios of ../README.md."""

import contextlib
import os
import ssl
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal

import kombu
from kombu import Connection, Consumer, Exchange, Producer, Queue

NOT_OFFERED = {
    "tx": "kombu has no transactions",
    "confirm-batch": "publish waits for the confirm of each message",
    "blocked": "kombu has no callback for connection.blocked",
}
HEADERS = {
    "text": "grüße",
    "yes": True,
    "int": -5,
    "long": 1 << 40,
    "double": 1.5,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).replace(tzinfo=None),
    "array": [1, "two", {"three": 3}],
    "table": {"a": {"b": "c"}},
}
CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}


def connect(**options):
    if "CA_FILE" in os.environ:
        files = {"ca_certs": os.environ["CA_FILE"], "server_hostname": "localhost", "cert_reqs": ssl.CERT_REQUIRED}
        if "CERT_FILE" in os.environ:
            files |= {"certfile": os.environ["CERT_FILE"], "keyfile": os.environ["KEY_FILE"]}
        options["ssl"] = files
    url = os.environ["AMQP_URL"].replace("amqps:", "amqp:")
    connection = Connection(url, transport_options={"confirm_publish": True}, **options)
    connection.connect()
    return connection


def declare_queue(channel, name="", exchange=None, routing_key="", **options):
    queue = Queue(name, exchange, routing_key, durable=options.pop("durable", False), **options)(channel)
    queue.declare()
    return queue


def send(channel, queue, *bodies, **properties):
    producer = Producer(channel)
    for body in bodies:
        producer.publish(body, routing_key=queue, delivery_mode=2, **properties)


def receive(queue, count, no_ack=True, prefetch=0):
    got = []
    consumer = Consumer(queue.channel, [queue], on_message=got.append, no_ack=no_ack)
    consumer.qos(prefetch_count=prefetch)
    consumer.consume()
    while len(got) < count:
        queue.channel.connection.client.drain_events()
    if no_ack:
        consumer.cancel()
    return got


def texts(messages):
    return [message.payload for message in messages]


def refused(connection, code, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except (*connection.connection_errors, *connection.channel_errors) as error:
        assert error.reply_code == code and text in error.reply_text, error
    else:
        raise AssertionError("not refused")


def connects(connection):
    queue = declare_queue(connection.default_channel, "hello")
    send(queue.channel, "hello", "Hello World!")
    assert texts(receive(queue, 1)) == ["Hello World!"]


def bad_password():
    refused(Connection(), 403, "ACCESS_REFUSED", connect)


def bad_vhost():
    refused(Connection(), 530, "NOT_ALLOWED", connect)


def heartbeat():
    connection = connect(heartbeat=1)
    for _ in range(40):
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        connection.heartbeat_check()
    connects(connection)


def declare(connection):
    exchange = Exchange("declared", "topic")(connection.default_channel)
    queue = declare_queue(connection.default_channel, "declared", exchange, "#", durable=True)
    exchange.publish(exchange.Message(b"1"), routing_key="key")
    queue.queue_declare(passive=True)
    exchange.declare(passive=True)
    assert queue.purge() == 1
    queue.unbind_from(exchange, "#")
    exchange.delete()
    queue.delete()


def missing(connection):
    queue = Queue("missing")(connection.channel())
    refused(connection, 404, "NOT_FOUND - no queue 'missing'", queue.queue_declare, passive=True)
    connects(connection)


def inequivalent(connection):
    declare_queue(connection.channel(), "inequivalent", durable=True)
    refused(connection, 406, "inequivalent arg 'durable'", declare_queue, connection.channel(), "inequivalent")


def float_argument(connection):
    channel = connection.channel()
    declare_queue(channel, "float", queue_arguments={"x-max-length": 10})
    wrong = {"x-max-length": 10.0}
    refused(connection, 406, "x-max-length", declare_queue, channel, "float", queue_arguments=wrong)


def work_queue(connection):
    queue = declare_queue(connection.default_channel, "tasks", durable=True)
    done = {"a": [], "b": []}

    def worker(name):
        def on_message(body, message):
            done[name].append(body)
            message.ack()

        return on_message

    for name in done:
        Consumer(connection.channel(), [queue], callbacks=[worker(name)], prefetch_count=1).consume()
    send(connection.channel(), "tasks", *(str(n) for n in range(10)))
    while sum(map(len, done.values())) < 10:
        connection.drain_events()
    assert all(done.values()) and sorted(done["a"] + done["b"]) == [str(n) for n in range(10)], done


def publish_subscribe(connection):
    channel = connection.default_channel
    logs = Exchange("logs", "fanout", durable=False)(channel)
    queues = [declare_queue(channel, f"logs-{n}", logs, exclusive=True) for n in range(2)]
    Producer(channel, logs).publish("log")
    assert [texts(receive(queue, 1)) for queue in queues] == [["log"], ["log"]]


def patterns(connection, exchange, bindings, published, expected):
    channel = connection.default_channel
    queue = declare_queue(channel, f"{exchange.name}-queue", exchange(channel), bindings[0], exclusive=True)
    for key in bindings[1:]:
        queue.bind_to(exchange, key)
    for key in published:
        Producer(channel, exchange).publish(key, routing_key=key)
    got = [message.delivery_info["routing_key"] for message in receive(queue, len(expected))]
    assert got == expected, got


def routing(connection):
    levels = ["info", "warning", "error"]
    patterns(connection, Exchange("direct_logs", "direct", durable=False), levels[1:], levels, levels[1:])


def topics(connection):
    keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"]
    exchange = Exchange("topic_logs", "topic", durable=False)
    patterns(connection, exchange, ["*.critical", "kern.#"], keys, [keys[0], keys[2], keys[3]])


def rpc(connection, reply_queue=None):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def on_request(body, message):
        properties = message.properties
        correlation_id = properties["correlation_id"]
        Producer(channel).publish(fibonacci(body), routing_key=properties["reply_to"], correlation_id=correlation_id)

    channel = connection.default_channel
    requests = declare_queue(channel, "rpc_queue")
    Consumer(channel, [requests], callbacks=[on_request], no_ack=True).consume()
    replies = []
    callback = reply_queue or declare_queue(channel, "replies", exclusive=True)
    Consumer(channel, [callback], on_message=replies.append, no_ack=True, auto_declare=False).consume()
    Producer(channel).publish(15, routing_key="rpc_queue", reply_to=callback.name, correlation_id="1")
    while not replies:
        connection.drain_events()
    assert (replies[0].properties["correlation_id"], replies[0].payload) == ("1", 610), replies[0].payload


def direct_reply_to(connection):
    rpc(connection, Queue("amq.rabbitmq.reply-to", no_declare=True)(connection.default_channel))


def confirm(connection):
    declare_queue(connection.default_channel, "confirmed", durable=True)
    send(connection.default_channel, "confirmed", "safe")  # confirm_publish: returns when it is confirmed


def mandatory(connection):
    returned = []
    producer = Producer(
        connection.default_channel, on_return=lambda error, *_message: returned.append(error.reply_code)
    )
    producer.publish("lost", routing_key="nowhere", mandatory=True)
    assert returned == [312], returned


def headers(connection):
    queue = declare_queue(connection.default_channel, "headers")
    send(queue.channel, "headers", "", headers=HEADERS)
    got = receive(queue, 1)[0].headers
    assert got == HEADERS, got


def bodies(connection):
    queue = declare_queue(connection.default_channel, "bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(queue.channel, "bodies", b"x" * size, content_type="application/data", content_encoding="binary")
        body = receive(queue, 1)[0].body
        assert (body if isinstance(body, bytes) else body.encode()) == b"x" * size


def channels(connection):
    queue = declare_queue(connection.default_channel, "channels")
    for each in [connection.channel() for _ in range(100)]:
        send(each, "channels", "x")
    assert len(receive(queue, 100)) == 100


def prefetch(connection):
    queue = declare_queue(connection.default_channel, "prefetch")
    send(queue.channel, "prefetch", *(str(n) for n in range(10)))
    got = []
    consumer = Consumer(queue.channel, [queue], on_message=got.append, prefetch_count=3)
    consumer.consume()
    while len(got) < 3:
        connection.drain_events()
    queue.queue_declare(passive=True)
    assert len(got) == 3, got
    got[-1].ack(multiple=True)
    while len(got) < 6:
        connection.drain_events()
    assert texts(got[3:6]) == ["3", "4", "5"]


def requeue(connection):
    queue = declare_queue(connection.default_channel, "requeue")
    send(queue.channel, "requeue", "1", "2", "3")
    for message in reversed([queue.get() for _ in range(3)]):  # kombu has no basic.nack
        message.requeue()
    got = [queue.get() for _ in range(3)]
    assert texts(got) == ["1", "2", "3"] and all(m.delivery_info["redelivered"] for m in got), got
    got[0].reject()
    got[2].ack(multiple=True)
    assert queue.purge() == 0


def cancel(connection):
    queue = declare_queue(connection.default_channel, "cancel")
    consumer = Consumer(
        queue.channel, [queue], on_message=lambda _m: sys.exit("delivered after the cancel"), no_ack=True
    )
    consumer.consume()
    consumer.cancel()
    send(queue.channel, "cancel", "stays")
    assert queue.purge() == 1


def broker_cancel(connection):
    queue = declare_queue(connection.default_channel, "cancelled")
    Consumer(queue.channel, [queue], on_message=print, tag_prefix="reader").consume()
    try:
        queue(connection.channel()).delete()
        while True:
            connection.drain_events()
    except connection.connection_errors as error:
        assert "reader" in str(error), error


def dead_lettering(queue):
    return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def reason_of_death(queue):
    return receive(queue, 1)[0].headers["x-death"][0]["reason"]


def dead_letter(connection):
    dead = declare_queue(connection.default_channel, "dead")
    queue = declare_queue(connection.default_channel, "rejecting", queue_arguments=dead_lettering("dead"))
    send(queue.channel, "rejecting", "bad")
    queue.get().reject()
    assert reason_of_death(dead) == "rejected"


def message_ttl(connection):
    expired = declare_queue(connection.default_channel, "expired")
    queue = declare_queue(connection.default_channel, "ttl", queue_arguments=dead_lettering("expired"))
    send(queue.channel, "ttl", "short", expiration=0.05)
    assert reason_of_death(expired) == "expired"


def queue_ttl(connection):
    queue = declare_queue(connection.default_channel, "leased", expires=0.1)

    def bind():
        while True:  # a bind does not renew the lease
            queue.bind_to("amq.fanout")
            time.sleep(0.05)

    refused(connection, 404, "NOT_FOUND", bind)


def priority(connection):
    queue = declare_queue(connection.default_channel, "priority", max_priority=5)
    for level in (1, 5, 3):
        send(queue.channel, "priority", str(level), priority=level)
    assert texts(receive(queue, 3)) == ["5", "3", "1"]


def delayed(connection):
    arguments = {"x-delayed-type": "fanout"}
    exchange = Exchange("delayed", "x-delayed-message", arguments=arguments)(connection.default_channel)
    queue = declare_queue(connection.default_channel, "delayed", exchange)
    for body, delay in (("late", 1000), ("soon", 1)):
        Producer(queue.channel, exchange).publish(body, headers={"x-delay": delay})
    assert texts(receive(queue, 2)) == ["soon", "late"]


def stream(connection, name, arguments):
    options = {"queue_arguments": {"x-queue-type": "stream"}, "consumer_arguments": arguments}
    queue = declare_queue(connection.default_channel, name, durable=True, **options)
    for n in range(10):
        send(queue.channel, name, str(n), headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    return texts(receive(queue, 5, no_ack=False, prefetch=10))


def stream_offset(connection):
    assert stream(connection, "stream", {"x-stream-offset": 5}) == ["5", "6", "7", "8", "9"]


def stream_filter(connection):
    wanted = {"x-stream-offset": "first", "x-stream-filter": "odd"}
    assert stream(connection, "filtered", wanted) == ["1", "3", "5", "7", "9"]


def policy(connection):
    queue = declare_queue(connection.default_channel, "limited")
    send(queue.channel, "limited", "1", "2", "3", "4")
    assert queue.purge() == 2


def reconnect(connection):
    queue = declare_queue(connection.default_channel, "kept", durable=True)
    send(queue.channel, "kept", "kept")
    receive(queue, 1, no_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        while True:
            connection.drain_events()
    except connection.connection_errors:
        connection.ensure_connection(interval_start=0.1, interval_step=0)
    assert texts(receive(queue(connection.channel()), 1)) == ["kept"]


def write(connection):
    declare_queue(connection.default_channel, "crossing")
    body = {"content_type": "text/plain", "content_encoding": "binary", "message_id": "7", "headers": CROSSING}
    send(connection.default_channel, "crossing", bytes(range(256)), **body)


def read(connection):
    message = receive(declare_queue(connection.default_channel, "crossing"), 1)[0]
    assert (bytes(message.body), message.headers) == (bytes(range(256)), CROSSING), message.headers
    assert (message.content_type, message.properties["message_id"]) == ("text/plain", "7"), message.properties


def main(name):
    if name == "version":
        print(kombu.__version__)
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        function = "connects" if name in ("connect", "tls", "client-certificate") else name.replace("-", "_")
        alone = name in ("bad-password", "bad-vhost", "heartbeat")
        globals()[function](*([] if alone else [connect()]))
        print("pass")


main(*sys.argv[1:])
