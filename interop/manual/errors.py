"""docs/reference/errors.md: reply codes from amqpd/errors.py, and the texts at the places where errors are raised.

The texts are found in the sources: each call of an error class with a literal text, with three dots for inserted
values. Only texts written in the call are found; few are elsewhere.
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

Errors that a client gets over AMQP. A *channel* error closes its channel with `channel.close`; the connection stays open. A
*connection* error closes the connection with `connection.close`. The text begins with the name of the code: `NOT_FOUND - no queue
'orders' in vhost '/'`. It has at most 255 bytes. Texts are RabbitMQ's if RabbitMQ has the same error.

"""
TEXTS = """
## Texts by code

`…` is a name, a number or the like.
"""
OTHERS = """
## Other answers

| answer | when |
|---|---|
| `basic.return` 312 `NO_ROUTE` | published with `mandatory`, and no queue takes it; also a [direct reply](../compatibility.md) without a waiting client |
| `basic.nack` on a channel with confirms | the message was not stored: the queue is full (`x-overflow: reject-publish`), or its log cannot be written |
| `basic.cancel` from the broker | the queue of a consumer was deleted, or the consumer held a delivery [too long](../limits.md#consumer-timeouts) |
| `connection.blocked` | memory or disk run low: the broker reads no publishes until `connection.unblocked`: [alarms](../limits.md#alarms) |

## Of the admin API

A status of 400 and above has a JSON object, `{"error": ..., "reason": ...}`.

| status | when |
|---|---|
| 400 | the request cannot be understood, or the broker refuses what it asks for, with the text of AMQP's error |
| 401 | no user, or a wrong password |
| 403 | the request comes from another site's page, or the user lacks a permission |
| 404 | no such path, virtual host, queue ... |
| 405 | the path has no such method; `Allow` lists its methods |
| 409 | it conflicts with the present state: another metadata database, a failed reload |
| 412 | a condition is false: a protected virtual host, `If-Match`, `If-None-Match` |
| 413 | the body is too large, or too deep |
| 503 | a health check failed, or the broker is stopping |

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
    """Return the text of this expression, with dots for inserted values, or None if it has no literal text."""
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
    """Yield class and text of each error in the packages between a client and its queue."""
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
