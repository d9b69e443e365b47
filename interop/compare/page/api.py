"""The calls of the HTTP API: statuses and fields."""

from __future__ import annotations

from interop.compare.api import held
from interop.compare.api.calls import ALL
from interop.compare.api.differences import MISSING, NOT_YET, STATUS
from interop.compare.page.markdown import Section, code, codes, sentence, table


def section() -> Section:
    kept = held.load()
    kinds: dict[str, list[int]] = {}
    wanted: dict[str, set[str]] = {}
    for call in ALL:
        kind = "/".join(call.path.partition("?")[0].split("/")[:3])
        kind = kind if kind.startswith("/api/") and kind != "/api/" else "other paths"
        counts = kinds.setdefault(kind, [0, 0])
        counts[0] += 1
        for answer in kept[call.name()]:
            wanted.setdefault(kind, set()).update(answer.fields)
    for kind, names in wanted.items():
        kinds[kind][1] = len(names)
    fields = sum(map(len, wanted.values()))
    text = (
        f"{len(ALL)} calls, one after another with the same state made on both: virtual hosts, users, queues of each "
        "kind, clients at work. Compared are the status of each answer and the names of its fields, at any depth. "
        "Fields that RabbitMQ does not have are in amqpd's answers too: a program looks for those it knows.\n\n"
    )
    rows: list[tuple[str, ...]] = [
        (code(kind) if kind.startswith("/") else kind, f"{calls}", f"{found}")
        for kind, (calls, found) in sorted(kinds.items())
    ]
    text += table(("calls of", "calls", "fields RabbitMQ answers"), rows)
    text += f"\n### Another status: {len(STATUS) + len(NOT_YET)} of {len(ALL)} calls\n\n"
    rows = [(code(each.call), f"{each.theirs}", f"{each.ours}", sentence(each.reason)) for each in (*STATUS, *NOT_YET)]
    text += table(("call", "RabbitMQ", "amqpd", "why"), rows)
    text += (
        "\n### Fields that are missing\n\nOf answers whose path begins so, wherever in the answer they stand: a "
        "program that shows them finds nothing there.\n\n"
    )
    rows = [(code(each.path), codes(sorted(each.fields)), sentence(each.reason)) for each in MISSING]
    text += table(("answers of", "fields", "why"), rows)
    row = (
        "The HTTP API: [calls](#http-api)",
        f"{len(ALL)} calls, {fields} fields",
        f"{len(STATUS) + len(NOT_YET)} statuses",
        f"{len(MISSING)} groups of fields",
    )
    return Section("HTTP API", row, text)
