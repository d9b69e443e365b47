"""Every conversation with a broker of this checkout, compared with RabbitMQ's recorded answers: see README.md."""

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

pytestmark = pytest.mark.slow

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
    """The results of all selected conversations. Several run at once, because most of their time is waiting."""
    params = [getattr(getattr(item, "callspec", None), "params", {}) for item in request.session.items]
    return compare([ALL[each["name"]] for each in params if each.get("name") in ALL], ours)


@pytest.mark.parametrize("name", ALL)
def test_amqpd_answers_as_rabbitmq_did(name: str, compared: dict[str, list[str]]) -> None:
    found = compared[name]
    if found and not_yet(name):
        pytest.skip(f"not yet: {not_yet(name)}")
    assert not found, "\n".join(found)


def test_every_allowed_difference_is_used_and_has_a_reason() -> None:
    used: set[Difference] = set()
    for name, conversation in ALL.items():
        due(name, records.answers(RECORDS, conversation), used)
    assert [each for each in ALLOWED if each not in used] == []
    assert all(each.reason for each in ALLOWED)
    assert [pattern for pattern in NOT_YET if not any(not_yet(name) == NOT_YET[pattern] for name in ALL)] == []


def test_every_record_belongs_to_a_conversation() -> None:
    assert [name for name in RECORDS if name not in ALL] == []


def test_there_are_300_conversations() -> None:
    assert len(collected()) >= 300


def test_changed_missing_and_extra_answers_are_found(ours: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is changed in three ways; each change must be found."""
    monkeypatch.setattr("interop.compare.stage.DUE_S", 3.0)  # the answer that is missing is waited for so long
    conversation = talk("t/t", say("queue.declare", queue="q", durable=True), publish("q"), say("basic.get", queue="q"))
    with Stage(ours, 9001) as stage:
        recorded = stage.record(conversation)
    assert recorded[:2] == [["a.1 queue.declare-ok queue=q message_count=0 consumer_count=0"], []]
    for step, line in ((0, recorded[0][0].replace("=q", "=r")), (1, "a.1 basic.ack 1"), (2, None)):
        wanted = [list(lines) for lines in recorded]
        wanted[step] = [line] if line else []
        with Stage(ours, 9002) as stage:
            assert told("t/t", wanted, stage.replay(conversation, wanted)), step
    with Stage(ours, 9002) as stage:
        assert told("t/t", recorded, stage.replay(conversation, recorded)) == []


def test_confirms_are_compared_in_any_order() -> None:
    lines = ["a.1 basic.return x", "a.1 basic.ack 3", "a.1 basic.ack 2", "a.1 basic.return y", "a.1 basic.ack 1"]
    assert in_order(lines) == [lines[0], lines[2], lines[1], *lines[3:]]


def test_record_of_changed_steps_is_refused() -> None:
    conversation = next(iter(ALL.values()))
    changed = talk(conversation.name, *conversation.steps, say("queue.purge", queue="q"))
    with pytest.raises(records.Outdated):
        records.answers(RECORDS, changed)


def test_comparison_shares_no_code_with_the_server() -> None:
    """The client uses only bytes and sockets, so that a bug in amqpd's codec cannot hide."""
    importlib.import_module("interop.compare.stage")
    source = "".join(
        path.read_text("utf-8")
        for path in Path(__file__).parent.rglob("*.py")
        if path.name != "test_compare.py" and path.parent.name != "page"
    )
    assert "import amqpd" not in source and source.count("from amqpd") == source.count("from amqpd.testing") == 1
    assert "interop.compare.party" in sys.modules
