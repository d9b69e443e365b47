"""Random programs for a broker: exchanges, queues, policies, messages and time from a seed.

A program is a list of operations: tuples of names and small numbers, so that it can be printed, shortened and repeated.
An operation that makes no sense at its turn (its queue is deleted) is skipped by the player.

Each program uses some of the FEATURES and none of the others, so that combinations of few features occur often.
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
FEATURES: Final = (
    "choosing",  # exchanges that send a message to one of several
    "delays",
    "groups",
    "memory",  # exchanges that store messages or their ids
    "numbers",  # of producers
    "retain",
    "retries",
    "surgery",
    "transactions",
)
CHOOSING: Final = ("x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random")
SELECTORS: Final = ("", "h0 = '1'", "h0 IS NULL", "h0 = '2' OR h1 = '1'", "p.routing-key LIKE 'a%'", "TRUE")
RETRIES_MS: Final = (100, 200, 500)
LEVELS: Final = ([100, 400], [200], "1s,2s")
GROUP_BY: Final = ("routing_key", "header:h0")
DELAYS: Final = (100, 200, "300", 500, -100, 0, "-5")
LONG_DELAYS: Final = (9_000, "20000", 70_000)
IDS: Final = ("i", 1, "1", 2)
POLICIES: Final = ("p0", "p1", "o0")
"""Names that begin with o are operator policies."""


def program(seed: int, size: int) -> list[Op]:
    """Return the program of a seed, always the same. size: the number of operations after the first topology."""
    rng = random.Random(seed)
    return Maker(rng, {name for name in FEATURES if rng.random() < 0.3}).program(size)


class Maker:
    """Generates one program."""

    def __init__(self, rng: random.Random, features: set[str]) -> None:
        self.rng = rng
        self.features = features

    def program(self, size: int) -> list[Op]:
        rng = self.rng
        ops = [self.exchange(name) for name in EXCHANGES[: rng.randint(1, 4)]]
        ops += [self.queue(name) for name in QUEUES[: rng.randint(1, 5)]]
        ops += [self.bind() for _ in range(rng.randint(2, 8))]
        operations = {name: weight for name, weight in OPERATIONS.items() if name not in NEEDS or self.has(NEEDS[name])}
        if self.has("groups"):
            operations |= {"consume": 16, "settle": 20}
        names = rng.choices(list(operations), list(operations.values()), k=size)
        return ops + [getattr(self, name)() for name in names]

    def has(self, feature: str) -> bool:
        return feature in self.features

    def likely(self, share: float) -> bool:
        return self.rng.random() < share

    def some_queue(self) -> str:
        """Return a queue; with groups mostly one of two, so that consumers meet."""
        return self.rng.choice(QUEUES[:2] if self.has("groups") and self.likely(0.6) else QUEUES)

    # -- declarations

    def exchange(self, name: str | None = None) -> Op:
        rng = self.rng
        alternate = rng.choice(EXCHANGES) if self.likely(0.3) else None
        types = [*TYPES, "x-jms-topic"]
        types += list(CHOOSING) * self.has("choosing")
        types += ["x-recent-history", "x-message-deduplication"] * 2 * self.has("memory")
        kind = rng.choice(types)
        arguments: dict[str, Any] = {}
        durable = self.likely(0.8)
        if kind == "x-consistent-hash" and self.likely(0.4):
            arguments["hash-header"] = "h0"
        if kind == "x-recent-history":
            arguments["x-recent-history-length"] = rng.choice((1, 3))
        if kind == "x-message-deduplication":
            arguments["x-cache-size"] = rng.choice((1, 2, 10))
            if self.likely(0.5):
                arguments["x-cache-ttl"] = rng.choice(TTLS_MS[1:])
            if durable and self.likely(0.6):
                arguments["x-cache-persistence"] = "disk"
        if self.has("delays") and self.likely(0.6):
            if self.likely(0.5):
                arguments["x-delayed-type"], kind = kind, "x-delayed-message"
            else:
                arguments["x-delayed"] = self.likely(0.8)
        return ("exchange", name or rng.choice(EXCHANGES), kind, alternate, durable, arguments)

    def queue(self, name: str | None = None) -> Op:
        rng = self.rng
        kind = rng.choices(("classic", "quorum", "stream"), (6, 3, 1))[0]
        args: dict[str, Any] = {"x-queue-type": kind}
        durable = kind != "classic" or self.likely(0.6)
        if kind != "stream":
            args |= {f"x-{key}": value for key, value in self.limits(0.3).items()}
            if "x-dead-letter-routing-key" in args and "x-dead-letter-exchange" not in args:
                del args["x-dead-letter-routing-key"]
            args |= {f"x-{key}": value for key, value in self.retries(0.7).items()}
            if self.has("groups") and self.likely(0.6):
                args["x-group-by"] = rng.choice(GROUP_BY)
            if self.has("retain") and durable and self.likely(0.7):
                args["x-retain"] = "3D"
        if kind == "quorum":
            if args.get("x-overflow") == "reject-publish-dlx":
                del args["x-overflow"]
            if self.likely(0.5):
                args["x-delivery-limit"] = rng.choice((0, 1, 2))
        if kind == "classic" and "x-group-by" not in args and self.likely(0.25):
            args["x-max-priority"] = rng.choice((1, 2))
        return ("queue", name or rng.choice(QUEUES), durable, args)

    def limits(self, likely: float) -> dict[str, Any]:
        """Return limits for arguments and policies."""
        rng = self.rng
        values = {
            "message-ttl": rng.choice(TTLS_MS),
            "max-length": rng.choice(LENGTHS),
            "max-length-bytes": rng.choice(SIZES),
            "overflow": rng.choice(OVERFLOWS),
            "dead-letter-exchange": rng.choice((*EXCHANGES, "", "gone")),
            "dead-letter-routing-key": rng.choice(KEYS),
        }
        return {key: value for key, value in values.items() if self.likely(likely)}

    def retries(self, likely: float) -> dict[str, Any]:
        rng = self.rng
        if not self.has("retries") or not self.likely(likely):
            return {}
        said: dict[str, Any] = {"delayed-retry-type": rng.choice(("all", "all", "failed", "returned", "disabled"))}
        if self.likely(0.4):
            return said | {"delayed-retry-levels": rng.choice(LEVELS)}
        said["delayed-retry-min"] = rng.choice(RETRIES_MS)
        if self.likely(0.6):
            said["delayed-retry-max"] = rng.choice(RETRIES_MS)
        return said

    def bind(self) -> Op:
        rng = self.rng
        if self.likely(0.25):
            ends = (rng.choice(EXCHANGES), rng.choice(EXCHANGES))
            return ("bind-exchange", *ends, rng.choice(PATTERNS), rng.choice(MATCHING))
        return ("bind", rng.choice(EXCHANGES), rng.choice(QUEUES), rng.choice(PATTERNS), rng.choice(MATCHING))

    def unbind(self) -> Op:
        return ("unbind", self.rng.randrange(1 << 16))

    def policy(self) -> Op:
        rng = self.rng
        name = rng.choice(POLICIES)
        definition = self.limits(0.4) | self.retries(0.3)
        if name.startswith("o"):
            definition = {
                key: definition[key] for key in ("message-ttl", "max-length", "max-length-bytes") if key in definition
            }
        elif self.likely(0.3):
            definition["alternate-exchange"] = rng.choice(EXCHANGES)
        if self.has("delays") and self.likely(0.3) and not name.startswith("o"):
            definition["delayed-message"] = self.likely(0.7)
        pattern = rng.choice(("", "^q", "^x", "[01]$", "q2"))
        apply_to = rng.choice(("all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"))
        if name.startswith("o"):
            apply_to = rng.choice(("queues", "classic_queues", "quorum_queues"))
        # Priorities differ, since with equal ones either policy may apply.
        return ("policy", name, pattern, definition or {"max-length": 3}, POLICIES.index(name), apply_to)

    def clear(self) -> Op:
        return ("clear", self.rng.choice(POLICIES))

    def purge(self) -> Op:
        return ("purge", self.rng.choice(QUEUES))

    def delete_queue(self) -> Op:
        return ("delete-queue", self.rng.choice(QUEUES))

    def delete_exchange(self) -> Op:
        return ("delete-exchange", self.rng.choice(EXCHANGES))

    # -- messages

    def headers(self) -> dict[str, Any]:
        rng = self.rng
        headers: dict[str, Any] = dict(rng.choice(HEADERS))
        if self.has("delays") and self.likely(0.6):
            headers["x-delay"] = rng.choice(DELAYS if self.likely(0.9) else LONG_DELAYS)
            if self.likely(0.3):
                headers["x-deliver-in"] = rng.choice((-100, 200, 400))
                if self.likely(0.5):
                    del headers["x-delay"]
        if self.has("memory"):
            if self.likely(0.7):
                headers["x-deduplication-header"] = rng.choice(IDS)
                if self.likely(0.2):
                    headers["x-cache-ttl"] = rng.choice(TTLS_MS)
            if self.likely(0.1):
                headers["x-recent-history-no-store"] = self.likely(0.7)
        return headers

    def publish(self) -> Op:
        rng = self.rng
        exchange, key = rng.choice((*EXCHANGES, "")), rng.choice(KEYS)
        if self.has("groups") and self.likely(0.4):
            exchange, key = "", self.some_queue()
        expiration = rng.choice(TTLS_MS) if self.likely(0.25) else None
        priority = rng.randint(0, 3) if self.likely(0.3) else None
        sent = (rng.choice((0, 6, 10)), expiration, priority, self.likely(0.7), self.likely(0.5))
        return ("publish", exchange, key, *sent, self.headers())

    def numbered(self) -> Op:
        rng = self.rng
        numbers = (rng.choice((7, 8)), rng.choice((0, 0, 0, 1)), rng.randrange(8))
        return ("numbered", rng.choice((*EXCHANGES, "", "")), rng.choice(KEYS), self.headers(), *numbers)

    def transaction(self) -> Op:
        rng = self.rng
        messages = tuple(self.publish()[1:] for _ in range(rng.randint(0, 5)))
        gets = tuple((rng.choice(QUEUES), rng.choice(("ack", "reject", "requeue"))) for _ in range(rng.randint(0, 2)))
        return ("transaction", messages, gets, self.likely(0.75))

    def get(self) -> Op:
        return ("get", self.some_queue(), self.likely(0.3))

    def consume(self) -> Op:
        return ("consume", self.some_queue(), self.rng.choice((1, 1, 2, 3)), self.likely(0.2))

    def cancel(self) -> Op:
        return ("cancel", self.rng.choice(QUEUES))

    def leave(self) -> Op:
        return ("leave", self.some_queue())

    def settle(self) -> Op:
        how = self.rng.choice(("ack", "reject", "requeue", "requeue", "back"))
        return ("settle", self.rng.randrange(1 << 16), how)

    def read(self) -> Op:
        return ("read", self.rng.choice(QUEUES), self.rng.randrange(12))

    # -- jobs

    def browse(self) -> Op:
        return ("browse", self.rng.choice(QUEUES), self.rng.randrange(4), self.rng.choice(SELECTORS))

    def job(self) -> Op:
        rng = self.rng
        verb = rng.choice(("move", "move", "copy", "delete", "redrive"))
        target = rng.choice((*QUEUES, *EXCHANGES[:2]))
        chosen = (rng.choice(SELECTORS), rng.choice((0, 0, 1, 2)), self.likely(0.2))
        return ("job", verb, rng.choice(QUEUES), target, *chosen)

    def rewind(self) -> Op:
        rng = self.rng
        begin = rng.choice((0, 0, 1, 3))
        where = (begin, rng.choice((-1, -1, 2, 5)), self.likely(0.2))
        target = rng.choice(QUEUES) if self.likely(0.4) else None
        chosen = (rng.choice(SELECTORS), rng.choice((0, 0, 1, 2)), self.likely(0.2))
        return ("rewind", rng.choice(QUEUES), target, *where, *chosen)

    # -- time

    def time(self) -> Op:
        if self.has("delays") and self.likely(0.1):
            return ("pass", self.rng.choice((9_000, 30_000)))
        return ("pass", self.rng.choice((100, 100, 200, 400)))

    def restart(self) -> Op:
        return ("restart", self.likely(0.5))


OPERATIONS: Final[dict[str, int]] = {
    "publish": 34,
    "get": 14,
    "settle": 12,
    "time": 8,
    "policy": 6,
    "clear": 3,
    "bind": 5,
    "unbind": 2,
    "exchange": 2,
    "queue": 4,
    "consume": 5,
    "cancel": 2,
    "leave": 2,
    "read": 1,
    "restart": 1,
    "purge": 1,
    "delete_queue": 2,
    "delete_exchange": 1,
    "numbered": 18,
    "transaction": 8,
    "browse": 4,
    "job": 10,
    "rewind": 9,
}
NEEDS: Final = {
    "numbered": "numbers",
    "transaction": "transactions",
    "browse": "surgery",
    "job": "surgery",
    "rewind": "retain",
}


def shorten(ops: list[Op], fails: Callable[[list[Op]], bool]) -> list[Op]:
    """Return a part that still fails and from which nothing can be removed. Cost: quadratic in the length."""
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
