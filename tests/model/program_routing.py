"""The twin's exchanges, as the documentation describes each type.

For a type that chooses one of several destinations the broker's choice is taken from `chosen`, and the twin checks it.
A random choice must be bound. A hash must choose the same destination while the bindings do not change; when weights
change, values move only from a destination that lost weight, or to one that gained weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from program_parts import Binding, RouteResult, SeenId, TwinExchange, TwinMessage, TwinMismatch

SELECTORS: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "h0 = '1'": lambda key, headers: headers.get("h0") == "1",
    "h0 IS NULL": lambda key, headers: "h0" not in headers,
    "h0 = '2' OR h1 = '1'": lambda key, headers: headers.get("h0") == "2" or headers.get("h1") == "1",
    "p.routing-key LIKE 'a%'": lambda key, headers: key.startswith("a"),
    "TRUE": lambda key, headers: True,
}
"""Selector texts and their meaning, for jobs and for exchanges."""

CHOOSING = ("x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random")
ID = "x-deduplication-header"
TEN_YEARS_MS = 10 * 365 * 86_400_000


class TwinRouting:
    """The routing part of the twin.

    chosen: returns and removes the broker's last choice of an exchange for a routing key, or None.
    """

    now_ms: int
    exchanges: dict[str, TwinExchange]
    bindings: list[Binding]
    queues: dict[str, Any]
    chosen: Callable[[str, str], str | None]

    def matching(self, name: str, kind: str, operator: bool) -> dict[str, Any]:
        raise NotImplementedError

    def alternate(self, exchange: TwinExchange) -> str | None:
        if exchange.alternate is not None:
            return exchange.alternate
        return self.matching(exchange.name, "exchange", False).get("alternate-exchange")

    def delays(self, exchange: TwinExchange) -> bool:
        if exchange.declared == "x-delayed-message":
            return True
        said = self.matching(exchange.name, "exchange", False).get("delayed-message", False)
        return exchange.arguments.get("x-delayed", said) is True

    def route(self, exchange: str, key: str, headers: dict[str, Any], passed: str = "") -> RouteResult:
        """Route a message. passed: the exchange that has already delayed it."""
        result = RouteResult()
        if exchange == "":
            result.queues = [key] if key in self.queues else []
            return result
        seen: list[str] = []
        waiting = [exchange]
        while waiting:
            name = waiting.pop(0)
            if name in seen or name not in self.exchanges:
                continue
            seen.append(name)
            source = self.exchanges[name]
            if name != passed and self.delays(source):
                due_ms = self.due_of(headers)
                if due_ms > self.now_ms:
                    result.waits.append((name, due_ms))
                    continue
            there = self.matching_bindings(source, key, headers, result)
            for binding in there:
                if not binding.to_queue:
                    waiting.append(binding.destination)
                elif binding.destination not in result.queues:
                    result.queues.append(binding.destination)
            alternate = self.alternate(source)
            if not there and alternate is not None:
                waiting.append(alternate)
        if result.leads_nowhere:
            result.noted.clear()
        return result

    def due_of(self, headers: dict[str, Any]) -> int:
        """Return the time in the program's clock at which a message is due, by its headers."""
        if "x-deliver-at" in headers:
            return min(int(headers["x-deliver-at"]) - self.epoch_ms, self.now_ms + TEN_YEARS_MS)
        return self.now_ms + int(headers.get("x-delay", 0))

    epoch_ms = 0
    """The time of the broker's clock at the start of a program."""

    def matching_bindings(
        self, source: TwinExchange, key: str, headers: dict[str, Any], result: RouteResult
    ) -> list[Binding]:
        """Return the bindings that match a message."""
        bindings = [each for each in self.bindings if each.source == source.name]
        if source.kind in CHOOSING:
            return self.choose(source, bindings, key, headers)
        if source.kind == "x-recent-history":
            result.kept.append(source.name)
            return bindings
        if source.kind == "x-message-deduplication":
            if not bindings or ID not in headers:
                return bindings
            if (source.name, headers[ID]) in self.reserved:
                return []
            known = source.seen.get(headers[ID])
            if known is not None and (known.until_ms is None or known.until_ms > self.now_ms):
                return []
            source.seen.pop(headers[ID], None)
            ttl_ms = headers.get("x-cache-ttl", source.arguments.get("x-cache-ttl"))
            result.noted.append((source.name, headers[ID], None if ttl_ms is None else self.now_ms + ttl_ms))
            return bindings
        return [each for each in bindings if self.accepts(source.kind, each, key, headers)]

    @staticmethod
    def accepts(kind: str, binding: Binding, key: str, headers: dict[str, Any]) -> bool:
        pattern = binding.key
        if kind == "fanout":
            return True
        if kind == "headers":
            wanted = dict(binding.arguments)
            every = wanted.pop("x-match", "all") == "all"
            return (all if every else any)(headers.get(name) == value for name, value in wanted.items())
        if kind == "x-jms-topic":
            return SELECTORS[dict(binding.arguments)["x-selector"]](key, headers)
        if kind == "direct":
            return pattern == key
        if pattern == "#":
            return True
        words, asked = key.split("."), pattern.split(".")
        return len(words) == len(asked) and all(a in ("*", w) for a, w in zip(asked, words, strict=True))

    # -- exchanges that choose one destination

    def choose(self, source: TwinExchange, bindings: list[Binding], key: str, headers: dict[str, Any]) -> list[Binding]:
        if not bindings:
            return []
        weights: dict[str, int] = {}
        for each in bindings:
            label = f"{'queue' if each.to_queue else 'exchange'}:{each.destination}"
            weights[label] = weights.get(label, 0) + (int(each.key) if source.kind == "x-consistent-hash" else 1)
        chosen = self.chosen(source.name, key)
        if source.kind in ("x-consistent-hash", "x-modulus-hash"):
            hashed = headers.get(source.arguments["hash-header"]) if "hash-header" in source.arguments else key
            before = source.hashed_choices.get(hashed)
            if chosen is None and before is not None and before[0] == weights:
                chosen = before[1]  # the broker used its cached route
            if chosen is not None and before is not None:
                self.check_move(source, *before, weights, chosen)
            if chosen is not None:
                source.hashed_choices[hashed] = (weights, chosen)
        if chosen not in weights:
            raise TwinMismatch(f"{source.kind} {source.name} chose {chosen} of {weights}")
        kind, _, name = str(chosen).partition(":")
        return [next(each for each in bindings if (each.to_queue, each.destination) == (kind == "queue", name))]

    @staticmethod
    def check_move(source: TwinExchange, before: dict[str, int], old: str, weights: dict[str, int], new: str) -> None:
        """Raise TwinMismatch if a hashed value may not move from `old` to `new`."""
        if new == old or (source.kind == "x-modulus-hash" and before != weights):
            return
        lost = weights.get(old, 0) < before[old]
        gained = weights.get(new, 0) > before.get(new, 0)
        if not lost and not gained:
            raise TwinMismatch(f"{source.name} moves from {old} to {new}: {before} became {weights}")

    # -- exchanges with state

    reserved: set[tuple[str, Any]]
    """Exchanges and ids of the open transaction."""

    def reserve(self, result: RouteResult) -> None:
        self.reserved |= {(name, ident) for name, ident, _ in result.noted}

    def offer_all(self, result: RouteResult, message: TwinMessage) -> bool:
        raise NotImplementedError

    def deliver_history(self, binding: Binding) -> None:
        """Send the stored messages of an exchange to a new binding, oldest first."""
        for message in list(self.exchanges[binding.source].history):
            again = replace(message, ttl_start_ms=[])
            if binding.to_queue:
                self.offer_all(RouteResult([binding.destination]), again)
            else:
                self.offer_all(self.route(binding.destination, message.key, message.headers), again)

    def remember(self, result: RouteResult, message: TwinMessage, taken: bool, stored: bool) -> None:
        """Update the state of exchanges after a publish. taken: by all queues. stored: on disk somewhere."""
        for name in result.kept:
            exchange = self.exchanges[name]
            if message.headers.get("x-recent-history-no-store") is not True:
                exchange.history.append(message)
                del exchange.history[: -exchange.arguments.get("x-recent-history-length", 20)]
        for name, ident, until_ms in result.noted:
            exchange = self.exchanges[name]
            if not taken:
                continue
            if len(exchange.seen) >= exchange.arguments["x-cache-size"]:
                del exchange.seen[next(iter(exchange.seen))]
            elif exchange.seen:
                oldest = next(iter(exchange.seen))
                end_ms = exchange.seen[oldest].until_ms
                if end_ms is not None and end_ms <= self.now_ms:
                    del exchange.seen[oldest]
            kept = exchange.durable and exchange.arguments.get("x-cache-persistence") == "disk" and stored
            exchange.seen[ident] = SeenId(until_ms, kept)
