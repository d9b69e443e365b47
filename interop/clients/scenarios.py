"""The catalogues of scenarios, one for each table: what each program does, and what a pass shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

PLUGIN: Final = "Debian's RabbitMQ has no plugin for delayed messages"
FILTERS: Final = "RabbitMQ has filters as of 3.13"
NO_AMQP: Final = "Apache Kafka does not speak AMQP"
HELLO: Final = ("Hello World!",)


class Scenario(NamedTuple):
    """One row of the matrix.

    Attributes:
        text: What the program does and checks.
        prints: The lines of a program that leaves the check to the runner. Several texts: all of them are in the line.
        not_in_peer: Why RabbitMQ 3.10.8 or Apache Kafka cannot do it; empty: it can.
        group: Name of the program that does it, where a client has one program for each group.
        tries: Runs until a failure counts: on a busy machine a program that waits for a while may be late.
        together: The programs of all clients run at once, on a broker that the runner disturbs when all are ready.
    """

    name: str
    text: str
    prints: Sequence[str | tuple[str, ...]] = ()
    not_in_peer: str = ""
    together: bool = False
    tries: int = 1
    group: str = ""

    def accepts(self, lines: Sequence[str]) -> bool:
        """Return whether these lines of a program are a pass: the last one is `pass`, or they are those of `prints`."""
        if lines[-1:] == ["pass"]:
            return True
        return len(lines) == len(self.prints) > 0 and all(
            line == wanted if isinstance(wanted, str) else all(text in line for text in wanted)
            for line, wanted in zip(lines, self.prints, strict=True)
        )


def _group(name: str, *scenarios: Scenario) -> list[Scenario]:
    return [each._replace(group=name) for each in scenarios]


SCENARIOS: Final = (
    *_group(
        "connect",
        Scenario("connect", "log in; send one message through a queue, receive it, close", HELLO),
        Scenario(
            "bad-password",
            "the login is refused (403 ACCESS_REFUSED where the client shows it)",
            (("403", "ACCESS_REFUSED"),),
        ),
        Scenario(
            "bad-vhost",
            "an unknown vhost is refused (530 NOT_ALLOWED where the client shows it)",
            (("530", "NOT_ALLOWED"),),
        ),
        Scenario("heartbeat", "a heartbeat of 1 s keeps a connection open that is idle for 4 s", HELLO, tries=4),
        Scenario("tls", "`connect` over TLS; the client verifies the broker", HELLO),
        Scenario("client-certificate", "`connect` over TLS to a broker that demands a certificate", HELLO),
        Scenario("channels", "100 channels at once", ("100",)),
        Scenario(
            "blocked",
            "the client reports blocked and unblocked during a memory alarm",
            ("low on memory", "unblocked"),
            together=True,
        ),
        Scenario(
            "reconnect",
            "kill -9 of the broker: the client connects again, the message is there",
            ("kept",),
            together=True,
        ),
    ),
    *_group(
        "topology",
        Scenario(
            "declare", "declare, declare passively, bind, purge, unbind and delete a queue and an exchange", ("1",)
        ),
        Scenario(
            "missing",
            "a passive declare of a missing queue: 404 closes the channel, the connection stays",
            (("404", "NOT_FOUND - no queue 'missing'"), *HELLO),
        ),
        Scenario(
            "inequivalent",
            "a queue declared again with another `durable`: 406",
            (("406", "inequivalent arg 'durable'"),),
        ),
        Scenario("float-argument", "`x-max-length` 10, declared again as 10.0: 406", (("406", "x-max-length"),)),
        Scenario("queue-ttl", "an unused queue with `x-expires` is deleted", (("404", "NOT_FOUND"),)),
        Scenario("policy", "a policy limits the length of a queue", ("2",)),
    ),
    *_group(
        "publish",
        Scenario("confirm", "a persistent message is confirmed", ("1",)),
        Scenario("confirm-batch", "1,000 messages are sent, then all confirms awaited", ("1000",)),
        Scenario("mandatory", "a mandatory message without a queue is returned: 312", ("312",)),
        Scenario("tx", "rollback and commit", ("yes",)),
        Scenario("headers", "field types come back as they were sent"),
        Scenario(
            "bodies",
            "bodies of 0 B, 1 B, one frame, one frame and a byte, 1 MiB, 16 MiB",
            ("0", "1", "131064", "131065", "1048576", "16777216"),
        ),
        Scenario("cross-language", "a client of another language reads what this one sends, and the other way round"),
    ),
    *_group(
        "consume",
        Scenario(
            "prefetch", "three messages without an ack, not more; the next ones after the ack", ("7", "3", "4", "5")
        ),
        Scenario(
            "requeue",
            "requeued messages have their order and `redelivered`; a rejected one is gone",
            ("1 true", "2 true", "3 true", "0"),
        ),
        Scenario("cancel", "a cancelled consumer receives nothing more", ("1",)),
        Scenario("broker-cancel", "the client reports that the queue of a consumer was deleted", ("cancelled",)),
        Scenario("dead-letter", "a rejected message reaches the dead letter queue with `x-death`", ("rejected",)),
        Scenario("message-ttl", "an expired message does", ("expired",)),
        Scenario("priority", "higher priorities first", ("5", "3", "1")),
        Scenario("delayed", "`x-delayed-message`: the shorter delay arrives first", ("soon", "late"), PLUGIN, tries=4),
    ),
    *_group(
        "patterns",
        Scenario(
            "work-queue", "tutorial 2: two workers with prefetch 1 share ten tasks and ack each", ("0123456789", "2")
        ),
        Scenario("publish-subscribe", "tutorial 3: two queues on a fanout exchange", ("log", "log")),
        Scenario("routing", "tutorial 4: a direct exchange, several keys bound to one queue", ("warning", "error")),
        Scenario("topics", "tutorial 5: `*` and `#`", ("kern.critical", "kern.a.b", "cron.critical")),
        Scenario("rpc", "tutorial 6: `reply_to` and `correlation_id`", ("1 610",)),
        Scenario("direct-reply-to", "the same with `amq.rabbitmq.reply-to`", ("1 610",)),
    ),
    *_group(
        "streams",
        Scenario("stream-offset", "a stream is read from offset 5", ("5", "6", "7", "8", "9")),
        Scenario("stream-filter", "a stream is read with a filter value", ("1", "3", "5", "7", "9"), FILTERS),
    ),
)
BY_NAME: Final = {each.name: each for each in SCENARIOS}

TASK_SCENARIOS: Final = (
    *_group(
        "tasks",
        Scenario("task", "a worker does a task that another process has sent"),
        Scenario("shared", "two workers share 40 tasks; each task is done once"),
        Scenario("large", "an argument of 1 MiB arrives unchanged"),
        Scenario("result", "the caller gets the result through the broker"),
        Scenario("error", "the caller gets the exception of a failed task"),
        Scenario("retry", "a task that fails twice is repeated and succeeds"),
        Scenario("dead-letter", "a task that fails for good is in another queue"),
        Scenario("eta", "a task with a delay of 1 s is not done earlier"),
        Scenario("priority", "higher priorities first"),
        Scenario("pipeline", "the result of a task is the argument of the next one"),
        Scenario("chord", "a task begins when all tasks of a group are done, with their results"),
        Scenario("quorum", "`task` with a quorum queue"),
        Scenario("quorum-eta", "`eta` with a quorum queue, where the delay is the broker's"),
    ),
    *_group(
        "workers",
        Scenario("prefetch", "a worker holds as many tasks as it is allowed; the others stay in the queue"),
        Scenario("worker-killed", "kill -9 of the worker: another worker does its task"),
        Scenario("warm-shutdown", "a worker that ends does its task, and returns the others to the queue"),
        Scenario("remote-control", "the workers are asked what they do; a waiting task is revoked"),
        Scenario("events", "another program sees the events of tasks and workers"),
        Scenario("monitor", "Flower shows the worker, the task and the broker's queue"),
        Scenario("reconnect", "kill -9 of the broker: the worker connects again and does the next task", together=True),
    ),
)

KAFKA_SCENARIOS: Final = (
    Scenario("create", "a topic is created"),
    Scenario("produce", "records of each codec, `acks=all`, idempotent producer; the offsets are compared"),
    Scenario("consume", "offsets, times and values are compared"),
    Scenario("headers", "headers, an empty value and no value, no key"),
    Scenario("rebalance", "two members of a group; the one with the partition leaves, a third joins; each record once"),
    Scenario("resume", "an offset is committed, and the group continues there"),
    Scenario("seek", "the offset of a time, and a consumer that begins there"),
    Scenario("transactions", "records of a committed transaction are read, those of an aborted one are not"),
    Scenario("describe", "lists and descriptions of topics and groups; the group is deleted"),
    Scenario("configs", "a config of the topic is altered and described"),
    Scenario("from-amqp", "messages of an AMQP publisher are read from the topic", not_in_peer=NO_AMQP),
    Scenario("to-amqp", "an AMQP consumer reads the records from the stream", not_in_peer=NO_AMQP),
    Scenario("delete", "the topic is deleted"),
    Scenario("many", "10,000 records in and out, in order"),
    Scenario("share", "a share group gets each record once, and a released one again"),
    Scenario("tls", "all of the above but `share` over TLS with SASL PLAIN"),
)

HTTP_SCENARIOS: Final = (
    Scenario("overview", "the broker's name and version, the user"),
    Scenario("refused", "a wrong password is refused"),
    Scenario("vhosts", "a vhost is created, listed and deleted"),
    Scenario("users", "a user is created, gets permissions, and is deleted"),
    Scenario("exchanges", "an exchange is declared, shown and deleted"),
    Scenario("queues", "a queue is declared, shown with its arguments, purged and deleted"),
    Scenario("bindings", "a binding is declared, listed and deleted"),
    Scenario("messages", "a message is published and got"),
    Scenario("policies", "a policy is set, shown and deleted"),
    Scenario("connections", "an AMQP connection is listed with its channel, and closed"),
    Scenario("definitions", "the definitions are exported and imported"),
    Scenario("health", "the health checks pass"),
    Scenario("scrape", "Prometheus' format has the metrics of RabbitMQ's dashboards"),
)
