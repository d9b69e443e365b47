"""RabbitMQ's recorded answers as JSON: one file per family, one conversation per line.

    {"made_with": "RabbitMQ 3.10.8", "conversations": {
    "tx/commit": {"steps": "<fingerprint>", "heard": [["a.1 tx.select-ok"], ...]},
    ...

The fingerprint is that of the recorded steps: if the steps change, the conversation must be recorded again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .stage import Answers
from .steps import Conversation

FOLDER: Final = Path(__file__).parent / "rabbitmq"


class Outdated(Exception):
    """There is no record of these steps; the text says how to create it."""


def load() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for path in sorted(FOLDER.glob("*.json")):
        found |= json.loads(path.read_text("utf-8"))["conversations"]
    return found


def answers(records: Mapping[str, Mapping[str, object]], conversation: Conversation) -> Answers:
    """Return the recorded answers. Raises: Outdated."""
    record = records.get(conversation.name)
    if record is None or record["steps"] != conversation.fingerprint():
        raise Outdated(f"{conversation.name}: not recorded with these steps; make compare-record")
    return record["heard"]  # type: ignore[return-value]


def save(
    made_with: str, made: Mapping[str, tuple[Conversation, Answers]], all_names: Mapping[str, Conversation]
) -> None:
    """Add these records to the others, and remove those without a conversation."""
    records = {name: record for name, record in load().items() if name in all_names}
    for name, (conversation, heard) in made.items():
        records[name] = {"steps": conversation.fingerprint(), "heard": heard}
    FOLDER.mkdir(exist_ok=True)
    families = {all_names[name].family for name in records}
    for family in families:
        lines = [
            f"{json.dumps(name)}: {json.dumps(records[name], ensure_ascii=False, separators=(',', ':'))}"
            for name in sorted(records)
            if all_names[name].family == family
        ]
        text = f'{{"made_with": {json.dumps(made_with)}, "conversations": {{\n' + ",\n".join(lines) + "\n}}\n"
        (FOLDER / f"{family.replace(' ', '-')}.json").write_text(text, "utf-8")
    for path in FOLDER.glob("*.json"):
        if path.stem not in {family.replace(" ", "-") for family in families}:
            path.unlink()
