"""The permission that each method needs: every cell of RabbitMQ's table, over the connection of a limited user.

Each row is tried with exactly its needs, and once without each of them. The permissions change while the connection
is open, so each cell also shows that no older result is cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote

import pytest
from peer import Peer
from wire import header, method, publish

from amqpd.testing import BrokerProcess, Vhost

USER = "limited"
PASSWORD = "sesame"
QUEUE = "queue"
NOTHING = "^$"


class Need(NamedTuple):
    kind: str
    thing: str
    name: str

    def pattern(self) -> str:
        return f"^{self.name}$" if self.name != "" else r"^amq\.gen-"


def configure(thing: str, name: str) -> Need:
    return Need("configure", thing, name)


def write(thing: str, name: str) -> Need:
    return Need("write", thing, name)


def read(thing: str, name: str) -> Need:
    return Need("read", thing, name)


class Row(NamedTuple):
    """id; frames to send; replies if allowed; needed permissions, in the order of the checks."""

    id: str
    frames: bytes
    replies: tuple[str, ...]
    needs: tuple[Need, ...]


def row(name: str, replies: tuple[str, ...], *needs: Need, label: str = "", **arguments: object) -> Row:
    return Row(f"{name}{label}", method(name, **arguments), replies, needs)


def ok(name: str, *needs: Need, label: str = "", **arguments: object) -> Row:
    return row(name, (f"{name}-ok",), *needs, label=label, **arguments)


TABLE = [
    ok("queue.declare", configure("queue", "new"), queue="new"),
    ok("queue.declare", configure("queue", "q"), label=" again", queue="q"),
    ok("queue.declare", configure("queue", ""), label=" server-named", queue="", exclusive=True),
    ok(
        "queue.declare",
        configure("queue", "new"),
        read("queue", "new"),
        write("exchange", "x"),
        label=" dead-letter",
        queue="new",
        arguments={"x-dead-letter-exchange": "x"},
    ),
    ok(
        "queue.declare",
        configure("queue", "dead"),
        label=" dead-letter again",
        queue="dead",
        arguments={"x-dead-letter-exchange": "x"},
    ),
    ok("queue.declare", label=" passive", queue="q", passive=True),
    ok("queue.delete", configure("queue", "q"), queue="q"),
    ok("queue.delete", configure("queue", "absent"), label=" absent", queue="absent"),
    ok("queue.bind", write("queue", "q"), read("exchange", "x"), queue="q", exchange="x", routing_key="k"),
    ok("queue.unbind", write("queue", "q"), read("exchange", "x"), queue="q", exchange="x", routing_key="k"),
    ok("queue.purge", read("queue", "q"), queue="q"),
    ok("exchange.declare", configure("exchange", "new"), exchange="new", type="direct"),
    ok(
        "exchange.declare",
        configure("exchange", "new"),
        read("exchange", "new"),
        write("exchange", "x"),
        label=" alternate",
        exchange="new",
        type="direct",
        arguments={"alternate-exchange": "x"},
    ),
    ok(
        "exchange.declare",
        configure("exchange", "z"),
        label=" alternate again",
        exchange="z",
        type="direct",
        arguments={"alternate-exchange": "x"},
    ),
    ok("exchange.declare", label=" passive", exchange="x", type="direct", passive=True),
    ok("exchange.delete", configure("exchange", "x"), exchange="x"),
    ok("exchange.bind", write("exchange", "y"), read("exchange", "x"), destination="y", source="x"),
    ok("exchange.unbind", write("exchange", "y"), read("exchange", "x"), destination="y", source="x"),
    ok("basic.consume", read("queue", "q"), queue="q", consumer_tag="t"),
    row("basic.get", ("basic.get-empty",), read("queue", "q"), queue="q"),
    Row("basic.publish", publish("k", exchange="x"), (), (write("exchange", "x"),)),
    Row("basic.publish default", publish("q"), (), (write("exchange", "amq.default"),)),
    Row(
        "basic.publish mandatory",
        publish("nowhere", exchange="x", mandatory=True),
        ("basic.return", "<header>", "<body>"),
        (write("exchange", "x"),),
    ),
    ok("basic.qos", prefetch_count=1),
    ok("basic.cancel", consumer_tag="nobody"),
    ok("basic.recover", requeue=True),
    ok("confirm.select"),
    ok("tx.select"),
    ok("access.request"),
]


def permissions(needs: tuple[Need, ...]) -> dict[str, str]:
    found = {}
    for kind in ("configure", "write", "read"):
        patterns = [need.pattern() for need in needs if need.kind == kind]
        found[kind] = "|".join(patterns) or NOTHING
    return found


class RestrictedVhost:
    """A vhost, a user with changing permissions in it, and an administrator for the setup."""

    def __init__(self, broker: BrokerProcess, vhost: Vhost) -> None:
        self.broker = broker
        self.vhost = vhost.name
        self.admin = Peer(vhost.url)
        self.admin.handshake()
        self.admin.channel()
        self.make_user()
        self.peer = self.connect()

    def make_user(self) -> None:
        self.broker.api("PUT", f"/api/users/{USER}", {"password": PASSWORD, "tags": ""})
        self.allow()

    def url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.broker.amqp_port}/{quote(self.vhost, safe='')}"

    def connect(self) -> Peer:
        peer = Peer(self.url())
        peer.handshake()
        peer.channel()
        return peer

    def allow(self, *needs: Need) -> None:
        self.broker.api("PUT", f"/api/permissions/{quote(self.vhost, safe='')}/{USER}", permissions(needs))

    def allow_topics(self, exchange: str, write: str, read: str) -> None:
        path = f"/api/topic-permissions/{quote(self.vhost, safe='')}/{USER}"
        self.broker.api("PUT", path, {"exchange": exchange, "write": write, "read": read})

    def reset(self) -> None:
        """Set up queues and exchanges as the rows expect. Delete the objects named `new`."""
        for name in ("q", "new"):
            self.admin.call("queue.delete", queue=name)
        for name in ("x", "y", "new"):
            self.admin.call("exchange.delete", exchange=name)
        self.admin.call("queue.declare", queue="q")
        self.admin.call("queue.declare", queue="dead", arguments={"x-dead-letter-exchange": "x"})
        self.admin.call("exchange.declare", exchange="z", type="direct", arguments={"alternate-exchange": "x"})
        for name in ("x", "y"):
            self.admin.call("exchange.declare", exchange=name, type="direct")
        self.admin.call("exchange.bind", destination="y", source="x")

    def close(self) -> None:
        self.admin.socket.close()
        self.peer.socket.close()


@pytest.fixture(scope="module")
def restricted_vhost(amqpd_broker: BrokerProcess) -> Iterator[RestrictedVhost]:
    vhost = amqpd_broker.add_vhost()
    restricted = RestrictedVhost(amqpd_broker, vhost)
    yield restricted
    restricted.close()
    amqpd_broker.api("DELETE", f"/api/users/{USER}")
    amqpd_broker.delete_vhost(vhost.name)


def refusal(restricted_vhost: RestrictedVhost, need: Need) -> str | None:
    if not need.name:
        return None  # the broker generates the name
    return f"access to {need.thing} '{need.name}' in vhost '{restricted_vhost.vhost}' refused for user '{USER}'"


@pytest.mark.parametrize("row", TABLE, ids=[row.id for row in TABLE])
def test_method_needs_exactly_these_permissions(restricted_vhost: RestrictedVhost, row: Row) -> None:
    restricted_vhost.reset()
    for missing in row.needs:
        restricted_vhost.allow(*[need for need in row.needs if need is not missing])
        restricted_vhost.peer.send(row.frames)
        restricted_vhost.peer.expect_channel_close(403, text=refusal(restricted_vhost, missing))
    restricted_vhost.allow(*row.needs)
    restricted_vhost.peer.send(row.frames)
    for reply in row.replies:
        restricted_vhost.peer.expect(reply)
    restricted_vhost.peer.fence()
    restricted_vhost.peer.call("channel.close")
    restricted_vhost.peer.channel()


def test_refused_declare_creates_no_queue(restricted_vhost: RestrictedVhost) -> None:
    """A server-named queue is refused after its name was generated; it must not remain."""
    restricted_vhost.reset()
    restricted_vhost.allow()
    names = {queue["name"] for queue in _queues(restricted_vhost)}
    restricted_vhost.peer.method("queue.declare", queue="")
    restricted_vhost.peer.expect_channel_close(403)
    restricted_vhost.peer.method("queue.declare", queue="new", durable=True)
    restricted_vhost.peer.expect_channel_close(403)
    assert {queue["name"] for queue in _queues(restricted_vhost)} == names


def _queues(restricted_vhost: RestrictedVhost) -> list[dict[str, object]]:
    found = restricted_vhost.broker.api("GET", f"/api/queues/{quote(restricted_vhost.vhost, safe='')}")
    assert isinstance(found, list)
    return found


# -- topics ----------------------------------------------------------------------------------------------------------


def topic_cases() -> list[tuple[str, Callable[[str], bytes], str]]:
    return [
        ("publish", lambda key: publish(key, exchange="t"), "write"),
        ("bind", lambda key: method("queue.bind", queue="q", exchange="t", routing_key=key), "read"),
        ("unbind", lambda key: method("queue.unbind", queue="q", exchange="t", routing_key=key), "read"),
        ("exchange bind", lambda key: method("exchange.bind", destination="y", source="t", routing_key=key), "read"),
        (
            "exchange unbind",
            lambda key: method("exchange.unbind", destination="y", source="t", routing_key=key),
            "read",
        ),
    ]


@pytest.mark.parametrize(("label", "frames", "kind"), topic_cases(), ids=[case[0] for case in topic_cases()])
def test_topic_permission_applies_to_routing_key(
    restricted_vhost: RestrictedVhost, label: str, frames: Callable[[str], bytes], kind: str
) -> None:
    """Topic permissions apply on topic exchanges; `{username}` is replaced by the user's name."""
    restricted_vhost.reset()
    restricted_vhost.admin.call("exchange.declare", exchange="t", type="topic")
    all_needs = (Need("write", "", "(t|q|y)"), Need("read", "", "(t|q|y)"))
    restricted_vhost.allow(*all_needs)
    pattern = r"^{username}\."
    restricted_vhost.allow_topics("t", pattern if kind == "write" else "", pattern if kind == "read" else "")
    try:
        restricted_vhost.peer.send(frames("others.news"))
        restricted_vhost.peer.expect_channel_close(
            403,
            text=f"access to topic 'others.news' in exchange 't' in vhost '{restricted_vhost.vhost}' "
            f"refused for user '{USER}'",
        )
        restricted_vhost.peer.send(frames(f"{USER}.news"))
        if label != "publish":
            restricted_vhost.peer.read()
        restricted_vhost.peer.fence()
    finally:
        restricted_vhost.broker.api("DELETE", f"/api/topic-permissions/{quote(restricted_vhost.vhost, safe='')}/{USER}")
        restricted_vhost.admin.call("exchange.delete", exchange="t")


# -- while connected ---------------------------------------------------------------------------------------------------


def run_within_30_s(step: Callable[[], object]) -> None:
    """Run a step that must end within 30 s. One second is usual, but other load can slow the machine."""
    started = time.monotonic()
    step()
    assert time.monotonic() - started < 30


def test_permission_change_applies_to_cached_route(restricted_vhost: RestrictedVhost) -> None:
    """After 1,000 publishes through the cached route, the next publish is refused."""
    restricted_vhost.reset()
    restricted_vhost.allow(write("exchange", "x"))
    restricted_vhost.peer.send(publish("k", exchange="x") * 1000)
    restricted_vhost.peer.fence()
    restricted_vhost.allow()
    restricted_vhost.peer.send(publish("k", exchange="x"))
    restricted_vhost.peer.expect_channel_close(
        403, 60, 40, f"access to exchange 'x' in vhost '{restricted_vhost.vhost}' refused for user '{USER}'"
    )


def test_publish_is_refused_after_its_content(restricted_vhost: RestrictedVhost) -> None:
    """RabbitMQ: 403 after the content has arrived. The content frames are not taken for other frames."""
    restricted_vhost.reset()
    restricted_vhost.allow()
    frames = publish("k", b"", exchange="x")
    method_size = len(frames) - len(header(0))
    restricted_vhost.peer.send(frames[:method_size])
    restricted_vhost.peer.send(frames[method_size:])
    restricted_vhost.peer.expect_channel_close(403, 60, 40)
    restricted_vhost.peer.fence()


@pytest.mark.parametrize("deleted", ["permission", "user"])
def test_connection_without_vhost_access_is_closed(restricted_vhost: RestrictedVhost, deleted: str) -> None:
    """Expect 320 after the user, or its permission in the vhost, is deleted."""
    restricted_vhost.allow(read("queue", "q"))
    peer = restricted_vhost.connect()
    path = (
        f"/api/permissions/{quote(restricted_vhost.vhost, safe='')}/{USER}"
        if deleted == "permission"
        else f"/api/users/{USER}"
    )
    restricted_vhost.broker.api("DELETE", path)
    try:
        run_within_30_s(lambda: peer.expect_connection_close(320))
        peer.socket.close()
        refused = Peer(restricted_vhost.url())
        refused.start()
        refused.send(refused.start_ok())
        if deleted == "user":
            refused.expect("connection.close", 0)
        else:
            refused.expect("connection.tune", 0)
            refused.send(refused.tune_ok(), refused.open())
            close = refused.expect("connection.close", 0)
            assert close["reply_code"] == 530
            assert f"access to vhost '{restricted_vhost.vhost}' refused for user '{USER}'" in close["reply_text"]
        refused.socket.close()
    finally:
        restricted_vhost.peer.socket.close()
        restricted_vhost.make_user()
        restricted_vhost.peer = restricted_vhost.connect()


def test_password_change_keeps_connections_open(restricted_vhost: RestrictedVhost) -> None:
    restricted_vhost.allow(read("queue", "q"))
    restricted_vhost.broker.api("PUT", f"/api/users/{USER}", {"password": "other", "tags": ""})
    try:
        restricted_vhost.peer.fence()
        refused = Peer(restricted_vhost.url())
        refused.start()
        refused.send(refused.start_ok())
        assert refused.expect("connection.close", 0)["reply_code"] == 403
        refused.socket.close()
    finally:
        restricted_vhost.broker.api("PUT", f"/api/users/{USER}", {"password": PASSWORD, "tags": ""})
