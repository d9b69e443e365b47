"""The conversations: the requests to both brokers, and the differences of their answers."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from interop.compare import records
from interop.compare.conversations import ALL
from interop.compare.differences import ALLOWED, FAULT, Difference, of_line, who
from interop.compare.page.markdown import Section, apart, code, sentence, table
from interop.compare.steps import Connect, Conversation, Ctl, Http, Leave, Publish, Say, Step, Wait

TOOLS: Final = "tools"
"""The family of command lines, which commands.py describes."""
REFUSAL: Final = re.compile(r"http [45]\d\d|(?:channel|connection)\.close \d{3}")
FAMILIES: Final = {
    "access": "permissions and logins",
    "consume": "consumers: prefetch, acks, requeue, cancel",
    "dead letters": "dead letters",
    "declare": "queues: each argument, each value, declared again",
    "ends": "queues that end themselves",
    "events": "the event exchange",
    "exchange types": "exchange types of plugins",
    "exchanges": "exchanges",
    "firehose": "the firehose",
    "limits": "limits of length, overflow",
    "limits of users": "limits of users",
    "limits of vhosts": "limits of virtual hosts",
    "methods": "methods that are none, and out of order",
    "names": "names",
    "parameters": "parameters",
    "policies": "policies and operator policies",
    "priorities": "priorities",
    "publish": "publishing: returns, confirms, properties, immediate",
    "routing": "routing of each exchange type",
    "streams": "streams over AMQP",
    "tx": "transactions",
}


class Seen(NamedTuple):
    """One differing line. ours: empty if amqpd does not send it."""

    conversation: Conversation
    step: Step
    theirs: str
    ours: list[str]
    reason: str


def peer() -> str:
    """Return the product and version in the record."""
    made_with = {json.loads(path.read_text("utf-8"))["made_with"] for path in records.FOLDER.glob("*.json")}
    return " and ".join(sorted(made_with))


def heard(*, tools: bool) -> Iterator[tuple[Conversation, Step, int, list[str]]]:
    """Yield every step with RabbitMQ's answers; tools: only the tools' conversations, else all others."""
    kept = records.load()
    for conversation in ALL.values():
        if (conversation.family == TOOLS) == tools:
            for place, lines in enumerate(records.answers(kept, conversation)):
                yield conversation, conversation.steps[place], place + 1, lines


def seen(*, tools: bool) -> list[Seen]:
    found = []
    mine: dict[str, list[Difference]] = {}
    for conversation, step, number, lines in heard(tools=tools):
        allowed = mine.setdefault(conversation.name, who(conversation.name, ALLOWED))
        for line in lines:
            difference, ours = of_line(allowed, number, line)
            if difference is not None:
                found.append(Seen(conversation, step, line, ours, difference.reason))
    return found


def faults() -> list[tuple[Conversation, Step, str]]:
    """Return the steps that RabbitMQ answers with an internal error."""
    return [
        (conversation, step, line)
        for conversation, step, _number, lines in heard(tools=False)
        for line in lines
        if FAULT.search(line)
    ]


def said(step: Step) -> str:
    """Return a step in one line, as a client or user would write it."""
    match step:
        case Say(method=method, arguments=arguments):
            told = " ".join(f"{name}={_value(value)}" for name, value in arguments.items() if value not in ({}, False))
            return f"{method} {told}".strip()
        case Publish(key=key, exchange=exchange, properties=properties):
            told = "".join(f" {name}={_value(value)}" for name, value in properties.items())
            return f"basic.publish exchange={exchange} routing_key={key}{told}"
        case Http(verb=verb, path=path, body=body):
            return f"{verb} {path}" + (f" {json.dumps(body)}" if body is not None else "")
        case Ctl(words=words):
            return shlex.join(words).replace("'{v}'", "{v}").replace("'{u}'", "{u}")
        case Connect(user=user, vhost=vhost):
            return f"a connection of {user} to {vhost}"
        case Leave():
            return "the connection is lost"
        case Wait(ms=ms):
            return f"{ms} ms later"
        case _:
            return type(step).__name__


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}={_value(each)}" for name, each in value.items()) + "}"
    if isinstance(value, str):
        return value
    letter = getattr(value, "letter", None) or getattr(value, "kind", None)
    return f"{letter}:{value.value}" if letter else json.dumps(value, default=str)


def answered(lines: list[str]) -> str:
    """Leave out details of no interest: the channel, and AMQP's method numbers."""
    told = []
    for line in lines:
        first, _, rest = line.partition(" ")
        if len(first) == 3 and first[1] == ".":
            line = rest
        told.append(line.partition(" class_id=")[0].replace("reply_code=", "").replace("reply_text=", ""))
    return "; ".join(told) or "nothing"


def grouped(found: list[Seen]) -> list[tuple[Seen, int]]:
    """Group by family and reason: the first of each and the count. `as above` belongs to the reason above it."""
    groups: dict[tuple[str, str], tuple[Seen, int]] = {}
    above = ""
    for each in found:
        above = above if each.reason in ("as above", "so that there is something to ack") else each.reason
        key = (each.conversation.family, above)
        first, count = groups.get(key, (each, 0))
        groups[key] = (first, count + 1)
    return list(groups.values())


def _is_text(each: Seen) -> bool:
    """Return True if both refuse with the same code and only the texts differ."""
    codes = [REFUSAL.match(answered(lines)) for lines in ([each.theirs], each.ours)]
    return codes[0] is not None and codes[1] is not None and codes[0][0] == codes[1][0]


def _shown(groups: list[tuple[Seen, int]]) -> str:
    rows = [
        (
            each.conversation.name.replace("/", ": "),
            code(said(each.step)) + (f" and {count - 1} more" if count > 1 else ""),
            *apart(answered([each.theirs]), answered(each.ours)),
            sentence(each.reason),
        )
        for each, count in groups
    ]
    return table(("about", "step", "RabbitMQ", "amqpd", "why"), rows)


def section() -> Section:
    found = seen(tools=False)
    groups = grouped(found)
    failed = faults()
    families: dict[str, list[int]] = {}
    for conversation, _step, number, _lines in heard(tools=False):
        counts = families.setdefault(conversation.family, [0, 0, 0])
        counts[0] += number == 1
        counts[1] += 1
    for each in found:
        families[each.conversation.family][2] += 1
    conversations, steps = (sum(counts[place] for counts in families.values()) for place in (0, 1))
    text = (
        f"{conversations} conversations of {steps} steps, spoken over sockets as bytes. Compared are reply codes and "
        "texts, the order of methods, delivery tags, headers with their types, counts. `{v}` is the virtual "
        "host, `{u}` the user.\n\n"
    )
    rows = [
        (FAMILIES.get(family, family), f"{counts[0]}", f"{counts[1]}", f"{counts[2]}" if counts[2] else "none")
        for family, counts in sorted(families.items())
    ]
    text += table(("about", "conversations", "steps", "answers that differ"), rows)
    text += "\n### What amqpd does otherwise\n\n" + _shown([pair for pair in groups if not _is_text(pair[0])])
    text += "\n### What both refuse, in other words\n\n" + _shown([pair for pair in groups if _is_text(pair[0])])
    text += (
        f"\n### Where RabbitMQ fails\n\nIn {len(failed)} of the steps {peer()} answers with an error of its own (541, "
        "or HTTP status 500). amqpd answers what was asked, or says what is wrong with it.\n\n"
    )
    first = {said(step): code(answered([line])) for _, step, line in reversed(failed)}
    text += table(("step", "RabbitMQ"), [(code(step), line) for step, line in reversed(first.items())])
    row = (
        "AMQP 0-9-1: [conversations](#amqp-0-9-1)",
        f"{conversations} conversations, {steps} steps",
        f"{len(found)} answers, {len(groups)} reasons",
        "none",
    )
    return Section("AMQP 0-9-1", row, text)
