"""docs/reference/arguments.md: arguments of queues, exchanges, consumers and bindings, and exchange types, from their
tables.
"""

from __future__ import annotations

from collections.abc import Collection

from amqpd.broker.queue.argument_checks import IGNORED, ArgumentSpec
from amqpd.broker.queue.arguments import ROWS as QUEUE_ROWS
from amqpd.broker.queue.consumer_arguments import CONSUMER_ROWS
from amqpd.broker.queue.types import KINDS
from amqpd.broker.vhost.exchange import ROWS as EXCHANGE_ROWS
from amqpd.routing.registry import BUILT_IN
from interop.manual.markdown import MADE, cell, code, codes, table

QUEUES = """\
# Arguments, policies, exchange types

## Arguments of queues

Arguments of `queue.declare`. *Policy* is the key of a [policy](../policies.md) that sets the same for many queues. If both are set,
the lower number applies, otherwise the argument. *Compared* means that a redeclaration needs the same value (else 406). An argument
that is not in this table is stored and shown, and has no effect.

"""
IGNORED_HEAD = """
RabbitMQ's clients send these; they are accepted without effect:

"""
CONSUMERS = """
## Arguments of consumers

Of `basic.consume`.

"""
EXCHANGES = """
## Arguments of exchanges

Arguments of `exchange.declare` and the exchange types that use them; other types ignore them.

"""
BINDINGS = """
## Arguments of bindings

| argument | of bindings from | meaning |
|---|---|---|
| `x-match` | `headers` | `all` (the default), `any`, or `all-with-x`, `any-with-x`, by which headers that begin with `x-` count too |
| any other | `headers` | a header, and the value that it has to have; a void value asks only that it is there |
| `x-selector` | `x-jms-topic` | the text of a [selector](../filters.md) |
| `x-stream-partition-order` | `x-murmur2-hash`, and any with `x-super-stream` | the number of the stream's partition, from 0 |
| `rjms_erlang_selector` | `x-jms-topic` | the same, as RabbitMQ's JMS client sends it |
"""
TYPES = """
## Exchange types

"""
MEANINGS = {
    "direct": "every binding whose key is the message's routing key",
    "fanout": "every binding",
    "headers": "every binding whose arguments agree with the message's headers",
    "topic": "every binding whose pattern matches the routing key: `*` is one word, `#` any number of them",
    "x-consistent-hash": "one binding, the same for the same key, header or property, by weight",
    "x-delayed-message": "where the type in `x-delayed-type` sends it, when it is due",
    "x-jms-topic": "every binding whose selector matches",
    "x-local-random": "one binding, at random; classic queues and an empty binding key only",
    "x-message-deduplication": "every binding, once for each id",
    "x-modulus-hash": "one binding, by the hash of the routing key",
    "x-murmur2-hash": "the partition that Kafka's producers choose for the routing key; streams only",
    "x-random": "one binding, at random",
    "x-recent-history": "every binding; a new binding gets the last messages",
}
PAGES = {
    "x-delayed-message": "retries",
    "x-jms-topic": "filters",
    "x-message-deduplication": "deduplication",
}
TYPES_TAIL = """
More of them come as [entry points](../exchange-types.md#a-type-of-your-own).
"""


def _kinds(kinds: Collection[str] | None) -> str:
    return "all" if kinds is None else ", ".join(name for name in (*KINDS, *sorted(kinds)) if name in kinds) or "all"


def _key(row: ArgumentSpec) -> str:
    return "" if row.policy is None else code(row.policy.name)


def _distinct(text: str) -> str:
    return ", ".join(dict.fromkeys(text.split(", ")))


def text() -> str:
    obeyed = [row for row in QUEUE_ROWS.values() if row.obeyed_by != IGNORED]
    ignored = [row for row in QUEUE_ROWS.values() if row.obeyed_by == IGNORED]
    parts = [MADE, QUEUES]
    parts.append(
        table(
            ("argument", "kinds of queue", "policy", "compared", "meaning"),
            [
                (
                    code(row.name),
                    _distinct(_kinds(row.kinds)),
                    _key(row),
                    "yes" if row.compared else "",
                    cell(row.meaning),
                )
                for row in obeyed
            ],
        )
    )
    parts.append(IGNORED_HEAD)
    parts.append(
        table(
            ("argument", "policy", "why"),
            [(code(row.name), _key(row), cell(row.meaning.removeprefix("ignored: "))) for row in ignored],
        )
    )
    parts.append(CONSUMERS)
    parts.append(
        table(
            ("argument", "kinds of queue", "meaning"),
            [(code(row.name), _distinct(_kinds(row.kinds)), cell(row.meaning)) for row in CONSUMER_ROWS.values()],
        )
    )
    parts.append(EXCHANGES)
    parts.append(
        table(
            ("argument", "exchange types", "policy", "meaning"),
            [
                (code(row.name), codes(sorted(row.kinds)) if row.kinds else "all", _key(row), cell(row.meaning))
                for row in EXCHANGE_ROWS.values()
            ],
        )
    )
    parts.append(BINDINGS)
    parts.append(TYPES)
    names = sorted({*BUILT_IN, "x-delayed-message"})
    rows = []
    for name in names:
        page = PAGES.get(name, "exchange-types" if name.startswith("x-") else "")
        rows.append((code(name), MEANINGS[name] + (f": [more](../{page}.md)" if page else "")))
    parts.append(table(("type", "a message goes to"), rows))
    parts.append(TYPES_TAIL)
    return "".join(parts)
