"""A conversation as data: the steps of its parties, in order. No answer is expected here: RabbitMQ's record defines it.

Every conversation has its own vhost with all permissions for `guest`. In names, paths and bodies `{v}` means the
vhost's name and `{u}` the one user that a conversation may create; recorded answers have the same marks.

A party (`a`, `b`, ...) is a connection that opens its channels as needed; a closed party reconnects.
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
    """One action, after which all parties listen.

    quiet_ms: the minimum listening time, if an effect needs time.
    """

    on: str = "a"
    quiet_ms: int = 0


@dataclass(frozen=True)
class Say(Step):
    """Send a method. `method` and `arguments` as in tests/conformance/wire.py."""

    method: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    channel: int = 1


@dataclass(frozen=True)
class Publish(Step):
    """basic.publish with content, `count` times; several bodies get a number as suffix."""

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
    """A request of the management API. show: which fields of an answer are recorded; None: only its status (and always
    an error's `reason`). `on` is the user, a for guest. late_ms: for how long RabbitMQ may show old data; a recording
    waits for it, amqpd must be current at once.
    """

    verb: str = "GET"
    path: str = ""
    body: Any = None
    show: tuple[str, ...] | None = None
    late_ms: int = 0


@dataclass(frozen=True)
class Ctl(Step):
    """A command line of rabbitmqctl or another RabbitMQ tool; its exit code is recorded.

    show: the recorded part of its output: `columns` (the header of a list), `rows` (all lines, sorted), `mine` (those
    about this conversation's vhost and user), `text` (unchanged), `keys` (of JSON, with their paths).
    """

    words: tuple[str, ...] = ()
    show: str = ""
    stdin: str = ""


@dataclass(frozen=True)
class Connect(Step):
    """Open a connection and record the result. user, password, vhost: marks are replaced."""

    user: str = "guest"
    password: str = "guest"
    vhost: str = "{v}"


@dataclass(frozen=True)
class Leave(Step):
    """Close the party's socket without a method."""


@dataclass(frozen=True)
class Wait(Step):
    """Wait."""

    ms: int = 0


@dataclass(frozen=True)
class Conversation:
    """name: `family/subject`. steps: in order."""

    name: str
    steps: tuple[Step, ...]
    alone: bool = False
    """True if it affects the whole node, so that no other conversation may run meanwhile."""

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    def fingerprint(self) -> str:
        """The fingerprint of the steps: a record of other steps is not valid."""
        return hashlib.sha256(repr(self.steps).encode()).hexdigest()[:12]


def talk(name: str, *steps: Step | Sequence[Step], alone: bool = False) -> Conversation:
    """Return a conversation; steps may be grouped."""
    flat: list[Step] = []
    for step in steps:
        flat += [step] if isinstance(step, Step) else step
    return Conversation(name, tuple(flat), alone)


def say(method: str, /, *, on: str = "a", channel: int = 1, quiet_ms: int = 0, **arguments: Any) -> Say:
    return Say(on, quiet_ms, method, arguments, channel)


def queue(name: str, /, *, on: str = "a", args: dict[str, Any] | None = None, **flags: Any) -> Say:
    """queue.declare; durable by default."""
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
    """line: as in a shell; a command of rabbitmqctl unless its first word is another tool's name."""
    words = tuple(shlex.split(line))
    if not words[0].startswith("rabbitmq-"):
        words = ("rabbitmqctl", *words)
    return Ctl(words=words, show=show, stdin=stdin)


def wait(ms: int) -> Wait:
    return Wait(ms=ms)


def wire_publish(properties: dict[str, Any], step: Publish, key: str, exchange: str) -> bytes:
    """Return the bytes of a publish step with all its messages."""
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
