"""queue.declare: every argument with every kind of value and queue, and the equivalence of a second declaration."""

from __future__ import annotations

from typing import Any

from interop.compare.party import wire
from interop.compare.steps import Conversation, Step, queue, say, talk

KINDS = {"classic": "classic", "quorum": "quorum", "stream": "stream"}

ANY_VALUES: tuple[Any, ...] = (1, 0, -1, 2**31, 2**63 - 1, "text", "", True, None, 1.5, [1], {"a": 1})

GOOD: dict[str, tuple[Any, Any]] = {
    # An argument, a valid value, and another valid value.
    "x-message-ttl": (60000, 50000),
    "x-expires": (60000, 50000),
    "x-max-length": (10, 11),
    "x-max-length-bytes": (1000, 1001),
    "x-overflow": ("drop-head", "reject-publish"),
    "x-dead-letter-exchange": ("amq.fanout", "amq.direct"),
    "x-dead-letter-routing-key": ("k", "l"),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
    "x-max-priority": (5, 6),
    "x-single-active-consumer": (True, False),
    "x-queue-type": ("classic", "quorum"),
    "x-delivery-limit": (3, 4),
    "x-queue-mode": ("lazy", "default"),
    "x-queue-version": (1, 2),
    "x-max-in-memory-length": (10, 11),
    "x-max-in-memory-bytes": (1000, 1001),
    "x-quorum-initial-group-size": (1, 3),
    "x-initial-cluster-size": (1, 3),
    "x-queue-leader-locator": ("client-local", "balanced"),
    "x-queue-master-locator": ("client-local", "min-masters"),
    "x-max-age": ("1h", "2h"),
    "x-stream-max-segment-size-bytes": (1000000, 2000000),
    "x-unheard-of": ("a", "b"),
}


def typed(kind: str, argument: str, value: Any) -> dict[str, Any]:
    table = {} if argument == "x-queue-type" else {"x-queue-type": kind}
    if argument == "x-dead-letter-routing-key":
        table["x-dead-letter-exchange"] = "amq.fanout"
    return {**table, argument: value}


def values(kind: str, argument: str) -> Conversation:
    """Every value once, each with a new queue."""
    tried = [*GOOD[argument], *ANY_VALUES]
    if argument == "x-queue-master-locator" and kind == "classic":
        tried = [*GOOD[argument], "random"]  # any other value crashes RabbitMQ's own process: 541
    if argument == "x-max-age":
        tried += ["1", "h", "1x", "1Y", "30s", "-1h", "1.5h", " 1h", "10M", "2D", "0s"]
    if argument == "x-overflow":
        tried += ["reject-publish-dlx", "Drop-Head"]
    if argument == "x-max-priority":
        tried += [255, 256, wire.Field("b", 5), wire.Field("l", 5)]
    if argument == "x-expires":
        tried += [2**32 - 1, 2**32]
    if argument == "x-queue-type":
        tried += ["stream", "Classic", "nosuch"]
    steps = [queue(f"q{place}", args=typed(kind, argument, value)) for place, value in enumerate(tried)]
    return talk(f"declare/{kind} {argument} values", *steps)


def again(kind: str, argument: str) -> Conversation:
    """Declare with a value, then with the same value (another integer type), another value, none; declare without, then
    with.
    """
    one, other = GOOD[argument]
    steps: list[Step] = [queue("with", args=typed(kind, argument, one)), queue("with", args=typed(kind, argument, one))]
    if isinstance(one, int) and not isinstance(one, bool):
        steps.append(queue("with", args=typed(kind, argument, wire.Field("l", one))))
        steps.append(queue("with", args=typed(kind, argument, wire.Field("s", one % 30000))))
        steps.append(queue("with", args=typed(kind, argument, f"{one}")))
    none = {} if argument == "x-queue-type" else {"x-queue-type": kind}
    steps += [
        queue("with", args=typed(kind, argument, other)),
        queue("with", args=none),
        queue("with", passive=True),
        queue("without", args=none),
        queue("without", args=typed(kind, argument, one)),
        queue("without", args=none),
    ]
    return talk(f"declare/{kind} {argument} again", *steps)


CLASSES: tuple[Any, ...] = (
    # A value of each type class, the integer widths first.
    *[wire.Field(letter, 5) for letter in "bBsuil"],
    wire.Field("f", 5.0),
    wire.Field("I", 5),
    wire.Field("T", 5),
    5.0,
    5.5,
    1e20,
    True,
    "5",
    "true",
    wire.Field("x", b"5"),
    None,
    {},
    {"a": 1, "b": "x"},
    [1, "a"],
)
WIDTHS = 7
"""How many of them equal a later value in another width; amqpd does not distinguish widths."""

_NUMBER = {"x-max-length": 5}
_TEXT = {"x-dead-letter-exchange": "5"}
_FLAG = {"x-single-active-consumer": True}

TYPE_CLASSES = [
    talk(
        "declare/classes of a number",
        queue("q", args=_NUMBER),
        [queue("q", args={"x-max-length": each}) for each in CLASSES],
    ),
    talk(
        "declare/classes of a text",
        queue("q", args=_TEXT),
        [queue("q", args={"x-dead-letter-exchange": each}) for each in CLASSES],
    ),
    talk(
        "declare/classes of a flag",
        queue("q", args=_FLAG),
        [queue("q", args={"x-single-active-consumer": each}) for each in CLASSES],
    ),
    talk(
        "declare/classes beside none",
        queue("q"),
        [queue("q", args={"x-max-length": each}) for each in CLASSES[WIDTHS:]],
    ),
    talk(
        "declare/classes of an alternate exchange",
        *[
            say("exchange.declare", exchange="x", type="fanout", durable=True, arguments={"alternate-exchange": each})
            for each in ("5", *CLASSES)
        ],
    ),
]
"""A declaration with a value of another class is inequivalent. (A decimal crashes RabbitMQ's own process: 541.)"""


def flags(kind: str) -> list[Conversation]:
    args = {"x-queue-type": kind}
    found = [
        talk(
            f"declare/{kind} flags",
            queue("d", args=args),
            queue("t", args=args, durable=False),
            queue("e", args=args, exclusive=True),
            queue("te", args=args, exclusive=True, durable=False),
            queue("a", args=args, auto_delete=True),
            queue("ta", args=args, auto_delete=True, durable=False),
            queue("ea", args=args, auto_delete=True, exclusive=True),
        ),
        talk(
            f"declare/{kind} flags again",
            queue("d", args=args),
            queue("d", args=args, durable=False),
            queue("d", args=args, auto_delete=True),
            queue("d", args=args, exclusive=True),
            queue("d", args=args, exclusive=True, durable=False, auto_delete=True),
            queue("d"),
            queue("d", args={}),
            queue("d", args={"x-queue-type": "classic"}),
            queue("d", args={"x-queue-type": "quorum"}),
            queue("d", args={"x-queue-type": "stream"}),
        ),
        talk(
            f"declare/{kind} counts and ends",
            queue("q", args=args),
            queue("q", args=args, passive=True),
            say("queue.purge", queue="q"),
            say("queue.delete", queue="q", if_unused=True, if_empty=True),
            queue("q", passive=True),
            say("queue.delete", queue="q"),
        ),
    ]
    return found


NAMES = [
    talk(
        "names/queues",
        say("queue.declare", queue="", durable=False),
        say("queue.declare", queue="", passive=True),
        say("queue.declare", queue="amq.mine"),
        say("queue.declare", queue="amq.gen-mine", passive=True),
        queue("two\nlines"),
        queue("twolines", passive=True),
        queue("q" * 255),
        queue(" with spaces ünïcode "),
        queue("{v}"),
    ),
    talk(
        "names/last declared",
        say("queue.declare", queue="", passive=True),
        say("basic.get", queue=""),
        say("queue.purge", queue=""),
        say("queue.delete", queue=""),
        say("queue.bind", queue="", exchange="amq.direct"),
        say("basic.consume", queue=""),
        queue("last"),
        say("basic.get", queue=""),
        say("queue.purge", queue=""),
        say("queue.bind", queue="", exchange="amq.direct"),
        say("queue.bind", queue="", exchange="amq.direct", routing_key="last"),
        say("basic.consume", queue="", consumer_tag="c"),
        say("queue.delete", queue=""),
        say("basic.get", queue=""),
    ),
    talk(
        "names/exclusive to another",
        say("queue.declare", queue="q", exclusive=True),
        *[
            say(method, on="b", queue="q", **more)
            for method, more in (
                ("queue.declare", {}),
                ("queue.declare", {"passive": True}),
                ("queue.declare", {"exclusive": True}),
                ("queue.bind", {"exchange": "amq.fanout"}),
                ("queue.unbind", {"exchange": "amq.fanout"}),
                ("queue.purge", {}),
                ("queue.delete", {}),
                ("basic.get", {}),
                ("basic.consume", {}),
            )
        ],
        say("queue.declare", queue="q", exclusive=False),
        say("queue.declare", queue="q", exclusive=True),
        say("queue.delete", queue="q"),
        say("queue.declare", queue="q", on="b", passive=True),
    ),
    talk(
        "names/missing queue",
        *[
            say(method, queue="nosuch", **more)
            for method, more in (
                ("queue.declare", {"passive": True}),
                ("queue.bind", {"exchange": "amq.fanout"}),
                ("queue.unbind", {"exchange": "amq.fanout"}),
                ("queue.purge", {}),
                ("queue.delete", {}),
                ("queue.delete", {"if_unused": True}),
                ("queue.delete", {"if_empty": True}),
                ("basic.get", {}),
                ("basic.consume", {}),
            )
        ],
    ),
    talk(
        "names/missing exchange",
        queue("q"),
        say("exchange.declare", exchange="nosuch", type="direct", passive=True),
        say("queue.bind", queue="q", exchange="nosuch"),
        say("queue.unbind", queue="q", exchange="nosuch"),
        say("exchange.bind", destination="amq.direct", source="nosuch"),
        say("exchange.bind", destination="nosuch", source="amq.direct"),
        say("exchange.unbind", destination="nosuch", source="amq.direct"),
        say("exchange.delete", exchange="nosuch"),
    ),
]

GRID = [
    (kind, argument)
    for kind in KINDS
    for argument in GOOD
    if argument != "x-queue-type" or kind == "classic"
    if argument != "x-single-active-consumer" or kind != "stream"  # in streams.py: amqpd supports it
]

CONVERSATIONS: list[Conversation] = [
    *[values(kind, argument) for kind, argument in GRID],
    *[again(kind, argument) for kind, argument in GRID],
    *[conversation for kind in KINDS for conversation in flags(kind)],
    *TYPE_CLASSES,
    *NAMES,
]
