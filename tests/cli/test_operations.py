from __future__ import annotations

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd.cli.client import ApiAnswer, ApiClient

DELETE = ("POST", "/api/amqpd/delete_queue")
CLOSE = ("POST", "/api/amqpd/close_connection")
CLOSE_ALL = ("POST", "/api/amqpd/close_all_connections")


@pytest.mark.parametrize(
    ("options", "if_empty", "if_unused", "condition_text"),
    [
        ([], False, False, ""),
        (["-e"], True, False, "if queue is empty "),
        (["--if-unused"], False, True, "if queue is unused "),
        (["-u", "--if-empty"], True, True, "if queue is empty and if queue is unused "),
    ],
)
def test_delete_queue_sends_conditions_and_prints_count(
    broker: FakeBroker, ctl: Ctl, options: list[str], if_empty: bool, if_unused: bool, condition_text: str
) -> None:
    broker.answers[DELETE] = (200, {"message_count": 7})
    assert ctl("delete_queue", "q", "-p", "v", *options) == (
        0,
        f"Deleting queue 'q' on vhost 'v' {condition_text}...\nQueue was successfully deleted with 7 ready messages\n",
        "",
    )
    assert broker.requests[0].body == {"vhost": "v", "queue": "q", "if_empty": if_empty, "if_unused": if_unused}


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (404, "no queue 'q' in vhost '/'", "Queue not found"),
        (400, "queue 'q' in vhost '/' in use", "Queue is in use"),
        (400, "queue 'q' in vhost '/' not empty", "Queue is not empty"),
    ],
)
def test_refused_queue_deletion_prints_reason(
    broker: FakeBroker, ctl: Ctl, status: int, reason: str, text: str
) -> None:
    broker.answers[DELETE] = (status, {"error": "bad_request", "reason": reason})
    assert ctl("-q", "delete_queue", "q") == (64, "", f"Error:\n{text}\n")


def test_purge_queue_sends_vhost_and_queue(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["POST", "/api/amqpd/purge_queue"] = (200, {"message_count": 7})
    assert ctl("purge_queue", "q") == (0, "Purging queue 'q' in vhost '/' ...\n", "")
    assert broker.requests[0].body == {"vhost": "/", "queue": "q"}
    broker.answers.clear()
    assert ctl("-q", "purge_queue", "q") == (69, "", "Error:\nQueue not found\n")


@pytest.mark.parametrize("pid", ["<n@h.3.0>", "<amqpd-2.1795999673.10.0>"])  # of a node of a cluster
def test_close_connection_sends_pid_and_reason(broker: FakeBroker, ctl: Ctl, pid: str) -> None:
    broker.answers[CLOSE] = (204, None)
    assert ctl("close_connection", pid, "Closed via rabbitmqctl") == (
        0,
        f"Closing connection {pid}, reason: Closed via rabbitmqctl...\n",
        "",
    )
    assert broker.requests[0].body == {"pid": pid, "reason": "Closed via rabbitmqctl"}
    broker.answers.clear()
    missing = ctl("close_connection", "<n@h.3.0>", "why")
    assert (missing.code, missing.err) == (0, "There is no connection <n@h.3.0>. Was it already closed?\n")


def test_bad_pid_sends_nothing(broker: FakeBroker, ctl: Ctl) -> None:
    result = ctl("close_connection", "rubbish", "why")
    assert (result.code, broker.requests) == (69, [])
    assert 'invalid pid "rubbish"' in result.err


@pytest.mark.parametrize(
    ("options", "body", "target_text"),
    [
        ([], {"vhost": "/", "limit": 0, "per_connection_delay_ms": 0}, "all connections in vhost /"),
        (
            ["-p", "v", "--limit", "2"],
            {"vhost": "v", "limit": 2, "per_connection_delay_ms": 0},
            "2 connections in vhost v",
        ),
        (
            ["--global", "--per-connection-delay", "5"],
            {"limit": 0, "per_connection_delay_ms": 5},
            "all connections to node n@h (across all vhosts)",
        ),
    ],
)
def test_close_all_connections_sends_options_and_prints_count(
    broker: FakeBroker, ctl: Ctl, options: list[str], body: dict[str, object], target_text: str
) -> None:
    broker.answers[CLOSE_ALL] = (200, {"closed": 3})
    assert ctl("close_all_connections", *options, "bye") == (
        0,
        f"Closing {target_text}, reason: bye...\nClosed 3 connections\n",
        "",
    )
    assert broker.requests[0].body == {"reason": "bye", **body}


def test_global_and_vhost_exclude_each_other(broker: FakeBroker, ctl: Ctl) -> None:
    result = ctl("close_all_connections", "--global", "-p", "v", "bye")
    assert (result.code, broker.requests) == (64, [])


def test_dry_run_checks_arguments_and_node_only(broker: FakeBroker, ctl: Ctl) -> None:
    """RabbitMQ: a dry run validates the command line and pings the node, and does nothing."""
    broker.answers["GET", "/api/amqpd/ping"] = (200, {})
    assert ctl("--dry-run", "purge_queue", "q") == (0, "", "")
    assert [each.method for each in broker.requests] == ["GET"]
    assert ctl("--dry-run", "purge_queue").code == 64
    assert ctl("--dry-run", "list_users", "x").code == 64
    assert ctl("--dry-run", "list_queues", "name", "nosuch").code == 64
    broker.stop()
    assert ctl("--dry-run", "purge_queue", "q").code == 69
    assert ctl("--dry-run", "--print-stacktrace", "hash_password", "p") == (0, "", "")


@pytest.mark.parametrize(
    ("line", "path", "waits"),
    [
        ("drain --grace 600", "drain", [None]),
        ("drain --grace 600 -t 5", "drain", [5]),
        ("reload", "reload", [None]),
        ("revive", "revive", [60]),
    ],
)
def test_long_commands_have_no_short_timeout(
    broker: FakeBroker, ctl: Ctl, monkeypatch: pytest.MonkeyPatch, line: str, path: str, waits: list[float | None]
) -> None:
    """A drain with 10 minutes of grace is answered after 10 minutes."""
    broker.answers["POST", f"/api/amqpd/{path}"] = (200, {"changed": [], "waiting": [], "imported": None})
    timeouts: list[float | None] = []
    send = ApiClient.send

    def record_timeout(client: ApiClient, *arguments: str, **more: object) -> ApiAnswer:
        timeouts.append(client.timeout_s)
        return send(client, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ApiClient, "send", record_timeout)
    assert ctl(*line.split()).code == 0
    assert timeouts == waits
