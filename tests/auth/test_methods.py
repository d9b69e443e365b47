"""Which method asks for which permission: every cell of RabbitMQ's table, over the connection of a limited user.

Each row is tried once with exactly what it needs, and once more for each of its needs without that one. The permissions
change while the connection is open, so that each cell also shows that nothing older is remembered.
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
    """id; what is said; the replies that come when it is allowed; what it needs, in the order in which it is asked."""

    id: str
    say: bytes
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


class Realm:
    """A vhost, a user with changing permissions in it, and an administrator who tidies up."""

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

    def tidy(self) -> None:
        """Queue q (empty), exchanges x and y, bound as the rows expect; nothing new."""
        for name in ("q", "new"):
            self.admin.call("queue.delete", queue=name)
        for name in ("x", "y", "new"):
            self.admin.call("exchange.delete", exchange=name)
        self.admin.call("queue.declare", queue="q")
        for name in ("x", "y"):
            self.admin.call("exchange.declare", exchange=name, type="direct")
        self.admin.call("exchange.bind", destination="y", source="x")

    def close(self) -> None:
        self.admin.socket.close()
        self.peer.socket.close()


@pytest.fixture(scope="module")
def realm(amqpd_broker: BrokerProcess) -> Iterator[Realm]:
    vhost = amqpd_broker.add_vhost()
    made = Realm(amqpd_broker, vhost)
    yield made
    made.close()
    amqpd_broker.api("DELETE", f"/api/users/{USER}")
    amqpd_broker.delete_vhost(vhost.name)


def refusal(realm: Realm, need: Need) -> str | None:
    if not need.name:
        return None  # the broker invents the name
    return f"access to {need.thing} '{need.name}' in vhost '{realm.vhost}' refused for user '{USER}'"


@pytest.mark.parametrize("row", TABLE, ids=[row.id for row in TABLE])
def test_needs_this_and_nothing_else(realm: Realm, row: Row) -> None:
    realm.tidy()
    for missing in row.needs:
        realm.allow(*[need for need in row.needs if need is not missing])
        realm.peer.send(row.say)
        realm.peer.expect_channel_close(403, text=refusal(realm, missing))
    realm.allow(*row.needs)
    realm.peer.send(row.say)
    for reply in row.replies:
        realm.peer.expect(reply)
    realm.peer.fence()
    realm.peer.call("channel.close")
    realm.peer.channel()


def test_nothing_is_made_by_what_is_refused(realm: Realm) -> None:
    """A server-named queue is refused after its name is known; it must not stay."""
    realm.tidy()
    realm.allow()
    names = {queue["name"] for queue in _queues(realm)}
    realm.peer.method("queue.declare", queue="")
    realm.peer.expect_channel_close(403)
    realm.peer.method("queue.declare", queue="new", durable=True)
    realm.peer.expect_channel_close(403)
    assert {queue["name"] for queue in _queues(realm)} == names


def _queues(realm: Realm) -> list[dict[str, object]]:
    found = realm.broker.api("GET", f"/api/queues/{quote(realm.vhost, safe='')}")
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


@pytest.mark.parametrize(("label", "say", "kind"), topic_cases(), ids=[case[0] for case in topic_cases()])
def test_topic_permissions(realm: Realm, label: str, say: Callable[[str], bytes], kind: str) -> None:
    """They judge the routing key on topic exchanges; `{username}` stands for the user's name."""
    realm.tidy()
    realm.admin.call("exchange.declare", exchange="t", type="topic")
    everything = (Need("write", "", "(t|q|y)"), Need("read", "", "(t|q|y)"))
    realm.allow(*everything)
    pattern = r"^{username}\."
    realm.allow_topics("t", pattern if kind == "write" else "", pattern if kind == "read" else "")
    try:
        realm.peer.send(say("others.news"))
        realm.peer.expect_channel_close(
            403,
            text=f"access to topic 'others.news' in exchange 't' in vhost '{realm.vhost}' refused for user '{USER}'",
        )
        realm.peer.send(say(f"{USER}.news"))
        if label != "publish":
            realm.peer.read()
        realm.peer.fence()
    finally:
        realm.broker.api("DELETE", f"/api/topic-permissions/{quote(realm.vhost, safe='')}/{USER}")
        realm.admin.call("exchange.delete", exchange="t")


# -- while connected ---------------------------------------------------------------------------------------------------


def within_half_a_minute(step: Callable[[], object]) -> None:
    """A second is usual; a machine that others use too may take longer."""
    begun = time.monotonic()
    step()
    assert time.monotonic() - begun < 30


def test_a_cached_route_is_checked_anew(realm: Realm) -> None:
    """A publisher that has published a thousand times loses its permission with the next one."""
    realm.tidy()
    realm.allow(write("exchange", "x"))
    realm.peer.send(publish("k", exchange="x") * 1000)
    realm.peer.fence()
    realm.allow()
    realm.peer.send(publish("k", exchange="x"))
    realm.peer.expect_channel_close(
        403, 60, 40, f"access to exchange 'x' in vhost '{realm.vhost}' refused for user '{USER}'"
    )


def test_a_publish_is_refused_at_its_end(realm: Realm) -> None:
    """rabbit: 403 once the content is there; the content's frames are not taken for something else."""
    realm.tidy()
    realm.allow()
    said = publish("k", b"", exchange="x")
    method_size = len(said) - len(header(0))
    realm.peer.send(said[:method_size])
    realm.peer.send(said[method_size:])
    realm.peer.expect_channel_close(403, 60, 40)
    realm.peer.fence()


@pytest.mark.parametrize("way", ["permission", "user"])
def test_who_loses_the_vhost_is_disconnected(realm: Realm, way: str) -> None:
    """320 within a second: for a deleted user, and for one whose permission in the vhost is gone."""
    realm.allow(read("queue", "q"))
    peer = realm.connect()
    path = f"/api/permissions/{quote(realm.vhost, safe='')}/{USER}" if way == "permission" else f"/api/users/{USER}"
    realm.broker.api("DELETE", path)
    try:
        within_half_a_minute(lambda: peer.expect_connection_close(320))
        peer.socket.close()
        refused = Peer(realm.url())
        refused.start()
        refused.send(refused.start_ok())
        if way == "user":
            refused.expect("connection.close", 0)
        else:
            refused.expect("connection.tune", 0)
            refused.send(refused.tune_ok(), refused.open())
            close = refused.expect("connection.close", 0)
            assert close["reply_code"] == 530
            assert f"access to vhost '{realm.vhost}' refused for user '{USER}'" in close["reply_text"]
        refused.socket.close()
    finally:
        realm.peer.socket.close()
        realm.make_user()
        realm.peer = realm.connect()


def test_a_new_password_leaves_connections_alone(realm: Realm) -> None:
    realm.allow(read("queue", "q"))
    realm.broker.api("PUT", f"/api/users/{USER}", {"password": "other", "tags": ""})
    try:
        realm.peer.fence()
        refused = Peer(realm.url())
        refused.start()
        refused.send(refused.start_ok())
        assert refused.expect("connection.close", 0)["reply_code"] == 403
        refused.socket.close()
    finally:
        realm.broker.api("PUT", f"/api/users/{USER}", {"password": PASSWORD, "tags": ""})
