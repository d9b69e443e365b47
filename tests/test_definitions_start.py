"""Definitions imported at each start: `load_definitions`, `definitions.local.path`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pika
import pytest

from amqpd.config.schema import DefinitionsSettings
from amqpd.management.definitions_start import PIECE_BYTES, import_files
from amqpd.testing import BrokerFailed, BrokerProcess, embedded

DOCUMENT = {
    "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
    "vhosts": [{"name": "/"}],
    "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    "queues": [{"name": "orders", "vhost": "/", "durable": True}],
    "new-in-5": [],
}


def write_json(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), "utf-8")
    return path


def failed_start(data_dir: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and standard error of a start that fails."""
    run = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "amqpd",
            "--data-dir",
            str(data_dir),
            "--amqp.port=0",
            "--http.port=0",
            *arguments,
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return run.returncode, run.stderr


def test_first_start_has_only_the_imported_definitions(tmp_path):
    file = write_json(tmp_path / "d.json", {**DOCUMENT, "users": [{**DOCUMENT["users"][0], "name": "boss"}]})
    only = write_json(tmp_path / "only.json", {**json.loads(file.read_text()), "permissions": []})
    with BrokerProcess(tmp_path / "data", settings={"load_definitions": str(only)}) as broker:
        assert broker.ctl("-q", "list_users").stdout.split() == ["user", "tags", "boss", "[administrator]"]
        assert broker.ctl("-q", "list_queues", "name").stdout.split() == ["name", "orders"]
        assert broker.says("ignored unknown keys: new-in-5")


@pytest.mark.slow
def test_each_start_imports_again(tmp_path):
    file = write_json(tmp_path / "d.json", DOCUMENT)
    with BrokerProcess(tmp_path / "data", settings={"definitions.local.path": str(file)}) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare("orders", passive=True)
        assert broker.ctl("change_password", "guest", "other").returncode == 0
        assert broker.ctl("delete_queue", "orders").returncode == 0
        broker.stop()
        broker.start()
        # The password of the document is imported again, too.
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare("orders", passive=True)


@pytest.mark.slow
def test_skip_if_unchanged(tmp_path):
    file = write_json(tmp_path / "d.json", DOCUMENT)
    settings = {"load_definitions": str(file), "definitions.skip_if_unchanged": True}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        assert broker.ctl("delete_queue", "orders").returncode == 0
        for text, expected_queues in ((file.read_text(), []), (json.dumps({**DOCUMENT, "parameters": []}), ["orders"])):
            broker.stop()
            file.write_text(text)
            broker.start()
            assert broker.ctl("-q", "--no-table-headers", "list_queues", "name").stdout.split() == expected_queues


def test_files_of_directory_are_imported_in_order_of_names(tmp_path):
    directory = tmp_path / "conf.d"
    directory.mkdir()
    write_json(directory / "10-users.json", {key: DOCUMENT[key] for key in ("users", "vhosts", "permissions")})
    write_json(directory / "20-queues.json", {"queues": [{"name": "a", "vhost": "/"}]})
    write_json(directory / "30-queues.json", {"queues": [{"name": "b", "vhost": "/"}]})
    (directory / "README").write_text("no definitions")
    (directory / ".hidden.json").write_text("no definitions")
    settings = {"load_definitions": str(directory)}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        assert sorted(broker.ctl("-q", "--no-table-headers", "list_queues", "name").stdout.split()) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "d.json: not JSON: "),
        ("[]", "d.json: definitions are a JSON object"),
        ('{"queues": [{"vhost": "/"}]}', "d.json: queues[0].name: missing"),
        ('{"queues": [{"name": "q", "vhost": "none"}]}', "d.json: queues[0].vhost: unknown"),
    ],
)
def test_invalid_file_fails_the_start(tmp_path, content, problem):
    file = tmp_path / "d.json"
    file.write_text(content)
    code, text = failed_start(tmp_path / "data", "--load-definitions", str(file))
    assert code == 69
    assert problem in text
    assert "Traceback" not in text


@pytest.mark.slow
def test_skip_unsupported(tmp_path):
    shovel = {"vhost": "/", "component": "shovel", "name": "s", "value": {}}
    file = write_json(tmp_path / "d.json", {**DOCUMENT, "parameters": [shovel]})
    with pytest.raises(BrokerFailed, match=r"parameters\[0\]: .*shovel"):
        BrokerProcess(tmp_path / "data", settings={"load_definitions": str(file)}).start()
    # The failed start does not hinder the next one, which skips the entry.
    settings = {"load_definitions": str(file), "definitions.skip_unsupported": True}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        assert broker.ctl("-q", "--no-table-headers", "list_queues", "name").stdout.split() == ["orders"]
        assert broker.says("skipped what cannot be imported: parameters[0]: ")


@pytest.mark.slow
def test_default_user_exists_after_failed_first_start(tmp_path: Path) -> None:
    (tmp_path / "d.json").write_text("{")
    assert failed_start(tmp_path / "data", "--load-definitions", str(tmp_path / "d.json"))[0] == 69
    with BrokerProcess(tmp_path / "data", settings={"default.configure": "^a"}) as broker:
        with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
            connection.channel().queue_declare("a")
        listed = ["/", "^a", ".*", ".*"]
        assert broker.ctl("-q", "--no-table-headers", "list_user_permissions", "guest").stdout.split() == listed
        broker.ctl("change_password", "guest", "other")
        broker.ctl("delete_vhost", "/")
        broker.stop()
        broker.start()
        assert (
            broker.ctl("-q", "--no-table-headers", "list_vhosts").stdout == ""
        )  # the default vhost is created only if there is no user either
        assert broker.ctl("authenticate_user", "guest", "other").returncode == 0


def test_missing_path_fails_before_the_start(tmp_path):
    code, text = failed_start(tmp_path / "data", "--load-definitions", str(tmp_path / "none.json"))
    assert code == 64
    assert f"load_definitions: there is no file or directory {tmp_path / 'none.json'}\n" in text
    file = write_json(tmp_path / "d.json", {})
    code, text = failed_start(tmp_path / "data", f"--load-definitions={file}", f"--definitions.local.path={file}")
    assert code == 64
    assert "are the same setting" in text
    assert not (tmp_path / "data").exists()


AS_SERVICE = [
    sys.executable, "-P", "-c",
    "import os, sys; os.setsid(); os.execv(sys.executable, [sys.executable, '-P', '-m', 'amqpd', *sys.argv[1:]])",
]  # fmt: skip


async def test_files_are_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload happens while clients are served, and files may be large or on a slow disk."""
    threads: list[threading.Thread] = []
    original_read = Path.read_bytes

    def recording_read(each: Path) -> bytes:
        if each == path:
            threads.append(threading.current_thread())
        return original_read(each)

    text = "é" * (PIECE_BYTES // 2) + "x"  # a piece ends within the character
    path = write_json(tmp_path / "definitions.json", {"global_parameters": [{"name": "long", "value": text}]})
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(json.loads(path.read_text()), ensure_ascii=False).encode())
    async with embedded(tmp_path / "data") as server:
        monkeypatch.setattr(Path, "read_bytes", recording_read)
        await import_files(server.broker, path, DefinitionsSettings())
        assert server.broker.global_parameters.get("long") == text
        assert len(threads) == 1
        assert threads[0] is not threading.current_thread()


@pytest.mark.slow
def test_reload_imports_changed_files(tmp_path: Path) -> None:
    """By amqpctl and by SIGHUP. A file that cannot be imported changes nothing and is reported."""
    path = write_json(tmp_path / "definitions.json", DOCUMENT)
    settings = {"load_definitions": path}
    with BrokerProcess(tmp_path / "data", settings=settings, command=AS_SERVICE) as broker:
        names = ["list_queues", "-s", "name"]
        assert broker.ctl("reload", "-q").stdout == ""
        broker.ctl("delete_queue", "orders")
        assert broker.ctl("reload", "-q").stdout == ""  # the file is unchanged
        assert broker.ctl(*names).stdout == ""
        write_json(path, {**DOCUMENT, "queues": [{"name": "parcels", "vhost": "/", "durable": True}]})
        assert broker.ctl("reload", "-q").stdout == f"imported again: {path}\n"
        assert broker.ctl(*names).stdout == "parcels\n"
        path.write_text("{")
        failed_reload = broker.ctl("reload")
        assert failed_reload.returncode != 0
        assert f"the definitions were not: {path}: " in failed_reload.stderr
        os.kill(broker.pid, signal.SIGHUP)
        assert broker.says("SIGHUP: the definitions are not imported")
        write_json(path, DOCUMENT)
        os.kill(broker.pid, signal.SIGHUP)
        assert broker.says(f"SIGHUP: {path} is imported again")
        assert broker.ctl(*names).stdout.split() == ["orders", "parcels"]
        assert "Traceback" not in broker.stderr
