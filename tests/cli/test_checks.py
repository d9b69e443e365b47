"""Health checks, waiting for a start, definitions: exit codes, and output on stdout and stderr."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd.cli import nodes

APP = ("GET", "/api/amqpd/app")
ALARMS = ("GET", "/api/health/checks/alarms")
LOCAL = ("GET", "/api/health/checks/local-alarms")
STATUS = ("GET", "/api/amqpd/status")
DEFINITIONS: dict[str, Any] = {
    "rabbit_version": "0.1.0",
    "users": [{"name": "guest", "password_hash": "h", "tags": ["administrator"], "limits": {}}],
    "vhosts": [{"name": "/", "description": "d"}],
    "queues": [{"name": "q", "vhost": "/", "durable": True, "arguments": {}}],
    "bindings": [],
}


def test_check_running_and_is_running(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers[APP] = (200, {"running": True, "node": "n@h"})
    assert ctl("-q", "check_running") == (0, "amqpd on node n@h is fully booted and running\n", "")
    assert json.loads(ctl("is_running", "--formatter", "json").out)["result"] is True
    broker.answers[APP] = (200, {"running": False, "node": "n@h"})
    assert ctl("check_running").code == 69
    assert ctl("is_running").code == 0
    assert json.loads(ctl("is_running", "--formatter", "json").out)["result"] is False


def test_check_alarms_reports_alarms(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers[ALARMS] = broker.answers[LOCAL] = (200, {"status": "ok"})
    for command in ("check_alarms", "check_local_alarms", "alarms"):
        assert ctl(command).code == 0
    assert json.loads(ctl("check_alarms", "--formatter", "json").out) == {"result": "ok"}
    alarms = [{"node": "n@h", "resource": "memory"}, {"node": "n@h", "resource": "log", "vhost": "/", "queue": "q"}]
    failed = {"status": "failed", "reason": "There are alarms in effect"}
    broker.answers[LOCAL] = (503, {**failed, "alarms": alarms})
    broker.answers[ALARMS] = (503, {**failed, "alarms": [*alarms, {"node": "other", "resource": "disk"}]})
    result = ctl("-q", "check_local_alarms")
    assert (result.code, result.out) == (69, "")
    assert "Memory alarm on node n@h\nThe log of queue 'q' in vhost '/' failed" in result.err
    result = ctl("check_alarms", "--formatter", "json")
    assert (result.code, result.out, json.loads(result.err)["result"]) == (69, "", "error")
    found = json.loads(ctl("alarms", "--formatter", "json").out)
    assert (len(found["local"]), found["global"]) == (2, ["Free disk space alarm on node other"])
    broker.answers[ALARMS] = (500, {"reason": "no"})
    assert ctl("check_alarms").code == 70


def status_with_listener(port: int) -> dict[str, Any]:
    return {"listeners": [{"protocol": "amqp", "ip_address": "127.0.0.1", "port": port}]}


def test_listeners_and_port_checks(broker: FakeBroker, ctl: Ctl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        broker.answers[STATUS] = (200, status_with_listener(port))
        assert ctl("-q", "listeners").out == (
            f"Interface: 127.0.0.1, port: {port}, protocol: amqp, purpose: AMQP 0-9-1\n"
        )
        assert ctl("check_port_connectivity").code == 0
        assert ctl("check_port_listener", str(port)).code == 0
        assert ctl("check_port_listener", "1").code == 69
        assert ctl("check_protocol_listener", "amqp091").code == 0
        assert ctl("check_protocol_listener", "mqtt").code == 69
    result = ctl("check_port_connectivity")
    assert result.code == 69
    assert f"port: {port}" in result.err
    for bad in ("x", "0", "65536", "-1"):
        assert ctl("check_port_listener", "--", bad).code == 65


def test_check_certificate_expiration(broker: FakeBroker, ctl: Ctl) -> None:
    day = 86400
    certificate = {"path": "/c.pem", "not_after": "soon", "not_after_s": time.time() + 10 * day}
    broker.answers["GET", "/api/amqpd/certificates"] = (200, [certificate])
    assert ctl("check_certificate_expiration", "--within", "1", "--unit", "weeks").code == 0
    expiring = ctl("check_certificate_expiration")  # within four weeks
    assert expiring.code == 69
    assert "Certificate /c.pem expires on soon" in expiring.err
    assert ctl("check_certificate_expiration", "--within", "9", "--unit", "days").code == 0
    assert ctl("check_certificate_expiration", "--unit", "hours").code == 64
    certificate["not_after_s"] = time.time() - day
    assert "Certificate /c.pem expired on soon" in ctl("check_certificate_expiration").err


def test_await_startup_waits_for_broker_that_starts_later(tmp_path: Path, ctl: Ctl) -> None:
    """The socket of the running fake broker is moved to the expected path after 0.3 s."""
    (tmp_path / "elsewhere").mkdir()
    broker = FakeBroker(tmp_path / "elsewhere")
    broker.answers[APP] = (200, {"running": True, "node": "n@h"})
    timer = threading.Timer(0.3, (tmp_path / "elsewhere" / "amqpctl.sock").rename, [tmp_path / "amqpctl.sock"])
    timer.start()
    try:
        assert ctl("await_startup", "-t", "30").code == 0
    finally:
        timer.join()
        broker.stop()


def test_await_startup_gives_up_after_timeout_or_refusal(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers[APP] = (200, {"running": False, "node": "n@h"})
    assert ctl("await_startup", "-t", "0").code == 69
    broker.answers[APP] = (401, {"reason": "no"})
    assert ctl("await_startup", "-t", "30").code == 77  # waiting does not help


def test_wait_checks_pid_file_and_process(broker: FakeBroker, ctl: Ctl, tmp_path: Path) -> None:
    broker.answers[APP] = (200, {"running": True, "node": "n@h"})
    pidfile = tmp_path / "pid"
    pidfile.write_text(f"{os.getpid()}\n", "ascii")
    assert ctl("wait", str(pidfile), "-t", "10").code == 0
    assert ctl("wait", "--pid", str(os.getpid())).code == 0
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert ctl("wait", "-P", str(ended.pid), "-t", "10").code == 69
    assert ctl("wait", str(tmp_path / "nosuch"), "-t", "0").code == 75
    pidfile.write_text(str(ended.pid), "ascii")  # RabbitMQ: of an earlier start, so the new file is awaited
    assert ctl("wait", str(pidfile), "-t", "0").code == 75
    pidfile.write_text("no number", "ascii")
    assert ctl("wait", str(pidfile)).code == 69
    assert ctl("wait").code == ctl("wait", str(pidfile), "--pid", "1").code == 64


def test_wait_ends_after_ten_seconds_without_timeout(
    broker: FakeBroker, ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As rabbitmqctl. The pid file of a broker that has crashed would be awaited for ever."""
    slept_s: list[float] = []

    def sleep(seconds: float) -> None:
        slept_s.append(seconds)
        assert sum(slept_s) < 30, "it waits for ever"

    monkeypatch.setattr(nodes, "time", SimpleNamespace(monotonic=lambda: sum(slept_s), sleep=sleep))
    broker.answers[APP] = (200, {"running": False, "node": "n@h"})
    for arguments in ([str(tmp_path / "nosuch")], ["--pid", str(os.getpid())]):
        slept_s.clear()
        found = ctl("wait", *arguments)
        assert (found.code, round(sum(slept_s))) == (75, 10)
        assert "timed out. Timeout value used: 10000" in found.err


def test_definitions_are_exported_to_file_and_imported(broker: FakeBroker, ctl: Ctl, tmp_path: Path) -> None:
    broker.answers["GET", "/api/definitions"] = (200, DEFINITIONS)
    broker.answers["POST", "/api/definitions"] = (204, None)
    path = tmp_path / "definitions.json"
    assert ctl("export_definitions", str(path)).code == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # the file has password hashes
    assert json.loads(path.read_text("utf-8")) == DEFINITIONS
    assert json.loads(ctl("-q", "export_definitions", "-").out) == DEFINITIONS
    assert ctl("import_definitions", str(path)).code == 0
    assert broker.requests[-1].body == DEFINITIONS
    assert ctl("import_definitions", stdin='{"vhosts": []}').code == 0
    assert broker.requests[-1].body == {"vhosts": []}
    broker.answers["POST", "/api/definitions"] = (400, {"reason": "queues[0].name: no"})
    result = ctl("import_definitions", str(path))
    assert result.code == 65
    assert "queues[0].name: no" in result.err


def test_export_warns_of_hashes_that_rabbitmq_cannot_read(broker: FakeBroker, ctl: Ctl) -> None:
    users = [{"name": "old", "password_hash": "x"}, {"name": "new", "password_hash": "", "argon2id_hash": "$argon2id$"}]
    broker.answers["GET", "/api/definitions"] = (200, {**DEFINITIONS, "users": users})
    found = ctl("export_definitions", "-")
    assert json.loads(found.out)["users"] == users
    assert "of 1 users (new)" in found.err
    assert "auth.password_hashing = rabbit_password_hashing_sha256" in found.err
    broker.answers["GET", "/api/definitions"] = (200, {**DEFINITIONS, "users": users[:1]})
    assert ctl("export_definitions", "-").err == ""


def test_export_does_not_write_to_prepared_temporary_file(broker: FakeBroker, ctl: Ctl, tmp_path: Path) -> None:
    """Definitions have password hashes.

    The export neither follows a symlink at the temporary path nor keeps an existing file's mode.
    """
    broker.answers["GET", "/api/definitions"] = (200, DEFINITIONS)
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / "d.json.new").symlink_to(other)
    assert ctl("export_definitions", str(tmp_path / "d.json")).code == 0
    assert (other.read_text(), (tmp_path / "d.json").is_symlink()) == ("mine", False)
    (tmp_path / "d.json.new").write_text("half")
    (tmp_path / "d.json.new").chmod(0o666)
    assert ctl("export_definitions", str(tmp_path / "d.json")).code == 0
    assert stat.S_IMODE((tmp_path / "d.json").stat().st_mode) == 0o600
    assert json.loads((tmp_path / "d.json").read_text("utf-8")) == DEFINITIONS


def test_import_prints_ignored_and_skipped_items(broker: FakeBroker, ctl: Ctl) -> None:
    report = {
        "unknown": ["queues[0].colour"],
        "unknown_count": 3,
        "skipped": [{"path": "parameters[0]", "reason": "Validation failed\n\ncomponent shovel not found\n"}],
        "skipped_count": 1,
    }
    broker.answers["POST", "/api/definitions"] = (200, report)
    result = ctl("import_definitions", stdin="{}")
    assert (result.code, broker.requests[-1].path) == (0, "/api/definitions?report=true")
    assert result.err == (
        "Ignored: queues[0].colour is unknown\n"
        "Skipped: parameters[0]: Validation failed component shovel not found\n"
        "... and 2 more\n"
    )
    result = ctl("-q", "import_definitions", "--skip-unsupported", stdin="{}")
    assert (result.err, broker.requests[-1].path) == ("", "/api/definitions?skip_unsupported=true")


def test_export_to_pipe_writes_into_the_pipe(broker: FakeBroker, ctl: Ctl, tmp_path: Path) -> None:
    """The pipe is not replaced by a file."""
    broker.answers["GET", "/api/definitions"] = (200, DEFINITIONS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text("utf-8")))
    reader.start()
    assert ctl("export_definitions", str(pipe)).code == 0
    reader.join(60)
    assert json.loads(read[0]) == DEFINITIONS
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_import_reads_a_pipe(broker: FakeBroker, ctl: Ctl) -> None:
    """A shell gives a pipe for `import_definitions <(jq ... definitions.json)`."""
    broker.answers["POST", "/api/definitions"] = (204, None)
    read_end, write_end = os.pipe()
    os.write(write_end, b'{"vhosts": []}')
    os.close(write_end)
    try:
        result = ctl("import_definitions", f"/dev/fd/{read_end}")
    finally:
        os.close(read_end)
    assert (result.code, result.err) == (0, "")
    assert broker.requests[-1].body == {"vhosts": []}


def test_quiet_import_writes_nothing(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["POST", "/api/definitions"] = (204, None)
    assert ctl("-q", "import_definitions", stdin="{}").out == ""
    assert ctl("-q", "import_definitions", "--formatter", "json", stdin="{}").out == '{"node":"n@h","result":"ok"}\n'


def test_skip_if_unchanged_imports_only_changed_definitions(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/definitions"] = (200, DEFINITIONS)
    broker.answers["POST", "/api/definitions"] = (204, None)

    def imported(document: object) -> bool:
        before = len(broker.requests)
        assert ctl("import_definitions", "--skip-if-unchanged", stdin=json.dumps(document)).code == 0
        return "POST" in {each.method for each in broker.requests[before:]}

    assert not imported(DEFINITIONS)
    assert not imported({"rabbit_version": "3.10.8", "vhosts": [{"name": "/"}]})
    assert imported({"vhosts": [{"name": "/"}, {"name": "new"}]})
    assert imported({"queues": [{"name": "q", "vhost": "/", "durable": False}]})
    assert imported({"unheard_of": [{}]})


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("export_definitions /nonexistent/x", 65, "Directory /nonexistent does not exist"),
        ("export_definitions x --format erlang", 65, "JSON only"),
        ("export_definitions x --format yaml", 65, "either json or erlang"),
        ("import_definitions /nonexistent", 65, "File /nonexistent does not exist"),
        ("import_definitions /", 65, "Path / is a directory"),
        ("hash_password", 65, "not provided"),
        ("reset", 64, "requires the 'amqpd' app to be stopped"),
        ("await_online_nodes 2", 70, "not enough nodes"),
        ("await_online_nodes x", 64, "no number of nodes"),
        ("join_cluster a@b", 64, "requires the 'amqpd' app to be stopped"),
        ("encode { x", 69, "without its end"),
        ("set_log_level loud", 69, "level loud is not supported"),
        ("eval_file /nonexistent", 64, "does not exist"),
        ("rebalance nosuch", 69, "type nosuch is not supported"),
        ("add_super_stream s --partitions 0", 64, "greater than 0"),
        ("add_super_stream s --partitions 1 --routing-keys a", 64, "not both"),
        ("add_super_stream s --max-age soon", 64, "P10D"),
        ("list_stream_consumers nosuch", 64, "Info key(s) nosuch are not supported"),
    ],
)
def test_bad_command_line_sets_exit_code_and_text(
    broker: FakeBroker, ctl: Ctl, line: str, code: int, text: str
) -> None:
    broker.answers[APP] = (200, {"running": True, "node": "n@h"})
    broker.answers["GET", "/api/amqpd/ping"] = (200, {})
    broker.answers["GET", "/api/amqpd/cluster"] = (200, {"clustered": False, "node": "n@h"})
    broker.answers["POST", "/api/amqpd/reset"] = (409, {"error": "app_running", "reason": "it runs"})
    result = ctl(*line.split())
    assert result.code == code, result
    assert text in result.err


def test_hash_password_equals_rabbitmq_format(ctl: Ctl) -> None:
    """The first four bytes are the salt."""
    import base64
    import hashlib

    result = ctl("-q", "hash_password", "s3cret")
    data = base64.b64decode(result.out)
    assert hashlib.sha256(data[:4] + b"s3cret").digest() == data[4:]
    assert ctl("hash_password", "s3cret").out != result.out
    assert "s3cret" not in ctl("hash_password", "s3cret").out


@pytest.mark.parametrize(
    ("line", "code", "text"),
    [
        ("await_online_nodes 2", 0, "Will wait for at least 2 nodes"),
        ("await_online_nodes 3 --timeout 1", 70, "after 1 seconds there are 2 nodes: n@h, other@h"),
        ("forget_cluster_node other@h", 69, "node other@h runs: `drain` moves its vhosts; it leaves"),
        ("forget_cluster_node gone@h", 69, "The node selected is not in the cluster"),
        ("discover_peers", 0, "other@h"),
        ("add_member q other@h", 69, "Kafka keeps the copies of queues"),
        ("transfer_leadership q other@h", 69, "`move_vhost` moves the vhost to another node"),
        ("quorum_status q", 0, "other@h"),
    ],
)
def test_command_in_a_cluster(broker: FakeBroker, ctl: Ctl, line: str, code: int, text: str) -> None:
    cluster = {"clustered": True, "node": "n@h", "nodes": [{"name": "n@h"}, {"name": "other@h"}]}
    broker.answers["GET", "/api/amqpd/cluster"] = (200, cluster)
    broker.answers["GET", "/api/queues/%2F/q"] = (200, {"name": "q", "type": "quorum", "node": "other@h"})
    result = ctl(*line.split())
    assert result.code == code, result
    assert text in result.out + result.err
