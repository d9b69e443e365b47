"""The catalogue of scenarios: what each client's program does, and what a pass shows."""

from __future__ import annotations

from typing import Final, NamedTuple

PLUGIN: Final = "Debian's RabbitMQ has no plugin for delayed messages"
FILTERS: Final = "RabbitMQ has filters as of 3.13"


class Scenario(NamedTuple):
    """One row of the matrix.

    Attributes:
        text: What the program does and checks.
        not_in_rabbitmq: Why RabbitMQ 3.10.8 cannot do it; empty: it can.
        tries: Runs until a failure counts: on a busy machine a program that waits for a while may be late.
        together: The programs of all clients run at once, on a broker that the runner disturbs when all are ready.
    """

    name: str
    text: str
    not_in_rabbitmq: str = ""
    together: bool = False
    tries: int = 1


SCENARIOS: Final = (
    Scenario("connect", "log in; send one message through a queue, receive it, close"),
    Scenario("bad-password", "the login is refused (403 ACCESS_REFUSED where the client shows it)"),
    Scenario("bad-vhost", "an unknown vhost is refused (530 NOT_ALLOWED where the client shows it)"),
    Scenario("heartbeat", "a heartbeat of 1 s keeps a connection open that is idle for 4 s", tries=4),
    Scenario("tls", "`connect` over TLS; the client verifies the broker"),
    Scenario("client-certificate", "`connect` over TLS to a broker that demands a certificate"),
    Scenario("declare", "declare, declare passively, bind, purge, unbind and delete a queue and an exchange"),
    Scenario("missing", "a passive declare of a missing queue: 404 closes the channel, the connection stays"),
    Scenario("inequivalent", "a queue declared again with another `durable`: 406"),
    Scenario("float-argument", "`x-max-length` 10, declared again as 10.0: 406"),
    Scenario("work-queue", "tutorial 2: two workers with prefetch 1 share ten tasks and ack each"),
    Scenario("publish-subscribe", "tutorial 3: two queues on a fanout exchange"),
    Scenario("routing", "tutorial 4: a direct exchange, several keys bound to one queue"),
    Scenario("topics", "tutorial 5: `*` and `#`"),
    Scenario("rpc", "tutorial 6: `reply_to` and `correlation_id`"),
    Scenario("direct-reply-to", "the same with `amq.rabbitmq.reply-to`"),
    Scenario("confirm", "a persistent message is confirmed"),
    Scenario("confirm-batch", "1,000 messages are sent, then all confirms awaited"),
    Scenario("mandatory", "a mandatory message without a queue is returned: 312"),
    Scenario("tx", "rollback and commit"),
    Scenario("headers", "field types come back as they were sent"),
    Scenario("bodies", "bodies of 0 B, 1 B, one frame, one frame and a byte, 1 MiB, 16 MiB"),
    Scenario("channels", "100 channels at once"),
    Scenario("prefetch", "three messages without an ack, not more; the next ones after the ack"),
    Scenario("requeue", "requeued messages have their order and `redelivered`; a rejected one is gone"),
    Scenario("cancel", "a cancelled consumer receives nothing more"),
    Scenario("broker-cancel", "the client reports that the queue of a consumer was deleted"),
    Scenario("blocked", "the client reports blocked and unblocked during a memory alarm", together=True),
    Scenario("dead-letter", "a rejected message reaches the dead letter queue with `x-death`"),
    Scenario("message-ttl", "an expired message does"),
    Scenario("queue-ttl", "an unused queue with `x-expires` is deleted"),
    Scenario("priority", "higher priorities first"),
    Scenario("delayed", "`x-delayed-message`: the shorter delay arrives first", PLUGIN, tries=4),
    Scenario("stream-offset", "a stream is read from offset 5"),
    Scenario("stream-filter", "a stream is read with a filter value", FILTERS),
    Scenario("policy", "a policy limits the length of a queue"),
    Scenario("reconnect", "kill -9 of the broker: the client connects again, the message is there", together=True),
    Scenario("cross-language", "a client of another language reads what this one sends, and the other way round"),
)
BY_NAME: Final = {each.name: each for each in SCENARIOS}
