from __future__ import annotations

from typing import Any

import pytest
from fake_broker import Ctl, FakeBroker

QUEUE = "/api/queues/shop/a%2Fb"
JOB: dict[str, Any] = {
    "id": "3", "action": "move", "vhost": "shop", "queue": "a/b", "state": "done", "reason": "", "messages": 9,
    "done": 5, "left": {}, "dry_run": False, "ended": 1, "rate": 1000, "user": "guest",
    "hint": "",
}  # fmt: skip
MESSAGE = {
    "offset": 7, "time": 1700000000000, "state": "ready", "routing_key": "k", "payload_bytes": 2, "payload": "hi",
    "properties": {"message_id": "m", "headers": {"a": 1}},
}  # fmt: skip


def test_browse_queue_prints_messages_and_sends_query(broker: FakeBroker, ctl: Ctl) -> None:
    page = {"messages": [MESSAGE], "next_offset": 8, "ended": True, "hint": ""}
    broker.answers["GET", f"{QUEUE}/messages"] = (200, page)
    assert ctl("browse_queue", "-p", "shop", "a/b") == (
        0,
        (
            "Browsing queue a/b in vhost shop ...\noffset\ttime\tstate\trouting_key\tpayload_bytes\tpayload\n"
            "7\t1700000000000\tready\tk\t2\thi\n"
        ),
        "",
    )
    assert broker.requests[0].path.endswith("?count=100")
    line = ("browse_queue", "-p", "shop", "--where", "a = 1", "--from-offset", "5", "--limit", "3", "a/b", "message_id")
    assert ctl("-q", *line).out == "message_id\nm\n"
    assert broker.requests[1].path.endswith("?offset=5&where=a+%3D+1&count=3")
    ctl("-q", "browse_queue", "-p", "shop", "--from-time", "2026-11-22", "a/b")
    assert broker.requests[2].path.endswith("?time=2026-11-22&count=100")


def test_browse_reads_pages_until_limit(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", f"{QUEUE}/messages"] = (200, {"messages": [MESSAGE] * 2, "next_offset": 9, "ended": False})
    assert ctl("-q", "browse_queue", "-p", "shop", "--limit", "5", "a/b", "offset").out == "offset\n" + "7\n" * 6
    assert [request.path.partition("?")[2] for request in broker.requests] == [
        "count=5",
        "offset=9&count=3",
        "offset=9&count=1",
    ]


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (("move_messages", "--to-queue", "x"), {"action": "move", "to_queue": "x"}),
        (
            ("copy_messages", "--to-exchange", "x", "--routing-key", "k", "--from-offset", "4", "--limit", "2"),
            {"action": "copy", "to_exchange": "x", "routing_key": "k", "offset": 4, "limit": 2},
        ),
        (("delete_messages", "--where", "a = 1"), {"action": "delete", "where": "a = 1"}),
        (("redrive", "--dry-run"), {"action": "redrive", "dry_run": True}),
    ],
)
def test_job_command_sends_body_and_prints_result(
    broker: FakeBroker, ctl: Ctl, line: tuple[str, ...], body: dict[str, Any]
) -> None:
    job = {**JOB, "action": body["action"], "dry_run": "dry_run" in body, "left": {"no target": 2}}
    broker.answers["POST", f"{QUEUE}/jobs"] = (200, job)
    result = ctl("-q", *line, "-p", "shop", "a/b")
    assert (result.code, result.err) == (0, "")
    verb = {"move": "moved", "copy": "copied", "delete": "deleted", "redrive": "would be sent back"}[body["action"]]
    assert result.out == f"5 messages {verb}\n2 left: no target\n"
    assert broker.requests[0].body == {**body, "wait_ms": 500}


def test_hint_of_the_broker_is_printed(broker: FakeBroker, ctl: Ctl) -> None:
    hint = "p.message-id is the property, message_id a header"
    broker.answers["POST", f"{QUEUE}/jobs"] = (200, {**JOB, "done": 0, "hint": hint})
    empty_page = {"messages": [], "next_offset": 0, "ended": True, "hint": hint}
    broker.answers["GET", f"{QUEUE}/messages"] = (200, empty_page)
    line = ("--where", "message_id = 'm'", "-p", "shop", "a/b")
    assert ctl("delete_messages", *line).err == hint + "\n"
    assert ctl("browse_queue", *line).err == hint + "\n"


def test_progress_is_printed_on_stderr(broker: FakeBroker, ctl: Ctl) -> None:
    running = {**JOB, "state": "waiting", "reason": "the target is full", "ended": None, "done": 2}
    broker.answers["POST", f"{QUEUE}/jobs"] = (202, running)
    broker.answers["GET", "/api/amqpd/jobs/3"] = (200, JOB)
    result = ctl("move_messages", "-p", "shop", "--to-queue", "x", "a/b")
    assert result == (
        0,
        "Moving messages of queue 'a/b' in vhost 'shop' ...\n5 messages moved\n",
        "2 of 9 messages, 1000 per second, waits: the target is full\n",
    )


def test_detach_does_not_wait_for_the_job(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["POST", f"{QUEUE}/jobs"] = (202, {**JOB, "state": "running", "ended": None})
    result = ctl("-q", "redrive", "--detach", "-p", "shop", "a/b")
    assert result == (0, "Job 3 has begun: amqpctl list_jobs\n", "")
    assert broker.requests[0].body == {"action": "redrive", "wait_ms": 0}


@pytest.mark.parametrize(("state", "reason"), [("failed", "queue 'x' was deleted"), ("stopped", "")])
def test_failed_or_stopped_job_is_an_error(broker: FakeBroker, ctl: Ctl, state: str, reason: str) -> None:
    broker.answers["POST", f"{QUEUE}/jobs"] = (200, {**JOB, "state": state, "reason": reason})
    result = ctl("-q", "move_messages", "--to-queue", "x", "-p", "shop", "a/b")
    assert result == (70, "", f"Error:\n{state}: {reason or 'by hand'}; 5 messages moved\n")


def test_unknown_job_means_broker_was_restarted(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["POST", f"{QUEUE}/jobs"] = (202, {**JOB, "ended": None})
    result = ctl("-q", "move_messages", "--to-queue", "x", "-p", "shop", "a/b")
    assert (result.code, result.out) == (69, "")
    assert "job 3 is unknown: the broker was restarted" in result.err


@pytest.mark.parametrize(
    "line",
    [
        ("move_messages", "q"),
        ("move_messages", "--to-queue", "a", "--to-exchange", "b", "q"),
        ("move_messages", "--to-queue", "a"),
        ("move_messages", "--to-queue", "a", "--from-offset", "1", "q"),
        ("copy_messages", "--to-queue", "a", "--from-offset", "1", "--from-time", "2", "q"),
        ("copy_messages", "--to-queue", "a", "--limit", "x", "q"),
        ("delete_messages", "q"),
        ("browse_queue",),
        ("browse_queue", "q", "nonsense"),
        ("redrive", "a", "b"),
        ("stop_job",),
        ("list_jobs", "nonsense"),
    ],
)
def test_bad_arguments_send_nothing(broker: FakeBroker, ctl: Ctl, line: tuple[str, ...]) -> None:
    assert ctl(*line).code == 64
    assert broker.requests == []


@pytest.mark.parametrize(("status", "code"), [(400, 64), (404, 69)])
def test_refusal_sets_exit_code(broker: FakeBroker, ctl: Ctl, status: int, code: int) -> None:
    refusal = (status, {"reason": "so"})
    broker.answers["POST", f"{QUEUE}/jobs"] = refusal
    broker.answers["GET", f"{QUEUE}/messages"] = refusal
    broker.answers["DELETE", "/api/amqpd/jobs/9"] = refusal
    for line in (("redrive", "a/b"), ("browse_queue", "a/b"), ("stop_job", "9")):
        assert ctl("-q", "-p", "shop", *line) == (code, "", "Error:\nso\n")


def test_list_jobs_and_stop_job(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/amqpd/jobs"] = (200, [JOB])
    assert ctl("-q", "list_jobs").out == (
        "id\taction\tvhost\tqueue\tstate\tdone\trate\n3\tmove\tshop\ta/b\tdone\t5\t1000\n"
    )
    broker.answers["DELETE", "/api/amqpd/jobs/3"] = (200, {**JOB, "state": "stopped"})
    assert ctl("-q", "stop_job", "3") == (0, "Job 3 is stopped after 5 messages\n", "")
