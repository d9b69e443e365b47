"""AMQPStorm: the scenarios of ../README.md."""

import os
import ssl
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from urllib.parse import unquote, urlsplit

import amqpstorm
from amqpstorm import AMQPError, AMQPMessageError, Connection

NOT_OFFERED = {"confirm-batch": "publish waits for the confirm of each message"}
HEADERS = {
    "text": "grüße",
    "yes": True,
    "int": -5,
    "long": 1 << 40,
    "double": 1.5,
    "nothing": None,
    "decimal": Decimal("3.14"),
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "array": [1, "two", {"three": 3}],
    "table": {"a": {"b": "c"}},
}
CROSSING = {"text": "grüße", "number": 42, "yes": True, "array": [1, "two"], "table": {"a": "b"}}


def connect(**options):
    url = urlsplit(os.environ["AMQP_URL"])
    if "CA_FILE" in os.environ:
        context = ssl.create_default_context(cafile=os.environ["CA_FILE"])
        if "CERT_FILE" in os.environ:
            context.load_cert_chain(os.environ["CERT_FILE"], os.environ["KEY_FILE"])
        options |= {"ssl": True, "ssl_options": {"context": context, "server_hostname": "localhost"}}
    vhost = unquote(url.path[1:])
    return Connection(url.hostname, url.username, url.password, port=url.port, virtual_host=vhost, **options)


def send(channel, queue, *bodies, **properties):
    for body in bodies:
        channel.basic.publish(body, queue, properties=properties)


def declare_queue(channel, queue="", **options):
    return channel.queue.declare(queue, **options)["queue"]


def receive(channel, queue, count, no_ack=True, arguments=None):
    got = []
    tag = channel.basic.consume(queue=queue, no_ack=no_ack, arguments=arguments)
    for message in channel.build_inbound_messages():
        got.append(message)
        if len(got) == count:
            break
    if no_ack:
        channel.basic.cancel(tag)
    return got


def bodies_of(messages):
    return [message._body for message in messages]


def get(channel, queue):
    return channel.basic.get(queue)


def refused(code, text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except AMQPError as error:
        assert error.error_code == code and text in str(error), error
    else:
        raise AssertionError("not refused")


def connects(channel):
    declare_queue(channel, "hello")
    send(channel, "hello", "Hello World!")
    assert [message.body for message in receive(channel, "hello", 1)] == ["Hello World!"]
    channel.close()


def bad_password():
    refused(403, "ACCESS_REFUSED", connect)


def bad_vhost():
    refused(530, "NOT_ALLOWED", connect)


def heartbeat():
    connection = connect(heartbeat=1)
    time.sleep(4)
    connects(connection.channel())


def declare(channel):
    declare_queue(channel, "declared", durable=True)
    channel.exchange.declare("declared", "topic", durable=True)
    channel.queue.bind("declared", "declared", "#")
    channel.basic.publish("1", "key", "declared")
    channel.queue.declare("declared", passive=True)
    channel.exchange.declare("declared", passive=True)
    assert channel.queue.purge("declared")["message_count"] == 1
    channel.queue.unbind("declared", "declared", "#")
    channel.exchange.delete("declared")
    channel.queue.delete("declared")


def missing(connection):
    refused(404, "NOT_FOUND - no queue 'missing'", connection.channel().queue.declare, "missing", passive=True)
    connects(connection.channel())


def inequivalent(channel):
    declare_queue(channel, "inequivalent", durable=True)
    refused(406, "inequivalent arg 'durable'", channel.queue.declare, "inequivalent", durable=False)


def float_argument(channel):
    declare_queue(channel, "float", arguments={"x-max-length": 10})
    refused(406, "x-max-length", channel.queue.declare, "float", arguments={"x-max-length": 10.0})


def work_queue(channel):
    declare_queue(channel, "tasks", durable=True)
    done = {"a": [], "b": []}
    channel.basic.qos(1)
    for name in done:
        channel.basic.consume(queue="tasks", consumer_tag=name)
    send(channel, "tasks", *(str(n) for n in range(10)), delivery_mode=2)
    for message in channel.build_inbound_messages():
        done[message.method["consumer_tag"]].append(message.body)
        message.ack()
        if sum(map(len, done.values())) == 10:
            break
    assert all(done.values()) and sorted(done["a"] + done["b"]) == [str(n) for n in range(10)], done


def publish_subscribe(channel):
    channel.exchange.declare("logs", "fanout")
    queues = [declare_queue(channel, exclusive=True) for _subscriber in range(2)]
    for queue in queues:
        channel.queue.bind(queue, "logs")
    channel.basic.publish("log", "", "logs")
    assert [bodies_of(receive(channel, queue, 1)) for queue in queues] == [[b"log"], [b"log"]]


def patterns(channel, exchange, kind, bindings, published, expected):
    channel.exchange.declare(exchange, kind)
    queue = declare_queue(channel, exclusive=True)
    for key in bindings:
        channel.queue.bind(queue, exchange, key)
    for key in published:
        channel.basic.publish(key, key, exchange)
    assert [message.method["routing_key"] for message in receive(channel, queue, len(expected))] == expected


def routing(channel):
    patterns(channel, "direct_logs", "direct", ["warning", "error"], ["info", "warning", "error"], ["warning", "error"])


def topics(channel):
    keys = ["kern.critical", "cron.info", "kern.a.b", "cron.critical"]
    patterns(channel, "topic_logs", "topic", ["*.critical", "kern.#"], keys, [keys[0], keys[2], keys[3]])


def rpc(channel, callback=None):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def on_request(request):
        send(channel, request.reply_to, str(fibonacci(int(request.body))), correlation_id=request.correlation_id)

    declare_queue(channel, "rpc_queue")
    channel.basic.consume(on_request, "rpc_queue", no_ack=True)
    replies = []
    callback = callback or declare_queue(channel, exclusive=True)
    channel.basic.consume(replies.append, callback, no_ack=True)
    send(channel, "rpc_queue", "15", reply_to=callback, correlation_id="1")
    while not replies:
        channel.process_data_events()
    assert (replies[0].correlation_id, replies[0].body) == ("1", "610"), replies[0].body


def direct_reply_to(channel):
    rpc(channel, "amq.rabbitmq.reply-to")


def confirm(channel):
    declare_queue(channel, "confirmed", durable=True)
    channel.confirm_deliveries()
    assert channel.basic.publish("safe", "confirmed", properties={"delivery_mode": 2})


def mandatory(channel):
    channel.confirm_deliveries()
    try:
        channel.basic.publish("lost", "nowhere", mandatory=True)
    except AMQPMessageError as error:
        assert error.error_code == 312, error
    else:
        raise AssertionError("not returned")


def tx(channel):
    declare_queue(channel, "tx")
    channel.tx.select()
    send(channel, "tx", "no")
    channel.tx.rollback()
    send(channel, "tx", "yes")
    channel.tx.commit()
    assert bodies_of(receive(channel, "tx", 1)) == [b"yes"]


def headers(channel):
    declare_queue(channel, "headers")
    send(channel, "headers", "", headers=HEADERS)
    got = receive(channel, "headers", 1)[0].properties["headers"]
    assert got == HEADERS, got


def bodies(channel):
    declare_queue(channel, "bodies")
    for size in (0, 1, 131_064, 131_065, 1 << 20, 16 << 20):
        send(channel, "bodies", b"x" * size)
        assert bodies_of(receive(channel, "bodies", 1)) == [b"x" * size]


def channels(connection):
    opened = [connection.channel() for _ in range(100)]
    declare_queue(opened[0], "channels")
    for each in opened:
        send(each, "channels", "x")
    assert len(receive(opened[0], "channels", 100)) == 100


def prefetch(channel):
    declare_queue(channel, "prefetch")
    send(channel, "prefetch", *(str(n) for n in range(10)))
    channel.basic.qos(3)
    channel.basic.consume(queue="prefetch")
    messages = channel.build_inbound_messages()
    got = [next(messages) for _ in range(3)]
    assert channel.queue.declare("prefetch", passive=True)["message_count"] == 7
    channel.basic.ack(got[-1].delivery_tag, multiple=True)
    assert [next(messages).body for _ in range(3)] == ["3", "4", "5"]


def requeue(channel):
    declare_queue(channel, "requeue")
    send(channel, "requeue", "1", "2", "3")
    got = [get(channel, "requeue") for _ in range(3)]
    channel.basic.nack(got[-1].delivery_tag, multiple=True, requeue=True)
    got = [get(channel, "requeue") for _ in range(3)]
    assert [(m.redelivered, m.body) for m in got] == [(True, "1"), (True, "2"), (True, "3")], got
    got[0].reject(requeue=False)
    channel.basic.ack(got[2].delivery_tag, multiple=True)
    assert channel.queue.purge("requeue")["message_count"] == 0


def cancel(channel):
    declare_queue(channel, "cancel")
    tag = channel.basic.consume(lambda _message: sys.exit("delivered after the cancel"), "cancel", no_ack=True)
    channel.basic.cancel(tag)
    send(channel, "cancel", "stays")
    assert channel.queue.purge("cancel")["message_count"] == 1


def broker_cancel(connection):
    channel = connection.channel()
    declare_queue(channel, "cancelled")
    channel.basic.consume(queue="cancelled", consumer_tag="reader")
    connection.channel().queue.delete("cancelled")
    while channel.consumer_tags:
        time.sleep(0.01)


def blocked(connection):
    connection.channel().basic.publish("held", "nowhere")
    while not connection.is_blocked:
        time.sleep(0.01)
    print("ready", flush=True)  # the runner ends the alarm
    while connection.is_blocked:
        time.sleep(0.01)


def dead_letter(channel):
    declare_queue(channel, "dead")
    to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    declare_queue(channel, "rejecting", arguments=to_dead)
    send(channel, "rejecting", "bad")
    get(channel, "rejecting").reject(requeue=False)
    died = receive(channel, "dead", 1)[0].properties["headers"]["x-death"][0]
    assert (died["queue"], died["reason"], died["count"]) == ("rejecting", "rejected", 1), died


def message_ttl(channel):
    declare_queue(channel, "expired")
    declare_queue(channel, "ttl", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "expired"})
    send(channel, "ttl", "short", expiration="50")
    assert receive(channel, "expired", 1)[0].properties["headers"]["x-death"][0]["reason"] == "expired"


def queue_ttl(channel):
    declare_queue(channel, "leased", arguments={"x-expires": 100})
    try:
        while True:  # a bind does not renew the lease
            channel.queue.bind("leased", "amq.fanout")
            time.sleep(0.05)
    except AMQPError as error:
        assert error.error_code == 404, error


def priority(channel):
    declare_queue(channel, "priority", arguments={"x-max-priority": 5})
    for level in (1, 5, 3):
        send(channel, "priority", str(level), priority=level)
    assert bodies_of(receive(channel, "priority", 3)) == [b"5", b"3", b"1"]


def delayed(channel):
    channel.exchange.declare("delayed", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    declare_queue(channel, "delayed")
    channel.queue.bind("delayed", "delayed")
    for body, delay in (("late", 1000), ("soon", 1)):
        channel.basic.publish(body, "", "delayed", properties={"headers": {"x-delay": delay}})
    assert bodies_of(receive(channel, "delayed", 2)) == [b"soon", b"late"]


def stream(channel, name, arguments):
    declare_queue(channel, name, durable=True, arguments={"x-queue-type": "stream"})
    for n in range(10):
        send(channel, name, str(n), headers={"x-stream-filter-value": "odd" if n % 2 else "even"})
    channel.basic.qos(10)
    return bodies_of(receive(channel, name, 5, no_ack=False, arguments=arguments))


def stream_offset(channel):
    assert stream(channel, "stream", {"x-stream-offset": 5}) == [b"5", b"6", b"7", b"8", b"9"]


def stream_filter(channel):
    wanted = {"x-stream-offset": "first", "x-stream-filter": "odd"}
    assert stream(channel, "filtered", wanted) == [b"1", b"3", b"5", b"7", b"9"]


def policy(channel):
    declare_queue(channel, "limited")
    send(channel, "limited", "1", "2", "3", "4")
    assert channel.queue.purge("limited")["message_count"] == 2


def reconnect():
    channel = connect(heartbeat=2).channel()  # 3.1.4 notices a lost connection by its heartbeat only
    declare_queue(channel, "kept", durable=True)
    channel.confirm_deliveries()
    send(channel, "kept", "kept", delivery_mode=2)
    receive(channel, "kept", 1, no_ack=False)
    print("ready", flush=True)  # the runner kills the broker and starts it again
    try:
        for _message in channel.build_inbound_messages():
            raise AssertionError("a message")
    except AMQPError:
        pass
    while True:
        try:
            connection = connect()
            break
        except AMQPError:
            time.sleep(0.1)
    assert bodies_of(receive(connection.channel(), "kept", 1)) == [b"kept"]
    connection.close()


def write(channel):
    declare_queue(channel, "crossing")
    send(channel, "crossing", bytes(range(256)), content_type="text/plain", message_id="7", headers=CROSSING)


def read(channel):
    message = receive(channel, "crossing", 1)[0]
    assert (message._body, message.properties["headers"]) == (bytes(range(256)), CROSSING), message.properties
    assert (message.properties["content_type"], message.message_id) == ("text/plain", "7"), message.properties


def main(name):
    function = "connects" if name in ("connect", "tls", "client-certificate") else name.replace("-", "_")
    if name == "version":
        print(amqpstorm.__version__)
    elif name in NOT_OFFERED:
        print("not offered:", NOT_OFFERED[name])
    elif name in ("bad-password", "bad-vhost", "heartbeat", "reconnect"):
        globals()[function]()
        print("pass")
    else:
        connection = connect()
        needs_connection = name in ("missing", "channels", "broker-cancel", "blocked")
        globals()[function](connection if needs_connection else connection.channel())
        print("pass")
        connection.close()


main(*sys.argv[1:])
