"""The list of arguments for forms: each argument that has an effect, with values that the broker accepts."""

from __future__ import annotations

from typing import Any

import pytest

from amqpd.broker.queue import arguments as queue_arguments
from amqpd.broker.queue.argument_checks import IGNORED, ArgumentSpec
from amqpd.broker.vhost import exchange, policy_table
from amqpd.management.arguments import known_arguments

ROWS: dict[str, ArgumentSpec] = {**queue_arguments.ROWS, **exchange.ROWS}
ITEMS = {each["name"]: each for each in known_arguments()}
# Text arguments with a format of their own.
TEXTS = {"x-max-age": "7D", "x-retain": "3D", "x-delayed-retry-levels": "1m,5m"}


def sample(name: str, value: dict[str, Any]) -> object:
    match value["value"]:
        case "number":
            return 100_000
        case "flag":
            return True
        case "choice":
            return value["words"][-1]
    return TEXTS.get(name, "some")


@pytest.mark.parametrize("name", ROWS)
def test_argument_with_an_effect_is_offered(name: str) -> None:
    row = ROWS[name]
    hidden = row.obeyed_by == IGNORED or name in ("x-queue-type", "x-message-deduplication")
    assert (name in ITEMS) != hidden


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item["policy"]])
def test_policy_accepts_value_that_form_offers(name: str) -> None:
    key = ITEMS[name]["policy"]
    assert policy_table.keys()[key["name"]].accepts(sample(name, key))
    assert (key["name"] in policy_table.keys(operator=True)) == key["operator"]


@pytest.mark.parametrize("name", [name for name, item in ITEMS.items() if item["of"] == "queue"])
def test_queue_accepts_value_that_form_offers(name: str) -> None:
    item = ITEMS[name]
    kind = (item["types"] or ["classic"])[0]
    arguments = {"x-queue-type": kind, name: min(255, value) if isinstance(value := sample(name, item), int) else value}
    if name == "x-stream-max-segment-size-bytes":
        arguments[name] = 1 << 20
    if name == "x-dead-letter-routing-key":
        arguments["x-dead-letter-exchange"] = ""
    if name == "x-group-by":
        arguments[name] = "routing_key"
    if name == "x-export-max-bytes":
        arguments |= {"x-export": "lake", name: 1 << 30}
    if name.startswith("x-delayed-retry-"):
        arguments = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 10, **arguments}
    if name == "x-delayed-retry-levels":
        del arguments["x-delayed-retry-min"]
    queue_arguments.validate("q", "/", arguments)
