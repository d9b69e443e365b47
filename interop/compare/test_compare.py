"""Every conversation, held with a broker of this checkout and compared with what RabbitMQ answered: see README.md."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.compare import records
from interop.compare.__main__ import address_of, amqpd, compare
from interop.compare.conversations import ALL, collected
from interop.compare.differences import ALLOWED, NOT_YET, Difference, due, not_yet, told
from interop.compare.party import Address
from interop.compare.stage import Stage, in_order
from interop.compare.steps import publish, say, talk

RECORDS = records.load()


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with amqpd(tmp_path_factory.mktemp("compare")) as process:
        address = address_of(process)
        yield address
        address.tools.close()
        assert "Traceback" not in process.stderr, process.stderr


@pytest.fixture(scope="module")
def compared(ours: Address, request: pytest.FixtureRequest) -> dict[str, list[str]]:
    """All conversations that were chosen, held several at once: most of their time is waiting."""
    params = [getattr(getattr(item, "callspec", None), "params", {}) for item in request.session.items]
    return compare([ALL[each["name"]] for each in params if each.get("name") in ALL], ours)


@pytest.mark.parametrize("name", ALL)
def test_ours_answers_as_rabbitmq_did(name: str, compared: dict[str, list[str]]) -> None:
    found = compared[name]
    if found and not_yet(name):
        pytest.skip(f"not yet: {not_yet(name)}")
    assert not found, "\n".join(found)


def test_every_difference_that_is_allowed_is_there() -> None:
    used: set[Difference] = set()
    for name, conversation in ALL.items():
        due(name, records.answers(RECORDS, conversation), used)
    assert [each for each in ALLOWED if each not in used] == []
    assert all(each.reason for each in ALLOWED)
    assert [pattern for pattern in NOT_YET if not any(not_yet(name) == NOT_YET[pattern] for name in ALL)] == []


def test_no_record_is_left_of_what_nobody_says() -> None:
    assert [name for name in RECORDS if name not in ALL] == []


def test_there_are_hundreds_and_each_is_there_once() -> None:
    assert len(collected()) >= 300


def test_a_difference_is_seen(ours: Address) -> None:
    """What a broker says otherwise, what it does not say, and what it says beyond that."""
    conversation = talk("t/t", say("queue.declare", queue="q", durable=True), publish("q"), say("basic.get", queue="q"))
    with Stage(ours, 9001) as stage:
        heard = stage.record(conversation)
    assert heard[:2] == [["a.1 queue.declare-ok queue=q message_count=0 consumer_count=0"], []]
    for step, line in ((0, heard[0][0].replace("=q", "=r")), (1, "a.1 basic.ack 1"), (2, None)):
        wanted = [list(lines) for lines in heard]
        wanted[step] = [line] if line else []
        with Stage(ours, 9002) as stage:
            assert told("t/t", wanted, stage.replay(conversation, wanted)), step
    with Stage(ours, 9002) as stage:
        assert told("t/t", heard, stage.replay(conversation, heard)) == []


def test_confirms_in_any_order_are_the_same() -> None:
    lines = ["a.1 basic.return x", "a.1 basic.ack 3", "a.1 basic.ack 2", "a.1 basic.return y", "a.1 basic.ack 1"]
    assert in_order(lines) == [lines[0], lines[2], lines[1], *lines[3:]]


def test_a_record_of_other_steps_is_refused() -> None:
    conversation = next(iter(ALL.values()))
    changed = talk(conversation.name, *conversation.steps, say("queue.purge", queue="q"))
    with pytest.raises(records.Outdated):
        records.answers(RECORDS, changed)


def test_nothing_here_is_of_the_server() -> None:
    """Who judges shares no code with whom it judges: the client is bytes and sockets."""
    importlib.import_module("interop.compare.stage")
    source = "".join(
        path.read_text("utf-8")
        for path in Path(__file__).parent.rglob("*.py")
        if path.name != "test_compare.py" and path.parent.name != "page"
    )
    assert "import amqpd" not in source and source.count("from amqpd") == source.count("from amqpd.testing") == 1
    assert "interop.compare.party" in sys.modules
