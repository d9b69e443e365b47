"""Output to a terminal, which differs from output to a file."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from fake_broker import FakeBroker

from amqpd.cli.main import run


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_in_terminal(directory: Path, *arguments: str) -> tuple[str, str]:
    out, err = Terminal(), Terminal()
    run(["-n", "n@h", *arguments], out, err, io.StringIO(), {"AMQPD_DATA_DIR": str(directory)})
    return out.getvalue(), err.getvalue()


def test_list_is_aligned_unless_formatter_is_given(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    queues = [{"name": "orders", "messages": 5}, {"name": "q", "messages": 1000}]
    broker.answers["GET", "/api/queues/%2F"] = (200, queues)
    out, _ = run_in_terminal(broker.data_dir, "-q", "list_queues")
    assert out == "\x1b[1mname    messages\x1b[0m\norders         5\nq           1000\n"
    out, _ = run_in_terminal(broker.data_dir, "-q", "list_queues", "--formatter", "table")
    assert out == "name\tmessages\norders\t5\nq\t1000\n"


def test_errors_are_red_unless_no_color_is_set(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, err = run_in_terminal(broker.data_dir, "purge_queue", "nosuch")
    assert err.startswith("\x1b[31mError:\x1b[0m\nQueue not found")
    monkeypatch.setenv("NO_COLOR", "1")
    out, err = run_in_terminal(broker.data_dir, "purge_queue", "nosuch")
    assert "\x1b" not in out + err


def test_names_and_texts_of_others_do_not_control_the_terminal(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Kafka client chooses the name of its protocol, and an AMQP client names of queues."""
    monkeypatch.setenv("NO_COLOR", "1")
    evil = "\x1b]0;owned\x07\x9b2J"
    group = {"name": "g", "type": "classic", "state": "Stable", "protocol": evil, "members": [], "offsets": []}
    broker.answers["GET", "/api/amqpd/kafka/groups/%2F/g"] = (200, group)
    out, _ = run_in_terminal(broker.data_dir, "describe_kafka_group", "g")
    assert out.splitlines()[1] == "type classic, state Stable, protocol \\x1b]0;owned\\x07\\x9b2J"
    page = {"messages": [], "next_offset": 0, "ended": True, "hint": evil}
    broker.answers["GET", "/api/queues/%2F/q/messages"] = (200, page)
    _, err = run_in_terminal(broker.data_dir, "browse_queue", "q")
    assert err == "\\x1b]0;owned\\x07\\x9b2J\n"
    broker.answers["DELETE", "/api/amqpd/jobs/1"] = (404, {"reason": "Not Found", "detail": f"two\nlines {evil}"})
    _, err = run_in_terminal(broker.data_dir, "stop_job", "1")
    assert "\nlines" in err
    assert not set(err) & {"\x1b", "\x07", "\x9b"}
