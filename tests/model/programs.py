"""Random programs for a broker: what a seed makes of exchanges, queues, policies, messages and time.

A program is a list of operations, plain tuples of names and small numbers, so that it can be printed, cut down and said
again. An operation that makes no sense when its turn comes (its queue is gone) is passed over by who runs it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

Op = tuple[Any, ...]

EXCHANGES: Final = ("x0", "x1", "x2", "x3")
QUEUES: Final = ("q0", "q1", "q2", "q3", "q4")
KEYS: Final = ("a", "b", "a.b", "q0", "q1", "q2", "q3")
PATTERNS: Final = ("a", "b", "a.b", "a.*", "#", "*", "q0")
TYPES: Final = ("direct", "fanout", "topic", "headers")
HEADERS: Final = ({}, {"h0": "1"}, {"h0": "1", "h1": "1"}, {"h0": "2", "h1": "1"})
MATCHING: Final = (
    {},
    {"h0": "1"},
    {"x-match": "all", "h0": "1", "h1": "1"},
    {"x-match": "any", "h0": "1", "h1": "1"},
    {"x-match": "any"},
    {"x-match": "all", "h0": "2"},
)
"""Arguments of bindings from headers exchanges."""
TTLS_MS: Final = (0, 100, 200, 500)
LENGTHS: Final = (0, 1, 2, 3)
SIZES: Final = (0, 8, 20)
OVERFLOWS: Final = ("drop-head", "reject-publish", "reject-publish-dlx")
POLICIES: Final = ("p0", "p1", "o0")
"""Those that begin with o are operator policies."""


def program(seed: int, size: int) -> list[Op]:
    """Deterministic. size: how many operations follow the first topology."""
    rng = random.Random(seed)
    ops = [_exchange(rng, name) for name in EXCHANGES[: rng.randint(1, 4)]]
    ops += [_queue(rng, name) for name in QUEUES[: rng.randint(1, 5)]]
    ops += [_bind(rng) for _ in range(rng.randint(2, 8))]
    makers, weights = zip(*OPERATIONS, strict=True)
    ops += [rng.choices(makers, weights)[0](rng) for _ in range(size)]
    return ops


def _exchange(rng: random.Random, name: str | None = None) -> Op:
    alternate = rng.choice(EXCHANGES) if rng.random() < 0.3 else None
    return ("exchange", name or rng.choice(EXCHANGES), rng.choice(TYPES), alternate, rng.random() < 0.8)


def _queue(rng: random.Random, name: str | None = None) -> Op:
    kind = rng.choices(("classic", "quorum", "stream"), (6, 3, 1))[0]
    args: dict[str, Any] = {"x-queue-type": kind}
    if kind != "stream":
        args |= {f"x-{key}": value for key, value in _limits(rng, 0.3).items()}
        if "x-dead-letter-routing-key" in args and "x-dead-letter-exchange" not in args:
            del args["x-dead-letter-routing-key"]
    if kind == "quorum":
        if args.get("x-overflow") == "reject-publish-dlx":
            del args["x-overflow"]
        if rng.random() < 0.5:
            args["x-delivery-limit"] = rng.choice((0, 1, 2))
    if kind == "classic" and rng.random() < 0.25:
        args["x-max-priority"] = rng.choice((1, 2))
    return ("queue", name or rng.choice(QUEUES), kind != "classic" or rng.random() < 0.6, args)


def _limits(rng: random.Random, likely: float) -> dict[str, Any]:
    """Of arguments and policies alike."""
    values = {
        "message-ttl": rng.choice(TTLS_MS),
        "max-length": rng.choice(LENGTHS),
        "max-length-bytes": rng.choice(SIZES),
        "overflow": rng.choice(OVERFLOWS),
        "dead-letter-exchange": rng.choice((*EXCHANGES, "", "gone")),
        "dead-letter-routing-key": rng.choice(KEYS),
    }
    return {key: value for key, value in values.items() if rng.random() < likely}


def _bind(rng: random.Random) -> Op:
    if rng.random() < 0.25:
        ends = (rng.choice(EXCHANGES), rng.choice(EXCHANGES))
        return ("bind-exchange", *ends, rng.choice(PATTERNS), rng.choice(MATCHING))
    return ("bind", rng.choice(EXCHANGES), rng.choice(QUEUES), rng.choice(PATTERNS), rng.choice(MATCHING))


def _unbind(rng: random.Random) -> Op:
    return ("unbind", rng.randrange(1 << 16))


def _publish(rng: random.Random) -> Op:
    exchange = rng.choice((*EXCHANGES, ""))
    expiration = rng.choice(TTLS_MS) if rng.random() < 0.25 else None
    priority = rng.randint(0, 3) if rng.random() < 0.3 else None
    sent = (rng.choice((0, 6, 10)), expiration, priority, rng.random() < 0.7, rng.random() < 0.5)
    return ("publish", exchange, rng.choice(KEYS), *sent, rng.choice(HEADERS))


def _get(rng: random.Random) -> Op:
    return ("get", rng.choice(QUEUES), rng.random() < 0.3)


def _consume(rng: random.Random) -> Op:
    return ("consume", rng.choice(QUEUES), rng.choice((1, 1, 2, 3)), rng.random() < 0.2)


def _settle(rng: random.Random) -> Op:
    return ("settle", rng.randrange(1 << 16), rng.choice(("ack", "reject", "requeue", "requeue")))


def _policy(rng: random.Random) -> Op:
    name = rng.choice(POLICIES)
    definition = _limits(rng, 0.4)
    if name.startswith("o"):
        definition = {
            key: definition[key] for key in ("message-ttl", "max-length", "max-length-bytes") if key in definition
        }
    elif rng.random() < 0.3:
        definition["alternate-exchange"] = rng.choice(EXCHANGES)
    pattern = rng.choice(("", "^q", "^x", "[01]$", "q2"))
    apply_to = rng.choice(("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"))
    if name.startswith("o"):
        apply_to = rng.choice(("queues", "classic_queues", "quorum_queues"))
    # Of the same priority either may hold.
    return ("policy", name, pattern, definition or {"max-length": 3}, POLICIES.index(name), apply_to)


def _pass(rng: random.Random) -> Op:
    return ("pass", rng.choice((100, 100, 200, 400)))


OPERATIONS: Final[list[tuple[Callable[[random.Random], Op], int]]] = [
    (_publish, 34),
    (_get, 14),
    (_settle, 12),
    (_pass, 8),
    (_policy, 6),
    (lambda rng: ("clear", rng.choice(POLICIES)), 3),
    (_bind, 5),
    (_unbind, 2),
    (_exchange, 2),
    (_queue, 4),
    (_consume, 4),
    (lambda rng: ("cancel", rng.choice(QUEUES)), 2),
    (lambda rng: ("read", rng.choice(QUEUES), rng.randrange(12)), 1),
    (lambda rng: ("restart", rng.random() < 0.5), 1),
    (lambda rng: ("purge", rng.choice(QUEUES)), 1),
    (lambda rng: ("delete-queue", rng.choice(QUEUES)), 2),
    (lambda rng: ("delete-exchange", rng.choice(EXCHANGES)), 1),
]


def shrunk(ops: list[Op], fails: Callable[[list[Op]], bool]) -> list[Op]:
    """A part of it that still fails and of which nothing can be left out. Cost: its length, squared."""
    step = len(ops) // 2
    while step:
        at = 0
        while at < len(ops):
            shorter = ops[:at] + ops[at + step :]
            if fails(shorter):
                ops = shorter
            else:
                at += step
        step //= 2
    return ops
