"""docs/reference/errors.md: reply codes out of amqpd/errors.py, and the texts that stand where they are raised.

The texts are found in the sources: each call of an error's class whose text stands in it, with three dots for what is
filled in. So a text that is not written where its error is made is not found; those are few.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from amqpd import errors
from interop.manual.markdown import MADE, cell, code, table

ROOT = Path(__file__).parents[2]
ROOMS = ("broker", "channel", "connection", "protocol")
HEAD = """\
# Errors: codes and texts

This is what a client is told over AMQP. A *channel* error closes the channel it happened on, with `channel.close`, and the
connection stays open; a *connection* error closes the connection, with `connection.close`. The text behind a code begins with its
name: `NOT_FOUND - no queue 'orders' in vhost '/'`. At most 255 bytes of it are sent. Texts are RabbitMQ's where RabbitMQ has
the same error, so programs that look for them find them.

"""
TEXTS = """
## Texts by code

`…` stands for a name, a number or the like.
"""
OTHERS = """
## Other answers

| answer | when |
|---|---|
| `basic.return` 312 `NO_ROUTE` | published with `mandatory`, and no queue takes it; [direct reply](../compatibility.md) to nobody too |
| `basic.nack` on a channel with confirms | the message is not kept: the queue is full (`x-overflow: reject-publish`), or its log cannot be written |
| `basic.cancel` from the broker | the queue of a consumer was deleted, or the consumer held a delivery [too long](../limits.md#consumer-timeouts) |
| `connection.blocked` | memory or disk run low: what is published is not read until `connection.unblocked`: [alarms](../limits.md#alarms) |

## Of the admin API

A status of 400 and above has a JSON object, `{"error": ..., "reason": ...}`.

| status | when |
|---|---|
| 400 | the request cannot be understood, or the broker refuses what it asks for, with the text of AMQP's error |
| 401 | no user, or a wrong password |
| 403 | another site's page asks, or the reader may not |
| 404 | no such path, virtual host, queue ... |
| 405 | the path is there, this method is not for it; `Allow` names those that are |
| 409 | it does not fit what is there or what goes on: two metadata at once, a reload that fails |
| 412 | a condition does not hold: a protected virtual host, `If-Match`, `If-None-Match` |
| 413 | the body is too large, or too deep |
| 503 | a health check that says no; or the broker stops |

## Of amqpctl

[Exit codes](../amqpctl.md#exit-codes).
"""


def _classes() -> dict[str, type[errors.AmqpError]]:
    kinds = (errors.SoftError, errors.HardError)
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, kinds) and value not in kinds
    }


def _shown(node: ast.expr) -> str | None:
    """The text that this expression makes, with dots for what is filled in; None where none stands in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
        return "".join(str(part) for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _shown(node.left), _shown(node.right)
        return None if left is None and right is None else (left or "…") + (right or "…")
    return None


def raised(name_of: dict[str, type[errors.AmqpError]]) -> Iterator[tuple[str, str]]:
    """Class and text of each error that is made in the rooms between a client and its queue."""
    for room in ROOMS:
        for path in sorted((ROOT / "amqpd" / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args):
                    continue
                if node.func.id in name_of and (text := _shown(node.args[0])) and text.strip("… "):
                    yield node.func.id, text


def text() -> str:
    classes = _classes()
    lines = []
    for one in sorted(classes.values(), key=lambda one: (one.code, issubclass(one, errors.HardError))):
        closes = "connection" if issubclass(one, errors.HardError) else "channel"
        meaning = " ".join((one.__doc__ or "").split()).rstrip(".")
        lines.append((str(one.code), code(one.name), closes, cell(meaning)))
    by_code: dict[tuple[int, str], set[str]] = {}
    for name, said in raised(classes):
        by_code.setdefault((classes[name].code, classes[name].name), set()).add(said)
    parts = [MADE, HEAD, table(("code", "name", "closes the", "when"), lines), TEXTS]
    for (number, name), texts in sorted(by_code.items()):
        parts.append(f"\n### {number} {name}\n\n" + "".join(f"- {code(said)}\n" for said in sorted(texts)))
    parts.append(OTHERS)
    return "".join(parts)
