"""Print the cost of a match in microseconds: `python tests/routing/measure.py`, with the importable amqpd.

Not a test: figures depend on the machine. The bindings are those of the load generator's scenario S6. Every key is a
fresh string, so its hash is computed within the measured time. Each figure is the best of five rounds.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from amqpd.routing import topic
from amqpd.routing.hashing import ConsistentHash, ModulusHash, Random
from amqpd.routing.headers import Headers
from amqpd.routing.jms_topic import JmsTopic
from amqpd.routing.message_exchange import RoutedMessage
from amqpd.routing.selector import parse_selector
from amqpd.routing.topic import TopicTrie

BINDING_COUNT = 10_000


def topic_binding(number: int) -> tuple[str, str, str]:
    """(kind, pattern, key that only this pattern accepts)."""
    kind = number % 10
    if kind < 4:
        return "dev.N.*.temp", f"dev.{number}.*.temp", f"dev.{number}.k1.temp"
    if kind < 7:
        return "dev.N.status.#", f"dev.{number}.status.#", f"dev.{number}.status.a.b"
    if kind < 9:
        return "*.N.alarm.*", f"*.{number}.alarm.*", f"site.{number}.alarm.fire"
    return "#.evtN", f"#.evt{number}", f"x.y.evt{number}"


def best_us(match: Callable[[str], object], keys: Sequence[str]) -> float:
    """Microseconds for one match, averaged over the keys."""
    best_s = float("inf")
    for _ in range(5):
        fresh_keys = [key.encode().decode() for key in keys]
        start = time.perf_counter()
        for key in fresh_keys:
            match(key)
        best_s = min(best_s, (time.perf_counter() - start) / len(keys))
    return best_s * 1e6


def report(label: str, figure_us: float) -> None:
    sys.stdout.write(f"{label:<44}{figure_us:9.2f} us\n")


def measure_topic() -> None:
    exchange = TopicTrie()
    keys_by_kind: dict[str, list[str]] = {}
    for number in range(BINDING_COUNT):
        kind, pattern, key = topic_binding(number)
        exchange.add(pattern, number)
        keys_by_kind.setdefault(kind, []).append(key)
    for kind, keys in keys_by_kind.items():
        report(f"topic, {kind}", best_us(exchange.match, keys))
    mixed = [key for keys in keys_by_kind.values() for key in keys]
    random.Random(1).shuffle(mixed)
    report("topic, all of them, shuffled", best_us(exchange.match, mixed))
    report("topic, no match", best_us(exchange.match, [f"no.such.key.{n}" for n in range(BINDING_COUNT)]))


def measure_plain_topic() -> None:
    exchange = TopicTrie()
    keys = [f"plain.key.{number}" for number in range(BINDING_COUNT)]
    for key in keys:
        exchange.add(key, key)
    report("topic, patterns without wildcards only", best_us(exchange.match, keys))


def hostile_patterns() -> Iterable[str]:
    for words in (["#"], ["#", "*"], ["#", "a"], ["#", "a", "*"], ["#", "a", "*", "a"], ["*", "#", "a"]):
        yield ".".join(words * 128)[:255].rstrip(".")


def measure_hostile_topic() -> None:
    worst_us = 0.0
    for pattern in hostile_patterns():
        exchange = TopicTrie()
        exchange.add(pattern, "q")
        for key in (".".join("a" * 128), ".".join("ab" * 64), "." * 255):
            worst_us = max(worst_us, best_us(exchange.match, [key] * 10))
    report("topic, worst hostile pattern and key", worst_us)


def measure_headers() -> None:
    exchange = Headers()
    for number in range(BINDING_COUNT):
        exchange.bind("", {"format": "pdf", "customer": number}, number)
    messages = {str(n): {"format": "pdf", "customer": n, "a": 1, "b": "two", "c": 3.0} for n in range(BINDING_COUNT)}
    report(
        "headers, 10,000 `all` rules, 5 headers", best_us(lambda key: exchange.match("", messages[key]), [*messages])
    )


TEN_TERMS = {
    "ten texts": (" OR ".join([f"x = 'v{number}'" for number in range(10)]), "v9"),
    "ten numbers": (" OR ".join([f"x = {number}" for number in range(10)]), 9),
    "ten of all kinds": (
        (
            "x <> 'a' AND x LIKE 'v%' AND x LIKE '%9' AND x IN ('v9', 'b') AND NOT x = 'u' AND x IS NOT NULL "
            "AND x > 'a' AND x < 'z' AND x BETWEEN 'b' AND 'w' AND x NOT LIKE '%t%'"
        ),
        "v9",
    ),
    "one text": ("x = 'v9'", "v9"),
}


def measure_selectors() -> None:
    """Terms on one header, in the worst case: only the last term decides."""
    for label, (text, value) in TEN_TERMS.items():
        message = RoutedMessage("", {"x": value})
        matches = parse_selector(text).matches
        assert matches(message)
        report(f"selector, {label}", best_us(lambda key, m=matches, v=message: m(v), ["k"] * 20_000))
    long = RoutedMessage("", {"x": "ab" * 60_000})
    hostile = parse_selector("x LIKE '%" + "a_" * 15 + "c%'")
    report("selector, LIKE with _ at its dearest, 120 KB", best_us(lambda key: hostile.matches(long), ["k"] * 3))
    start = time.perf_counter()
    parse_selector(" OR ".join([f"x{number} = 'v{number}'" for number in range(60)]))
    report("selector of 60 terms, parsed", (time.perf_counter() - start) * 1e6)


def measure_jms_topic() -> None:
    exchange = JmsTopic()
    for number in range(BINDING_COUNT):
        exchange.bind("", {"x-selector": f"customer = 'c{number}' AND weight > 2"}, number)
    messages: dict[str, dict[str, object]] = {
        str(n): {"customer": f"c{n}", "weight": 3, "a": 1, "b": "two", "c": 3.0} for n in range(BINDING_COUNT)
    }
    report("x-jms-topic, 10,000 customers", best_us(lambda key: exchange.match("", messages[key]), [*messages]))
    plain = JmsTopic()
    for number in range(1000):
        plain.bind("", {"x-selector": f"weight > {number}"}, number)
    report("x-jms-topic, 1,000 that require no text", best_us(lambda key: plain.match("", {"weight": 0}), ["k"] * 10))


def measure_choices() -> None:
    """The routing key is new each time; a known one costs the same as with `direct`."""
    for count in (100, BINDING_COUNT):
        keys = [f"key.{number}" for number in range(100_000 // count * 10)]
        for name, weights in (("one weight", 1), ("ten weights", 10)):
            exchange = ConsistentHash()
            for number in range(count):
                exchange.bind(str(number % weights + 1), {}, f"q{number}")
            cost_us = best_us(lambda key, x=exchange: x.match(key, None), keys)
            report(f"x-consistent-hash, {count:,} bindings, {name}", cost_us)
    for name, other in (("x-modulus-hash", ModulusHash()), ("x-random", Random())):
        for number in range(BINDING_COUNT):
            other.bind("", {}, f"q{number}")
        report(f"{name}, 10,000 bindings", best_us(lambda key, x=other: x.match(key, None), [*"abcdefgh"] * 1000))


if __name__ == "__main__":
    sys.stdout.write(f"{topic.__file__.rpartition('/')[2]}\n")
    measure_topic()
    measure_plain_topic()
    measure_hostile_topic()
    measure_headers()
    measure_selectors()
    measure_jms_topic()
    measure_choices()
