"""Definitions: compatible parts, and differences of the export."""

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
        "`make test-peer` imports a document of RabbitMQ 3.10.8 into amqpd, imports amqpd's export of it into an "
        "empty RabbitMQ, and compares that broker's export with the first document. Logins work on both. Documents of "
        "3.13 and 4.1, written after their documentation, are imported and exported without a change. Unknown keys and "
        f"items: [definitions](backup.md#definitions). The documents have every kind: {codes(kinds)}.\n\n"
    )
    rows: list[tuple[str, ...]] = [(code(name), f"{count}", "all") for name, count in items.items()]
    text += table(("document", "items", "imported and exported again"), rows)
    text += "\n### What is exported differently\n\n"
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
