"""A conversation as data: who says what, in which order. Nothing is expected here: RabbitMQ's record says what is due.

Every conversation has a vhost of its own, which `guest` may do everything in. In names, paths and bodies `{v}` stands
for its name and `{u}` for that of the one user a conversation may make; what brokers say is written down with the same
marks.
A party (`a`, `b`, ...) is a connection and opens its channels as it needs them; one that was closed comes anew.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .party import wire


@dataclass(frozen=True)
class Step:
    """One thing done, after which everybody listens.

    quiet_ms: for how long everybody listens at least, as something needs time to happen.
    """

    on: str = "a"
    quiet_ms: int = 0


@dataclass(frozen=True)
class Say(Step):
    """A method. `method` and `arguments` as tests/conformance/wire.py has them."""

    method: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    channel: int = 1


@dataclass(frozen=True)
class Publish(Step):
    """basic.publish with its content, `count` times; several bodies are told apart by a number behind each."""

    key: str = ""
    exchange: str = ""
    body: str = "x"
    properties: dict[str, Any] = field(default_factory=dict)
    mandatory: bool = False
    immediate: bool = False
    count: int = 1
    channel: int = 1


@dataclass(frozen=True)
class Http(Step):
    """A request of the management API. show: which fields of an answer are written down; None: its status alone (an
    error's `reason` always). `on` is the user, a for guest. late_ms: for how long RabbitMQ may show something older; a
    recording waits for it, ours has to know at once.
    """

    verb: str = "GET"
    path: str = ""
    body: Any = None
    show: tuple[str, ...] | None = None
    late_ms: int = 0


@dataclass(frozen=True)
class Ctl(Step):
    """A command line of rabbitmqctl or another of RabbitMQ's tools; its exit code is written down.

    show: what of its standard output is, too: `columns` (the header of a list), `rows` (all lines, in the order of
    their texts), `mine` (those of them about this conversation's vhost and user), `text` (as it is), `keys` (those of
    JSON, with their paths).
    """

    words: tuple[str, ...] = ()
    show: str = ""
    stdin: str = ""


@dataclass(frozen=True)
class Connect(Step):
    """Opens a connection; what came of it is written down. user, password, vhost: marks are filled in."""

    user: str = "guest"
    password: str = "guest"
    vhost: str = "{v}"


@dataclass(frozen=True)
class Leave(Step):
    """The party's socket is gone, without a word."""


@dataclass(frozen=True)
class Wait(Step):
    """Time passes."""

    ms: int = 0


@dataclass(frozen=True)
class Conversation:
    """name: `family/what`. steps: in order."""

    name: str
    steps: tuple[Step, ...]
    alone: bool = False
    """Whether it is about the whole node, so that no other may be held meanwhile."""

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    def fingerprint(self) -> str:
        """Of the steps: a record made of others is none of this conversation's."""
        return hashlib.sha256(repr(self.steps).encode()).hexdigest()[:12]


def talk(name: str, *steps: Step | Sequence[Step], alone: bool = False) -> Conversation:
    """A conversation; steps may come in groups."""
    flat: list[Step] = []
    for step in steps:
        flat += [step] if isinstance(step, Step) else step
    return Conversation(name, tuple(flat), alone)


def say(method: str, /, *, on: str = "a", channel: int = 1, quiet_ms: int = 0, **arguments: Any) -> Say:
    return Say(on, quiet_ms, method, arguments, channel)


def queue(name: str, /, *, on: str = "a", args: dict[str, Any] | None = None, **flags: Any) -> Say:
    """queue.declare; durable unless it says otherwise."""
    given: dict[str, Any] = {"queue": name, "durable": True, **flags}
    return say("queue.declare", on=on, **given, **({"arguments": args} if args is not None else {}))


def exchange(
    name: str, type: str = "direct", *, on: str = "a", args: dict[str, Any] | None = None, **flags: Any
) -> Say:
    given: dict[str, Any] = {"exchange": name, "type": type, "durable": True, **flags}
    return say("exchange.declare", on=on, **given, **({"arguments": args} if args is not None else {}))


def bind(queue: str, exchange: str, key: str = "", **more: Any) -> Say:
    return say("queue.bind", queue=queue, exchange=exchange, routing_key=key, **more)


def publish(
    key: str,
    body: str = "x",
    *,
    exchange: str = "",
    on: str = "a",
    channel: int = 1,
    mandatory: bool = False,
    immediate: bool = False,
    count: int = 1,
    quiet_ms: int = 0,
    **properties: Any,
) -> Publish:
    return Publish(on, quiet_ms, key, exchange, body, properties, mandatory, immediate, count, channel)


def get(queue: str, count: int = 1, *, no_ack: bool = True, on: str = "a") -> list[Step]:
    return [say("basic.get", queue=queue, no_ack=no_ack, on=on) for _ in range(count)]


def consume(queue: str, tag: str = "c", *, on: str = "a", args: dict[str, Any] | None = None, **flags: Any) -> Say:
    return say("basic.consume", queue=queue, consumer_tag=tag, on=on, **({"arguments": args} if args else {}), **flags)


def http(
    verb: str, path: str, body: Any = None, *, show: tuple[str, ...] | None = None, on: str = "a", late_ms: int = 0
) -> Http:
    return Http(on, 0, verb, path, body, show, late_ms)


def ctl(line: str, show: str = "", *, stdin: str = "") -> Ctl:
    """line: as a shell reads it. rabbitmqctl's, unless its first word is another tool's name."""
    words = tuple(shlex.split(line))
    if not words[0].startswith("rabbitmq-"):
        words = ("rabbitmqctl", *words)
    return Ctl(words=words, show=show, stdin=stdin)


def wait(ms: int) -> Wait:
    return Wait(ms=ms)


def wire_publish(properties: dict[str, Any], step: Publish, key: str, exchange: str) -> bytes:
    """The bytes of a publish step, all its messages in one piece."""
    return b"".join(
        wire.publish(
            key,
            (step.body + (f"{number}" if step.count > 1 else "")).encode(),
            wire.properties(**properties),
            exchange=exchange,
            channel=step.channel,
            mandatory=step.mandatory,
            immediate=step.immediate,
        )
        for number in range(1, step.count + 1)
    )
