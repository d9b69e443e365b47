"""Definitions: what travels, and what is exported otherwise."""

from __future__ import annotations

import json

from interop.compare.definitions import APART, PASSWORDS, SAMPLES
from interop.compare.page.markdown import Section, code, codes, sentence, table


def section() -> Section:
    files = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(SAMPLES.glob("*.json"))}
    items = {
        name: sum(len(each) for each in document.values() if isinstance(each, list)) for name, document in files.items()
    }
    kinds = sorted({kind for document in files.values() for kind, each in document.items() if isinstance(each, list)})
    text = (
        "A document that RabbitMQ 3.10.8 has exported goes into amqpd, what amqpd exports of it goes back into an "
        "empty RabbitMQ, and what that exports is what the first one was, with logins that work on both: "
        "`make test-peer` does it. Documents of 3.13 and 4.1, written after their documentation, come in whole and "
        "come out the same. What is done with keys and items that amqpd does not know: "
        f"[definitions.md](definitions.md). Of each kind there is something in them: {codes(kinds)}.\n\n"
    )
    rows: list[tuple[str, ...]] = [(code(name), f"{count}", "all") for name, count in items.items()]
    text += table(("document", "items", "come in, and out again"), rows)
    text += "\n### What is exported otherwise\n\n"
    rows = [(each.kind or "the document", codes(each.keys), sentence(each.reason)) for each in APART]
    rows.append(("users", code("password_hash"), PASSWORDS))
    text += table(("of", "keys", "why"), rows)
    row = (
        "Definitions: [documents](#definitions)",
        f"{len(files)} documents, {sum(items.values())} items",
        f"{len(APART) + 1} groups of keys",
        "none",
    )
    return Section("Definitions", row, text)
