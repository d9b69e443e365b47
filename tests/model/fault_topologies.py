"""Topologies of the fault programs: where a confirmed message must be after a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pamqp.commands as spec

Headers = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Topology:
    """Declarations, and a publish that uses them.

    Attributes:
        groups: a message must be in one queue of each group.
        headers: of a message, by its number.
        keys: routing keys, used in turn.
        repeats: messages are published again with the same number, since one is stored only.
        kafka: a producer of Kafka sends to queue q, too.
        consumes: messages of q are consumed, too.
    """

    methods: list[Any]
    groups: list[list[str]]
    exchange: str = "x"
    headers: Headers = field(default=lambda number: {})
    keys: tuple[str, ...] = ("q",)
    repeats: bool = False
    kafka: bool = False
    consumes: bool = True


def _queue(name: str, **arguments: Any) -> Any:
    return spec.Queue.Declare(queue=name, durable=True, arguments=_table(arguments))


def _exchange(kind: str, name: str = "x", **arguments: Any) -> Any:
    return spec.Exchange.Declare(exchange=name, exchange_type=kind, durable=True, arguments=_table(arguments))


def _bind(queue: str, exchange: str = "x", key: str = "") -> Any:
    return spec.Queue.Bind(queue=queue, exchange=exchange, routing_key=key)


def _table(arguments: dict[str, Any]) -> dict[str, Any]:
    return {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}


def _single(**arguments: Any) -> Topology:
    """Return the topology of one queue without an exchange."""
    return Topology([_queue("q", **arguments)], [["q"]], "", kafka=True)


def _dying(target: list[Any], groups: list[list[str]], **arguments: Any) -> Topology:
    """Return a topology in which messages of q become dead letters."""
    return Topology([*target, _queue("q", **arguments)], groups, "", kafka=True)


def _delayed(ms: int) -> Topology:
    methods = [_exchange("x-delayed-message", delayed_type="fanout"), _queue("q"), _queue("r", queue_type="quorum")]
    groups = [["q"], ["r"]]
    return Topology([*methods, _bind("q"), _bind("r")], groups, headers=lambda number: {"x-delay": ms + number % 5})


def _once(**arguments: Any) -> Topology:
    methods = [_exchange("x-message-deduplication", cache_size=50, **arguments), _queue("q")]
    methods += [_queue("r", queue_type="quorum"), _bind("q"), _bind("r")]
    return Topology(methods, [["q"], ["r"]], headers=lambda number: {"x-deduplication-header": number}, repeats=True)


_TO_D: Final = {"dead_letter_exchange": "", "dead_letter_routing_key": "d"}
_LATER: Final = [_exchange("x-delayed-message", delayed_type="fanout"), _queue("r"), _bind("r")]

TOPOLOGIES: Final[dict[str, Topology]] = {
    "classic": _single(),
    "quorum": _single(queue_type="quorum"),
    "stream": _single(queue_type="stream"),
    "priorities": _single(max_priority=3),
    "groups": Topology([_queue("q", group_by="header:g")], [["q"]], "", lambda number: {"g": str(number % 3)}),
    "retain": Topology([_queue("q", retain="3D")], [["q"]], "", kafka=True, consumes=False),
    "retries": _single(queue_type="quorum", delayed_retry_type="all", delayed_retry_min=200),
    "reject": _single(max_length=6, overflow="reject-publish"),
    "alternate": Topology(
        [
            _exchange("fanout", "a"),
            spec.Exchange.Declare(
                exchange="x", exchange_type="direct", durable=True, arguments={"alternate-exchange": "a"}
            ),
            _queue("q"),
            _bind("q", "a"),
        ],
        [["q"]],
    ),
    "exchange to exchange": Topology(
        [
            _exchange("topic"),
            _exchange("fanout", "y"),
            spec.Exchange.Bind(source="x", destination="y", routing_key="#"),
            *(_queue("q"), _queue("r", queue_type="quorum"), _queue("s", queue_type="stream")),
            *(_bind("q", "y"), _bind("r", "y"), _bind("s", key="#")),
        ],
        [["q"], ["r"], ["s"]],
    ),
    "copies": Topology(
        [_queue("q"), _queue("r", queue_type="quorum"), _queue("s", max_priority=2)],
        [["q"], ["r"], ["s"]],
        "",
        lambda number: {"CC": ["r"], "BCC": ["s"]},
    ),
    "hash": Topology(
        [_exchange("x-consistent-hash"), _queue("q"), _queue("r"), _bind("q", key="1"), _bind("r", key="2")],
        [["q", "r"]],
        keys=tuple("abcdefgh"),
    ),
    "partitions": Topology(
        [
            *(_queue(name, queue_type="stream") for name in ("q", "r")),
            *(_exchange("direct"), _bind("q", key="a"), _bind("r", key="b")),
        ],
        [["q", "r"]],
        keys=("a", "b"),
    ),
    "delayed": _delayed(300),
    "delayed for long": _delayed(20 * 60_000),
    "once": _once(),
    "once on disk": _once(cache_persistence="disk"),
    "once and delayed": Topology(
        [
            _exchange("x-delayed-message", delayed_type="x-message-deduplication", cache_size=50),
            *(_queue("q"), _bind("q")),
        ],
        [["q"]],
        headers=lambda number: {"x-deduplication-header": number, "x-delay": 300},
        repeats=True,
    ),
    "numbered": Topology(
        [_queue("q"), _queue("r", max_priority=2), _exchange("fanout"), _bind("q"), _bind("r")],
        [["q"], ["r"]],
        headers=lambda number: {"x-producer-id": 7, "x-producer-epoch": 0, "x-sequence": number},
    ),
    "drop-head": _dying([_queue("d")], [["q", "d"]], max_length=3, **_TO_D),
    "drop-head, quorum": _dying(
        [_queue("d", queue_type="quorum")], [["q", "d"]], queue_type="quorum", max_length=3, **_TO_D
    ),
    "reject-publish-dlx": _dying([_queue("d")], [["q", "d"]], max_length=3, overflow="reject-publish-dlx", **_TO_D),
    "expired": _dying(
        [_exchange("fanout"), _queue("d", queue_type="stream"), _queue("e"), _bind("d"), _bind("e")],
        [["q", "d"], ["q", "e"]],
        message_ttl=150,
        dead_letter_exchange="x",
    ),
    "expired twice": _dying(
        [
            _queue("c"),
            _queue("d", message_ttl=100, dead_letter_exchange="", dead_letter_routing_key="c"),
        ],
        [["q", "d", "c"]],
        message_ttl=100,
        **_TO_D,
    ),
    "expired to delayed": Topology(
        [*_LATER, _queue("q", message_ttl=200, dead_letter_exchange="x")],
        [["q", "r"]],
        "",
        lambda number: {"x-delay": 300},
    ),
    "moved": Topology([_queue("q"), _queue("r", queue_type="quorum")], [["q", "r"]], ""),
    "moved to delayed": Topology([*_LATER, _queue("q")], [["q", "r"]], "", lambda number: {"x-delay": 300}),
}
