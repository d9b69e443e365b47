"""RabbitMQ's command line tools: compared exit codes, columns and keys; the commands of 3.13 by name."""

from __future__ import annotations

from amqpd.cli.help import ELSEWHERE, NOTHING_TO_DO, ONE_NODE
from amqpd.cli.main import TOOLS
from interop.compare.commands_3_13 import NAMES
from interop.compare.page import amqp
from interop.compare.page.markdown import Section, code, codes, sentence, table
from interop.compare.steps import Ctl


def section() -> Section:
    steps = [step for _, step, _, _ in amqp.heard(tools=True) if isinstance(step, Ctl)]
    found = [each for each in amqp.seen(tools=True) if isinstance(each.step, Ctl)]
    outputs = sum(1 for step in steps if step.show)
    text = (
        f"{len(steps)} command lines, with RabbitMQ's tools and with amqpctl under [their names](amqpctl.md). Compared "
        f"is the exit code of each, and of {outputs} what they print for programs: columns, rows, keys of JSON. Texts "
        "for people are amqpd's own.\n\n### What amqpctl answers otherwise\n\n"
    )
    rows: list[tuple[str, ...]] = [
        (
            code(amqp.said(each.step)),
            code(amqp.answered([each.theirs]).partition(" exits ")[2] or each.theirs.strip()),
            code(amqp.answered(each.ours).partition(" exits ")[2] or " ".join(each.ours).strip()),
            sentence(each.reason),
        )
        for each in found
    ]
    text += table(("command line", "RabbitMQ", "amqpctl", "why"), rows)
    text += "\n### Every command of RabbitMQ 3.13\n\nOf each of its tools, those of its plugins among them.\n\n"
    rows = []
    missing: set[str] = set()
    for tool, names in NAMES.items():
        here = TOOLS[tool].commands
        works = [name for name in names if name in here and name not in ONE_NODE | NOTHING_TO_DO]
        alone = [name for name in names if name in here and name in ONE_NODE | NOTHING_TO_DO]
        gone = [name for name in names if name not in here]
        missing |= set(gone)
        rows.append((code(tool), f"{len(names)}", f"{len(works)}", codes(alone), codes(gone)))
    text += table(("tool", "commands", "work", "answer as on a single node, or have nothing to do", "not there"), rows)
    rows = [(code(name), ELSEWHERE[name]) for name in sorted(missing)]
    text += "\n" + table(("not there", "why, and what there is instead"), rows)
    total = sum(len(names) for names in NAMES.values())
    codes_differ = sum(" exits " in each.theirs for each in found)
    row = (
        "The command line: [tools](#command-line-tools)",
        f"{len(steps)} command lines, {total} commands of 3.13",
        f"{codes_differ} exit codes, {len(found) - codes_differ} output",
        f"{len(missing)} commands",
    )
    return Section("Command line tools", row, text)
