"""The twin's exchanges: what the documentation says of each type, read aloud.

Where a message goes that an exchange sends to one of several is the broker's to say (`chosen`), and the twin holds it
against what is promised: by chance, to something that is bound; by hash, to the same as ever as long as nothing else
is bound, and what moves moves from what lost weight, or to what has gained some.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from program_parts import Binding, Different, Letter, Seen, TwinExchange, Way

SELECTORS: dict[str, Callable[[str, dict[str, Any]], bool]] = {
    "h0 = '1'": lambda key, headers: headers.get("h0") == "1",
    "h0 IS NULL": lambda key, headers: "h0" not in headers,
    "h0 = '2' OR h1 = '1'": lambda key, headers: headers.get("h0") == "2" or headers.get("h1") == "1",
    "p.routing-key LIKE 'a%'": lambda key, headers: key.startswith("a"),
    "TRUE": lambda key, headers: True,
}
"""Texts, and what they say. Those of whole messages and of exchanges alike."""

CHOOSING = ("x-consistent-hash", "x-modulus-hash", "x-random", "x-local-random")
ID = "x-deduplication-header"
TEN_YEARS_MS = 10 * 365 * 86_400_000


class TwinRouting:
    """A mixin of the twin. exchanges, bindings, policies: of the twin. chosen: what the broker chose last at an
    exchange for a routing key, said once; None: nothing."""

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

    def route(self, exchange: str, key: str, headers: dict[str, Any], passed: str = "") -> Way:
        """passed: the exchange that has delayed it already."""
        way = Way()
        if exchange == "":
            way.queues = [key] if key in self.queues else []
            return way
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
                    way.waits.append((name, due_ms))
                    continue
            there = self.reached(source, key, headers, way)
            for binding in there:
                if not binding.to_queue:
                    waiting.append(binding.destination)
                elif binding.destination not in way.queues:
                    way.queues.append(binding.destination)
            alternate = self.alternate(source)
            if not there and alternate is not None:
                waiting.append(alternate)
        if way.leads_nowhere:
            way.noted.clear()
        return way

    def due_of(self, headers: dict[str, Any]) -> int:
        """When a message is due, by its headers; of a program's time."""
        if "x-deliver-at" in headers:
            return min(int(headers["x-deliver-at"]) - self.epoch_ms, self.now_ms + TEN_YEARS_MS)
        return self.now_ms + int(headers.get("x-delay", 0))

    epoch_ms = 0
    """Of the broker's clock when a program begins."""

    def reached(self, source: TwinExchange, key: str, headers: dict[str, Any], way: Way) -> list[Binding]:
        """Bindings that a message takes."""
        bindings = [each for each in self.bindings if each.source == source.name]
        if source.kind in CHOOSING:
            return self.one_of(source, bindings, key, headers)
        if source.kind == "x-recent-history":
            way.kept.append(source.name)
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
            way.noted.append((source.name, headers[ID], None if ttl_ms is None else self.now_ms + ttl_ms))
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

    # -- exchanges that choose

    def one_of(self, source: TwinExchange, bindings: list[Binding], key: str, headers: dict[str, Any]) -> list[Binding]:
        if not bindings:
            return []
        weights: dict[str, int] = {}
        for each in bindings:
            label = f"{'queue' if each.to_queue else 'exchange'}:{each.destination}"
            weights[label] = weights.get(label, 0) + (int(each.key) if source.kind == "x-consistent-hash" else 1)
        chosen = self.chosen(source.name, key)
        if source.kind in ("x-consistent-hash", "x-modulus-hash"):
            hashed = headers.get(source.arguments["hash-header"]) if "hash-header" in source.arguments else key
            before = source.learnt.get(hashed)
            if chosen is None and before is not None and before[0] == weights:
                chosen = before[1]  # a route that was kept
            if chosen is not None and before is not None:
                self.may_move(source, *before, weights, chosen)
            if chosen is not None:
                source.learnt[hashed] = (weights, chosen)
        if chosen not in weights:
            raise Different(f"{source.kind} {source.name} has chosen {chosen} of {weights}")
        kind, _, name = str(chosen).partition(":")
        return [next(each for each in bindings if (each.to_queue, each.destination) == (kind == "queue", name))]

    @staticmethod
    def may_move(source: TwinExchange, before: dict[str, int], old: str, weights: dict[str, int], new: str) -> None:
        """Raises: Different."""
        if new == old or (source.kind == "x-modulus-hash" and before != weights):
            return
        lost = weights.get(old, 0) < before[old]
        gained = weights.get(new, 0) > before.get(new, 0)
        if not lost and not gained:
            raise Different(f"{source.name} moves from {old} to {new}: {before} became {weights}")

    # -- exchanges that remember

    reserved: set[tuple[str, Any]]
    """Ids of the transaction that is open, and their exchanges."""

    def reserve(self, way: Way) -> None:
        self.reserved |= {(name, ident) for name, ident, _ in way.noted}

    def offer_all(self, way: Way, letter: Letter) -> bool:
        raise NotImplementedError

    def tell_history(self, binding: Binding) -> None:
        """What is newly bound gets the last messages, the oldest first."""
        for letter in list(self.exchanges[binding.source].history):
            again = replace(letter, born_ms=[])
            if binding.to_queue:
                self.offer_all(Way([binding.destination]), again)
            else:
                self.offer_all(self.route(binding.destination, letter.key, letter.headers), again)

    def remember(self, way: Way, letter: Letter, taken: bool, stored: bool) -> None:
        """It has been offered. taken: by everything. stored: something keeps it on the disk."""
        for name in way.kept:
            exchange = self.exchanges[name]
            if letter.headers.get("x-recent-history-no-store") is not True:
                exchange.history.append(letter)
                del exchange.history[: -exchange.arguments.get("x-recent-history-length", 20)]
        for name, ident, until_ms in way.noted:
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
            exchange.seen[ident] = Seen(until_ms, kept)
