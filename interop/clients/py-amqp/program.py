"""py-amqp: the scenarios of ../README.md."""

import contextlib
import os
import ssl
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from urllib.parse import unquote, urlsplit

import amqp

NOT_OFFERED: dict[str, str] = {}
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
    url = urlsplit(os.environ["AMQP_URL"])
    if "CA_FILE" in os.environ:
        files = {"ca_certs": os.environ["CA_FILE"], "server_hostname": "localhost", "cert_reqs": ssl.CERT_REQUIRED}
        if "CERT_FILE" in os.environ:
            files |= {"certfile": os.environ["CERT_FILE"], "keyfile": os.environ["KEY_FILE"]}
        options["ssl"] = files
    login = {"userid": url.username, "password": url.password, "virtual_host": unquote(url.path[1:])}
    connection = amqp.Connection(f"{url.hostname}:{url.port}", **login, **options)
    connection.connect()
    return connection


def send(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic_publish(amqp.Message(body, **properties), routing_key=queue)


def declare_queue(channel, queue="", **options):
    return channel.queue_declare(queue, auto_delete=False, **options).queue


def receive(channel, queue, count, no_ack=True, **options):
    got = []
    tag = channel.basic_consume(queue, callback=got.append, no_ack=no_ack, **options)
    while len(got) < count:
        channel.connection.drain_events()
    if no_ack:
        channel.basic_cancel(tag)
    return got


def bodies_of(messages):
    return [message.body if isinstance(message.body, bytes) else message.body.encode() for message in messages]


def refused(code, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except amqp.AMQPError as error:
        assert error.reply_code == code and text in error.reply_text, error
    else:
        raise AssertionError("not refused")


def connects(channel):
    declare_queue(channel, "hello")
    send(channel, "hello", "Hello World!")
    assert bodies_of(receive(channel, "hello", 1)) == [b"Hello World!"]
    channel.connection.close()


def bad_password():
    refused(403, "ACCESS_REFUSED", connect)


def bad_vhost():
    refused(530, "NOT_ALLOWED", connect)


def heartbeat():
    connection = connect(heartbeat=1)
    for _ in range(40):
        with contextlib.suppress(TimeoutError):
            connection.drain_events(timeout=0.1)
        connection.heartbeat_tick()
    connects(connection.channel())


def declare(channel):
    declare_queue(channel, "declared", durable=True)
    channel.exchange_declare("declared", "topic", durable=True, auto_delete=False)
    channel.queue_bind("declared", "declared", "#")
    channel.basic_publish(amqp.Message("1"), "declared", "key")
    channel.queue_declare("declared", passive=True)
    channel.exchange_declare("declared", "topic", passive=True)
    assert channel.queue_purge("declared") == 1
    channel.queue_unbind("declared", "declared", "#")
    channel.exchange_delete("declared")
    channel.queue_delete("declared")


def missing(channel):
    refused(404, "NOT_FOUND - no queue 'missing'", channel.queue_declare, "missing", passive=True)
    connects(channel.connection.channel())


def inequivalent(channel):
    declare_queue(channel, "inequivalent", durable=True)
    refused(406, "inequivalent arg 'durable'", declare_queue, channel, "inequivalent", durable=False)


def float_argument(channel):
    declare_queue(channel, "float", arguments={"x-max-length": 10})
    refused(406, "x-max-length", declare_queue, channel, "float", arguments={"x-max-length": 10.0})


def work_queue(channel):
    declare_queue(channel, "tasks", durable=True)
    done = {"a": [], "b": []}

    def worker(name):
        def on_message(message):
            done[name].append(message.body)
            message.channel.basic_ack(message.delivery_tag)

        return on_message

    channel.basic_qos(0, 1, a_global=False)
    for name in done:
        channel.basic_consume("tasks", callback=worker(name))
    send(channel, "tasks", *(str(n) for n in range(10)), delivery_mode=2)
    while sum(map(len, done.values())) < 10:
        channel.connection.drain_events()
    assert all(done.values()) and sorted(done["a"] + done["b"]) == [str(n) for n in range(10)], done


def publish_subscribe(channel):
    channel.exchange_declare("logs", "fanout")
    queues = [declare_queue(channel, exclusive=True) for _subscriber in range(2)]
    for queue in queues:
        channel.queue_bind(queue, "logs")
    channel.basic_publish(amqp.Message("log"), "logs")
    assert [bodies_of(receive(channel, queue, 1)) for queue in queues] == [[b"log"], [b"log"]]


def patterns(channel, exchange, kind, bindings, published, expected):
    channel.exchange_declare(exchange, kind)
    queue = declare_queue(channel, exclusive=True)
    for key in bindings:
        channel.queue_bind(queue, exchange, key)
    for key in published:
        channel.basic_publish(amqp.Message(key), exchange, key)
    got = receive(channel, queue, len(expected))
    assert [message.delivery_info["routing_key"] for message in got] == expected


def routing(channel):
    patterns(channel, "direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], ["warning", "error"])


def topics(channel):
    keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"]
    patterns(channel, "topic_logs", "topic", ["*.critical", "kern.#"], keys, [keys[0], keys[2], keys[3]])


def rpc(channel, callback=None):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def on_request(request):
        properties = request.properties
        send(
            channel,
            properties["reply_to"],
            str(fibonacci(int(request.body))),
            correlation_id=properties["correlation_id"],
        )

    declare_queue(channel, "rpc_queue")
    channel.basic_consume("rpc_queue", callback=on_request, no_ack=True)
    replies = []
    callback = callback or declare_queue(channel, exclusive=True)
    channel.basic_consume(callback, callback=replies.append, no_ack=True)
    send(channel, "rpc_queue", "15", reply_to=callback, correlation_id="1")
    while not replies:
        channel.connection.drain_events()
    assert (replies[0].properties["correlation_id"], replies[0].body) == ("1", "610"), replies[0].body


def direct_reply_to(channel):
    rpc(channel, "amq.rabbitmq.reply-to")


def confirm(channel):
    declare_queue(channel, "confirmed", durable=True)
    channel.basic_publish_confirm(amqp.Message("safe", delivery_mode=2), routing_key="confirmed")


def confirm_batch(channel):
    acked = []
    declare_queue(channel, "batch", durable=True)
    channel.confirm_select()
    channel.events["basic_ack"].add(lambda tag, multiple: acked.append(tag if multiple else 0) or acked.append(tag))
    send(channel, "batch", *(str(n) for n in range(1000)), delivery_mode=2)
    while max(acked, default=0) < 1000:
        channel.connection.drain_events()
    assert channel.queue_purge("batch") == 1000


def mandatory(channel):
    returned = []
    channel.events["basic_return"].add(lambda *arguments: returned.append(arguments))
    channel.basic_publish_confirm(amqp.Message("lost"), routing_key="nowhere", mandatory=True)
    assert returned[0][0].reply_code == 312, returned


def tx(channel):
    declare_queue(channel, "tx")
    channel.tx_select()
    send(channel, "tx", "no")
    channel.tx_rollback()
    send(channel, "tx", "yes")
    channel.tx_commit()
    assert bodies_of(receive(channel, "tx", 1)) == [b"yes"]


def headers(channel):
    declare_queue(channel, "headers")
    send(channel, "headers", "", application_headers=HEADERS)
    got = receive(channel, "headers", 1)[0].headers
    assert got == HEADERS, got


def bodies(channel):
    declare_queue(channel, "bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(channel, "bodies", b"x" * size)
        assert bodies_of(receive(channel, "bodies", 1)) == [b"x" * size]


def channels(channel):
    declare_queue(channel, "channels")
    for each in [channel.connection.channel() for _ in range(100)]:
        send(each, "channels", "x")
    assert len(receive(channel, "channels", 100)) == 100


def prefetch(channel):
    declare_queue(channel, "prefetch")
    send(channel, "prefetch", *(str(n) for n in range(10)))
    channel.basic_qos(0, 3, a_global=False)
    got = []
    channel.basic_consume("prefetch", callback=got.append)
    while len(got) < 3:
        channel.connection.drain_events()
    assert channel.queue_declare("prefetch", passive=True).message_count == 7
    channel.basic_ack(got[-1].delivery_tag, multiple=True)
    while len(got) < 6:
        channel.connection.drain_events()
    assert bodies_of(got[3:]) == [b"3", b"4", b"5"]


def requeue(channel):
    declare_queue(channel, "requeue")
    send(channel, "requeue", "1", "2", "3")
    got = [channel.basic_get("requeue") for _ in range(3)]
    for message in reversed(got):  # py-amqp has no basic.nack
        channel.basic_reject(message.delivery_tag, requeue=True)
    got = [channel.basic_get("requeue") for _ in range(3)]
    assert [(m.delivery_info["redelivered"], m.body) for m in got] == [(True, "1"), (True, "2"), (True, "3")], got
    channel.basic_reject(got[0].delivery_tag, requeue=False)
    channel.basic_ack(got[2].delivery_tag, multiple=True)
    assert channel.queue_purge("requeue") == 0


def cancel(channel):
    declare_queue(channel, "cancel")
    tag = channel.basic_consume("cancel", callback=lambda _m: sys.exit("delivered after the cancel"), no_ack=True)
    channel.basic_cancel(tag)
    send(channel, "cancel", "stays")
    assert channel.queue_purge("cancel") == 1


def broker_cancel(channel):
    told = []
    declare_queue(channel, "cancelled")
    channel.basic_consume("cancelled", "reader", callback=print, on_cancel=told.append)
    channel.connection.channel().queue_delete("cancelled")
    while not told:
        channel.connection.drain_events()
    assert told == ["reader"]


def blocked():
    told = []
    connection = connect(on_blocked=told.append, on_unblocked=lambda: told.append("unblocked"))
    connection.channel().basic_publish(amqp.Message("held"), routing_key="nowhere")
    while not told:
        connection.drain_events()
    print("ready", flush=True)  # the runner ends the alarm
    while len(told) < 2:
        connection.drain_events()
    assert told[1] == "unblocked", told  # py-amqp does not show the broker's reason


def dead_letter(channel):
    declare_queue(channel, "dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    declare_queue(channel, "rejecting", arguments=to_dead)
    send(channel, "rejecting", "bad")
    channel.basic_reject(channel.basic_get("rejecting").delivery_tag, requeue=False)
    died = receive(channel, "dead", 1)[0].headers["x-death"][0]
    assert (died["queue"], died["reason"], died["count"]) == ("rejecting", "rejected", 1), died


def message_ttl(channel):
    declare_queue(channel, "expired")
    declare_queue(channel, "ttl", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"})
    send(channel, "ttl", "short", expiration="50")
    assert receive(channel, "expired", 1)[0].headers["x-death"][0]["reason"] == "expired"


def queue_ttl(channel):
    declare_queue(channel, "leased", arguments={"x-expires": 100})
    try:
        while True:  # a bind does not renew the lease
            channel.queue_bind("leased", "amq.fanout")
            time.sleep(0.05)
    except amqp.NotFound:
        pass


def priority(channel):
    declare_queue(channel, "priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        send(channel, "priority", str(level), priority=level)
    assert bodies_of(receive(channel, "priority", 3)) == [b"5", b"3", b"1"]


def delayed(channel):
    channel.exchange_declare("delayed", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    declare_queue(channel, "delayed")
    channel.queue_bind("delayed", "delayed")
    for body, delay in (("late", 1000), ("soon", 1)):
        channel.basic_publish(amqp.Message(body, application_headers={"x-delay": delay}), "delayed")
    assert bodies_of(receive(channel, "delayed", 2)) == [b"soon", b"late"]


def stream(channel, name, arguments):
    declare_queue(channel, name, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        send(channel, name, str(n), application_headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    channel.basic_qos(0, 10, a_global=False)
    return bodies_of(receive(channel, name, 5, no_ack=False, arguments=arguments))


def stream_offset(channel):
    assert stream(channel, "stream", {"x-stream-offset": 5}) == [b"5", b"6", b"7", b"8", b"9"]


def stream_filter(channel):
    wanted = {"x-stream-offset": "first", "x-stream-filter": "odd"}
    assert stream(channel, "filtered", wanted) == [b"1", b"3", b"5", b"7", b"9"]


def policy(channel):
    declare_queue(channel, "limited")
    send(channel, "limited", "1", "2", "3", "4")
    assert channel.queue_purge("limited") == 2


def reconnect(channel):
    declare_queue(channel, "kept", durable=True)
    channel.basic_publish_confirm(amqp.Message("kept", delivery_mode=2), routing_key="kept")
    receive(channel, "kept", 1, no_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        while True:
            channel.connection.drain_events()
    except channel.connection.connection_errors:
        pass
    while True:
        try:
            connection = connect()
            break
        except OSError:
            time.sleep(0.1)
    assert bodies_of(receive(connection.channel(), "kept", 1)) == [b"kept"]


def write(channel):
    declare_queue(channel, "crossing")
    properties = {"content_type": "text/plain", "message_id": "7", "application_headers": CROSSING}
    send(channel, "crossing", bytes(range(256)), **properties)
    channel.connection.close()


def read(channel):
    message = receive(channel, "crossing", 1)[0]
    assert (message.body, message.headers) == (bytes(range(256)), CROSSING), message.properties
    assert (message.content_type, message.properties["message_id"]) == ("text/plain", "7"), message.properties


def main(name):
    if name == "version":
        print(amqp.__version__)
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    else:
        if name in ("bad-password", "bad-vhost", "heartbeat", "blocked"):
            globals()[name.replace("-", "_")]()
        elif name in ("connect", "tls", "client-certificate"):
            connects(connect().channel())
        else:
            globals()[name.replace("-", "_")](connect().channel())
        print("pass")


main(*sys.argv[1:])
