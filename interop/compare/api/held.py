"""Makes the API calls and records the status and the field names of each answer.

    [{"call": "GET /api/whoami", "status": 200, "fields": ["is_internal_user", "name", "tags[]"]}, ...]

A field is its path, with `[]` for any element of a list. A table whose keys users choose (arguments, headers, client
properties and the like) is one field. An empty list or object has no fields, so those below it are unknown.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

from .calls import Call
from .state import State

RECORD: Final = Path(__file__).parent / "rabbitmq.json"
OPAQUE: Final = frozenset(
    {
        *("arguments", "client_properties", "headers", "definition", "effective_policy_definition", "value"),
        *("cluster_state", "properties", "policy", "operator_policy", "breakdown"),
    }
)


class Answer(NamedTuple):
    status: int
    fields: list[str]


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of a value's fields, each as often as it occurs."""
    if isinstance(value, dict):
        for name, item in value.items():
            deeper = f"{path}.{name}" if path else name
            yield deeper
            if name not in OPAQUE:
                yield from fields(item, deeper)
    elif isinstance(value, list):
        for item in value:
            yield from fields(item, path + "[]")


def hold(state: State, call: Call) -> Answer:
    connection = HTTPConnection(state.address.host, state.address.http_port, timeout=30)
    path = call.path
    for name, value in state.names.items():
        path = path.replace("{" + name + "}", value)
    password = "guest" if call.user == "guest" else "pw"
    headers = {"Authorization": "Basic " + b64encode(f"{call.user}:{password}".encode()).decode(), **dict(call.headers)}
    data = call.text.encode() if call.text is not None else None
    if call.body is not None:
        data = json.dumps(call.body).replace("{node}", state.names["node"].replace("%40", "@")).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.request(call.method, path, data, headers)
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    found: list[str] = []
    if response.status == 200 and response.headers.get("Content-Type", "").startswith("application/json"):
        found = sorted(set(fields(json.loads(text)))) if text else []
    return Answer(response.status, found)


def hold_all(state: State, calls: Sequence[Call]) -> list[Answer]:
    answers: list[Answer] = []
    for call in calls:
        answers.append(hold(state, call))
        if call.method not in ("GET", "HEAD", "OPTIONS"):
            time.sleep(0.01)
    return answers


def save(version: str, calls: Sequence[Call], answers: Sequence[Answer]) -> None:
    lines = [
        json.dumps({"call": call.name(), "status": answer.status, "fields": answer.fields})
        for call, answer in zip(calls, answers, strict=True)
    ]
    RECORD.write_text(f'{{"made_with": {json.dumps(version)}, "answers": [\n' + ",\n".join(lines) + "\n]}\n", "utf-8")


def load() -> dict[str, list[Answer]]:
    """Return the answers by the call's name; a repeated call has several answers."""
    found: dict[str, list[Answer]] = {}
    for each in json.loads(RECORD.read_text("utf-8"))["answers"]:
        found.setdefault(each["call"], []).append(Answer(each["status"], each["fields"]))
    return found
