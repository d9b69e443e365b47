"""Commands of rabbitmq-diagnostics 3.13 that poll, and those about mirroring policies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd.cli import diagnostics

POLICIES: list[dict[str, Any]] = [
    {"vhost": "/", "name": "caps", "pattern": "^q", "apply-to": "all", "definition": {"max-length": 5}, "priority": 0},
    {"vhost": "/", "name": "ha", "pattern": ".*", "apply-to": "all", "definition": {"ha-mode": "all"}, "priority": 0},
    {
        "vhost": "shop",
        "name": "both",
        "pattern": ".*",
        "apply-to": "queues",
        "definition": {"ha-mode": "exactly", "ha-params": 2, "max-length": 5},
        "priority": 3,
    },
]
COMMAND = "check_if_cluster_has_classic_queue_mirroring_policy"


def test_mirroring_policies_are_found(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/policies"] = (200, POLICIES)
    broker.answers["GET", "/api/operator-policies"] = (200, [])
    result = ctl("-q", COMMAND)
    assert (result.code, result.out) == (69, "")
    assert "Policy ha enables classic queue mirroring\nPolicy both enables" in result.err
    report = json.loads(ctl(COMMAND, "--formatter", "json").out)
    assert (report["result"], [each["name"] for each in report["policies"]]) == ("error", ["ha", "both"])
    rows = ctl("-s", "list_policies_with_classic_queue_mirroring").out.splitlines()
    assert rows[0] == '/\tha\t.*\tall\t{"ha-mode":"all"}\t0'
    assert len(rows) == 2
    assert ctl("-s", "list_operator_policies_with_classic_queue_mirroring").out == ""


def test_mirroring_is_removed_from_policies(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/policies"] = (200, POLICIES)
    broker.answers["GET", "/api/operator-policies"] = (200, [])
    broker.answers["DELETE", "/api/policies/%2F/ha"] = (204, None)
    broker.answers["PUT", "/api/policies/shop/both"] = (204, None)
    result = ctl("remove_classic_queue_mirroring_from_policies")
    assert (result.code, result.err) == (0, "")
    assert "Policy ha of vhost '/' removed\nPolicy both of vhost 'shop' changed\n" in result.out
    changes = [each for each in broker.requests if each.method != "GET"]
    assert [(each.method, each.path) for each in changes] == [
        ("DELETE", "/api/policies/%2F/ha"),
        ("PUT", "/api/policies/shop/both"),
    ]
    assert changes[1].body == {"pattern": ".*", "apply-to": "queues", "priority": 3, "definition": {"max-length": 5}}


def test_no_mirroring_policy_is_ok(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/policies"] = (200, POLICIES[:1])
    broker.answers["GET", "/api/operator-policies"] = (200, [])
    assert ctl("-q", COMMAND) == (0, "Cluster reported no policies enabling classic queue mirroring\n", "")
    assert json.loads(ctl(COMMAND, "--formatter", "json").out) == {"result": "ok"}


def test_consume_event_stream_filters_and_reports_lost_events(
    broker: FakeBroker, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "FOLLOW_S", 0.0)
    events = [{"event": "queue.created", "name": "q"}, {"event": "user.created", "name": "u"}]
    answers = iter([{"position": 7, "lost": 0, "events": []}, {"position": 9, "lost": 2, "events": events}])
    last = {"position": 9, "lost": 0, "events": []}
    paths: list[str] = []

    def get(_self: object, path: str) -> Any:
        paths.append(path)
        return next(answers, last)

    monkeypatch.setattr("amqpd.cli.client.ApiClient.get", get)
    result = ctl("-q", "consume_event_stream", "--duration", "0", "--pattern", "^queue")
    assert (result.code, result.out) == (0, '{"event":"queue.created","name":"q"}\n')
    assert result.err == "2 events are missing: there were too many at once\n"
    # The duration ends the command although events continue.
    assert paths == ["/api/amqpd/events", "/api/amqpd/events?position=7"]
    assert ctl("consume_event_stream", "--pattern", "(").code == 64


def thread(number: int, name: str, state: str, at: list[str], user_s: float = 0.0) -> dict[str, Any]:
    return {"id": number, "name": name, "state": state, "user_s": user_s, "system_s": 0.0, "at": at}


def test_maybe_stuck_reports_thread_waiting_for_disk(
    broker: FakeBroker, ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnostics, "PAUSE_S", 0.0)
    broker.answers["GET", "/api/amqpd/threads"] = (
        200,
        [
            thread(1, "MainThread", "R", ["get_threads:1"]),
            thread(2, "committer", "D", ["fdatasync:3", "run:4"]),
            thread(3, "idle", "S", ["wait:5"]),
            thread(4, "native", "R", []),
        ],
    )
    result = ctl("-q", "maybe_stuck")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].endswith("There are 4 threads.")
    assert [line.partition(" ")[2].partition(" ")[2] for line in lines[-2:-1]] == ["Found 1 suspicious threads."]
    assert lines[-1] == "committer waits for a disk at fdatasync:3 < run:4"


def test_runtime_thread_stats_prints_cpu_percent(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([[thread(1, "MainThread", "R", [], 10.0)], [thread(1, "MainThread", "R", [], 10.5)]])
    times = iter([100.0, 101.0])
    monkeypatch.setattr("amqpd.cli.client.ApiClient.get", lambda _self, _path: next(answers))
    monkeypatch.setattr(diagnostics.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(diagnostics.time, "sleep", lambda _seconds: None)
    assert ctl("-s", "runtime_thread_stats", "--sample-interval", "1").out == "MainThread\t50.0\t0.0\t50.0\n"
    assert ctl("runtime_thread_stats", "--sample-interval", "0").code == 64


def test_stream_tracking_lists_offsets_only(broker: FakeBroker, ctl: Ctl) -> None:
    path = ("GET", "/api/queues/%2F/s/offsets")
    broker.answers[path] = (200, [{"name": "app", "offset": 7, "lag": 1, "time": 0}])
    assert ctl("-q", "list_stream_tracking", "s").out == "type\tname\toffset (sequence)\noffset\tapp\t7\n"
    assert ctl("-q", "list_stream_tracking", "s", "--offset").out == "type\tname\toffset\noffset\tapp\t7\n"
    assert ctl("-q", "list_stream_tracking", "s", "--writer").out == ""
    assert ctl("list_stream_tracking", "s", "--writer", "--all").code == 64
    broker.answers["GET", "/api/amqpd/ping"] = (200, {})
    assert ctl("-q", "list_stream_consumer_groups") == (0, "", "")
    assert ctl("list_stream_group_consumers").code == 64
    assert ctl("list_stream_group_consumers", "--stream", "s", "--reference", "r").code == 65
