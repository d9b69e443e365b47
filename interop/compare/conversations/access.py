"""Access: permissions, topic permissions, vhosts, users, and limits of both."""

from __future__ import annotations

from interop.compare.steps import (
    Connect,
    Conversation,
    Http,
    Leave,
    Say,
    Step,
    bind,
    consume,
    exchange,
    http,
    publish,
    queue,
    say,
    talk,
)


def user(tags: str = "") -> list[Step]:
    return [http("PUT", "/api/users/{u}", {"password": "secret", "tags": tags})]


def rights(configure: str, write: str, read: str) -> Http:
    return http("PUT", "/api/permissions/{v}/{u}", {"configure": configure, "write": write, "read": read})


def theirs() -> Connect:
    return Connect(on="b", user="{u}", password="secret")


def refused(name: str, given: tuple[str, str, str], *steps: Step, first: tuple[Step, ...] = ()) -> Conversation:
    """A user with these rights executes the steps on connection b."""
    said = [Say("b", each.quiet_ms, each.method, each.arguments) if isinstance(each, Say) else each for each in steps]
    return talk(f"access/{name}", queue("q"), exchange("x", "topic"), *first, user(), rights(*given), theirs(), *said)


def tried() -> list[Step]:
    """One operation of each kind."""
    return [
        queue("mine"),
        queue("q", passive=True),
        queue("", exclusive=True),
        exchange("own"),
        exchange("x", passive=True),
        bind("q", "x", "k"),
        say("queue.unbind", queue="q", exchange="x", routing_key="k"),
        say("exchange.bind", destination="x", source="amq.fanout"),
        say("exchange.unbind", destination="x", source="amq.fanout"),
        publish("k", exchange="x", on="b"),
        publish("q", on="b"),
        say("basic.get", queue="q"),
        consume("q"),
        say("queue.purge", queue="q"),
        queue("d", args={"x-dead-letter-exchange": "x"}),
        exchange("e", args={"alternate-exchange": "x"}),
        say("queue.delete", queue="q"),
        say("exchange.delete", exchange="x"),
    ]


CONVERSATIONS = [
    refused("nothing", ("", "", ""), *tried()),
    refused("configure only", (".*", "", ""), *tried()),
    refused("write only", ("", ".*", ""), *tried()),
    refused("read only", ("", "", ".*"), *tried()),
    refused("configure and read", (".*", "", ".*"), *tried()),
    refused("names that match in part", ("^m", "x", "^q$"), *tried()),
    talk(
        "access/vhosts",
        user(),
        theirs(),
        rights(".*", ".*", ".*"),
        theirs(),
        Connect(on="c", vhost="nosuch-{v}"),
        Connect(on="d", user="{u}", password="wrong"),
    ),
    talk(
        "access/topics",
        queue("q"),
        user(),
        rights(".*", ".*", ".*"),
        http("PUT", "/api/topic-permissions/{v}/{u}", {"exchange": "amq.topic", "write": "^a", "read": "^b"}),
        theirs(),
        publish("a.x", exchange="amq.topic", on="b"),
        publish("b.x", exchange="amq.topic", on="b"),
        publish("b.x", exchange="amq.direct", on="b"),
        say("queue.bind", on="b", queue="q", exchange="amq.topic", routing_key="b.#"),
        say("queue.bind", on="b", queue="q", exchange="amq.topic", routing_key="a.#"),
        http("GET", "/api/topic-permissions/{v}/{u}", show=("exchange", "write", "read", "user", "vhost")),
    ),
    talk(
        "access/topics of CC",
        user(),
        rights(".*", ".*", ".*"),
        http("PUT", "/api/topic-permissions/{v}/{u}", {"exchange": "amq.topic", "write": "^a", "read": "^b"}),
        theirs(),
        say("confirm.select", on="b"),
        publish("a.x", exchange="amq.topic", on="b", headers={"CC": ["b.x"]}),
    ),
    talk(
        "access/patterns refused",
        user(),
        rights("[", ".*", ".*"),
        http("PUT", "/api/permissions/{v}/{u}", {"configure": ".*"}),
        http("PUT", "/api/permissions/nosuch-{v}/{u}", {"configure": "", "write": "", "read": ""}),
        http("PUT", "/api/permissions/{v}/nosuch-{u}", {"configure": "", "write": "", "read": ""}),
        http("GET", "/api/permissions/{v}/{u}", show=("configure", "write", "read")),
    ),
    talk(
        "access/management",
        user("management"),
        rights("", "", ""),
        http("GET", "/api/queues/{v}", on="{u}", show=("name",)),
        http("GET", "/api/users", on="{u}"),
        http("PUT", "/api/queues/{v}/new", {"durable": True}, on="{u}"),
        http("PUT", "/api/policies/{v}/p", {"pattern": ".*", "definition": {"max-length": 1}}, on="{u}"),
        http("PUT", "/api/vhost-limits/{v}/max-queues", {"value": 1}, on="{u}"),
    ),
    talk(
        "limits of vhosts/queues",
        http("PUT", "/api/vhost-limits/{v}/max-queues", {"value": 2}),
        queue("a"),
        queue("b", durable=False),
        queue("c"),
        queue("a"),
        say("queue.declare", queue=""),
        http("PUT", "/api/queues/{v}/d", {"durable": True}),
        say("queue.delete", queue="a"),
        queue("c"),
        http("GET", "/api/vhost-limits/{v}", show=("vhost", "value")),
        http("DELETE", "/api/vhost-limits/{v}/max-queues"),
        queue("d"),
        http("GET", "/api/vhost-limits/{v}", show=("vhost", "value")),
    ),
    talk(
        "limits of vhosts/connections",
        http("PUT", "/api/vhost-limits/{v}/max-connections", {"value": 1}),
        queue("a"),
        Connect(on="b"),
        http("PUT", "/api/vhost-limits/{v}/max-connections", {"value": 0}),
        Connect(on="b"),
        queue("still", on="a"),
        http("PUT", "/api/vhost-limits/{v}/max-connections", {"value": -1}),
        Connect(on="b"),
    ),
    talk(
        "limits of vhosts/no queues",
        http("PUT", "/api/vhost-limits/{v}/max-queues", {"value": 0}),
        queue("a"),
        http("PUT", "/api/vhost-limits/{v}/max-queues", {"value": -1}),
        queue("a"),
    ),
    talk(
        "limits of vhosts/values",
        http("PUT", "/api/vhost-limits/{v}/nosuch", {"value": 1}),
        http("PUT", "/api/vhost-limits/{v}/max-queues", {"value": "1"}),
        http("PUT", "/api/vhost-limits/{v}/max-queues", {}),
        http("PUT", "/api/vhost-limits/nosuch-{v}/max-queues", {"value": 1}),
        http("DELETE", "/api/vhost-limits/{v}/max-queues"),
    ),
    talk(
        "limits of users/connections",
        user(),
        rights(".*", ".*", ".*"),
        http("PUT", "/api/user-limits/{u}/max-connections", {"value": 1}),
        theirs(),
        Connect(on="c", user="{u}", password="secret"),
        http("GET", "/api/user-limits/{u}", show=("user", "value")),
        Leave(on="b", quiet_ms=300),
        Connect(on="c", user="{u}", password="secret"),
        http("PUT", "/api/user-limits/{u}/max-connections", {"value": 0}),
        Connect(on="d", user="{u}", password="secret"),
        http("DELETE", "/api/user-limits/{u}/max-connections"),
        Connect(on="d", user="{u}", password="secret"),
    ),
    talk(
        "limits of users/channels",
        user(),
        rights(".*", ".*", ".*"),
        http("PUT", "/api/user-limits/{u}/max-channels", {"value": 2}),
        theirs(),
        say("channel.open", on="b", channel=1),
        say("channel.open", on="b", channel=2),
        say("channel.open", on="b", channel=3),
        theirs(),
        say("channel.open", on="b", channel=7),
        say("channel.close", on="b", channel=7, reply_code=200),
        say("channel.open", on="b", channel=8),
    ),
    talk(
        "limits of users/values",
        user(),
        http("PUT", "/api/user-limits/{u}/nosuch", {"value": 1}),
        http("PUT", "/api/user-limits/{u}/max-channels", {"value": "1"}),
        http("PUT", "/api/user-limits/nosuch-{u}/max-channels", {"value": 1}),
    ),
]
