"""The connection to the broker: unix socket, TCP, and their errors."""

from __future__ import annotations

import base64
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_broker import Ctl, FakeBroker

from amqpd.cli import options

PING = ("GET", "/api/amqpd/ping")
WHOAMI = ("GET", "/api/whoami")


def test_unix_socket_needs_no_credentials(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers[PING] = (200, {"status": "ok"})
    assert ctl("ping", "-q") == (0, "Ping succeeded\n", "")
    assert "Authorization" not in broker.requests[0].headers


def test_data_dir_option_names_the_socket(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers[PING] = (200, {"status": "ok"})
    assert ctl("--data-dir", str(broker.data_dir), "ping", environment={}).code == 0


@pytest.fixture
def empty_folder(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without data directory; the fake broker listens at the default address."""
    monkeypatch.setattr(options, "LOCAL_URI", f"http://guest:guest@127.0.0.1:{broker.tcp_port}")
    folder = broker.data_dir / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    broker.answers[PING] = (200, {"status": "ok"})
    broker.answers[WHOAMI] = (200, {"name": "guest"})
    return folder


def test_without_address_the_local_port_is_tried_as_guest(broker: FakeBroker, ctl: Ctl, empty_folder: Path) -> None:
    """A wrapper named rabbitmqctl calls it like this."""
    assert ctl("ping", "-q", environment={}) == (0, "Ping succeeded\n", "")
    assert [(each.method, each.path) for each in broker.requests] == [WHOAMI, PING]
    token = base64.b64encode(b"guest:guest").decode()
    assert broker.requests[1].headers["Authorization"] == f"Basic {token}"


@pytest.mark.parametrize("source", ["--data-dir", "AMQPD_DATA_DIR", "./amqpd-data"])
def test_with_data_directory_no_other_broker_is_tried(
    broker: FakeBroker, ctl: Ctl, empty_folder: Path, source: str
) -> None:
    (empty_folder / ("amqpd-data" if source == "./amqpd-data" else "other")).mkdir()
    words = ["--data-dir", "other"] if source == "--data-dir" else []
    environment = {source: "other"} if source == "AMQPD_DATA_DIR" else {}
    found = ctl("ping", *words, environment=environment)
    assert (found.code, broker.requests) == (69, [])


@pytest.mark.parametrize("status", [401, 404, 500, None])
def test_refused_guest_gives_the_error_of_the_socket(
    broker: FakeBroker, ctl: Ctl, empty_folder: Path, status: int | None
) -> None:
    broker.answers[WHOAMI] = (status or 0, {"error": "x", "reason": "Login failed"})
    if status is None:
        broker.stop()
    found = ctl("ping", environment={})
    assert found.code == 69
    assert "unable to reach node 'n@h' at ./amqpd-data/amqpctl.sock: No such file or directory." in found.err
    assert "--uri http://USER:PASSWORD@HOST:15672" in found.err


def test_long_socket_path_works(broker: FakeBroker, ctl: Ctl) -> None:
    deep = broker.data_dir / ("d" * 200)
    deep.mkdir()
    (deep / "amqpctl.sock").symlink_to(broker.data_dir / "amqpctl.sock")
    broker.answers[PING] = (200, {"status": "ok"})
    assert ctl("ping", "--data-dir", str(deep)).code == 0
    (deep / "amqpctl.sock").unlink()
    missing = ctl("ping", "--data-dir", str(deep))
    assert (missing.code, "No such file or directory" in missing.err) == (69, True)


def test_tcp_sends_decoded_credentials(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/prefix/api/amqpd/ping"] = (200, {"status": "ok"})
    uri = f"http://al%40ice:p%3Aw@127.0.0.1:{broker.tcp_port}/prefix/"
    assert ctl("ping", "--uri", uri).code == 0
    assert ctl("ping", environment={"AMQPCTL_URI": uri}).code == 0
    expected = "Basic " + base64.b64encode(b"al@ice:p:w").decode()
    assert [request.headers["Authorization"] for request in broker.requests] == [expected] * 2


@pytest.mark.parametrize("uri", ["amqp://h", "127.0.0.1:15672", "http://", "http://h:port", "http://[::1"])
def test_bad_uri_is_a_usage_error(ctl: Ctl, uri: str) -> None:
    result = ctl("ping", "-q", "--uri", uri)
    assert result.code == 64
    assert result.err.startswith("Error (argument validation): --uri ")


@pytest.mark.parametrize(
    "uri",
    [
        "bob:secret@h:15672",
        "h:15672",
        "amqp://bob:secret@h:15672",
        "bob:secret://x@h",
        "http://bob:secret://@h",
        "http://bob:secret/@h",
    ],
)
def test_bad_uri_is_shown_without_its_password(ctl: Ctl, uri: str) -> None:
    result = ctl("ping", "-q", "--uri", uri)
    shown = re.sub("bob.*@", "", uri)
    assert result.err.startswith(f"Error (argument validation): --uri {shown}: expected http://USER:")
    assert "secret" not in result.err


def test_missing_broker_gives_advice(ctl: Ctl, tmp_path: Path) -> None:
    result = ctl("list_users")
    assert (result.code, result.out) == (69, "Listing users ...\n")
    assert result.err.startswith(f"Error: unable to reach node 'n@h' at {tmp_path}/amqpctl.sock: No such file")
    for advice in (f"amqpd --data-dir {tmp_path}", "AMQPD_DATA_DIR", "--uri http://USER:PASSWORD@HOST:15672"):
        assert advice in result.err


def test_stale_socket_is_connection_refused(ctl: Ctl, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "amqpctl.sock"))
    result = ctl("list_users")
    assert (result.code, "Connection refused" in result.err) == (69, True)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_closed_port_is_connection_refused_without_password(ctl: Ctl, scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        result = ctl("list_users", "--uri", f"{scheme}://bob:secret@127.0.0.1:{port}")
    assert result.code == 69
    assert f"at {scheme}://127.0.0.1:{port}: Connection refused" in result.err
    assert "may not be running" in result.err
    assert "secret" not in result.err


def test_port_without_tls_is_named(broker: FakeBroker, ctl: Ctl) -> None:
    result = ctl("list_users", "--uri", f"https://127.0.0.1:{broker.tcp_port}")
    assert (result.code, "WRONG_VERSION_NUMBER" in result.err) == (69, True)
    assert "That port has no TLS. Use http://" in result.err
    assert "certificate" not in result.err


def test_socket_of_another_user_is_permission_denied(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "socket", refuse)  # root is never refused, and the tests may run as root
    result = ctl("list_users")
    assert (result.code, "Permission denied" in result.err, "runs as another user" in result.err) == (69, True, True)


def test_silent_broker_times_out(broker: FakeBroker, ctl: Ctl) -> None:
    broker.silent = True
    result = ctl("list_queues", "-q", "-t", "1")
    assert result.code == 75
    assert "timed out" in result.err
    assert "Timeout value used: 1000" in result.err


def test_timeout_of_zero_sends_nothing(broker: FakeBroker, ctl: Ctl) -> None:
    result = ctl("list_queues", "-t", "0")
    assert (result.code, broker.requests) == (75, [])
    assert "Timeout value used: 0" in result.err


@contextmanager
def raw_listener(path: Path, answer: bytes) -> Iterator[None]:
    """A listener that answers one connection with these bytes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(65536)
            peer.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    thread.join()
    listener.close()


@pytest.mark.parametrize(
    "answer",
    [b"", b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n[]"],
    ids=["nothing", "not http", "half an answer"],
)
def test_listener_without_http_is_unreachable(ctl: Ctl, tmp_path: Path, answer: bytes) -> None:
    with raw_listener(tmp_path / "amqpctl.sock", answer):
        result = ctl("list_users", "-q")
    assert result.code == 69
    assert result.err.startswith("Error: unable to reach node")


def test_stopped_app_gives_advice(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/users"] = (503, {"error": "app_stopped"})
    result = ctl("list_users")
    assert result.code == 64
    assert "Start it with 'amqpctl start_app'" in result.err
    assert "list_users [--no-table-headers]" in result.err


def test_other_503_shows_the_reason(broker: FakeBroker, ctl: Ctl) -> None:
    """A full disk is not a stopped app, so the broker's reason is shown."""
    broker.answers["GET", "/api/users"] = (503, {"error": "service_unavailable", "reason": "no space left on device"})
    assert ctl("list_users", "-q") == (70, "", "Error:\nno space left on device\n")


@pytest.mark.parametrize("line", ["list_users --timeout x", "--timeout -1 list_users", "list_users -t 1.5"])
def test_bad_timeout_is_a_usage_error(ctl: Ctl, line: str) -> None:
    result = ctl(*line.split())
    assert (result.code, "Invalid options for this command:\n-t : " in result.err) == (64, True)


@pytest.mark.parametrize("status", [401, 403])
def test_refused_request_gives_advice(broker: FakeBroker, ctl: Ctl, status: int) -> None:
    broker.answers["GET", "/api/users"] = (status, {"error": "not_authorised", "reason": "Not administrator user"})
    with_credentials = ctl("list_users", "--uri", f"http://u:secret@127.0.0.1:{broker.tcp_port}")
    without = ctl("list_users", "--uri", f"http://127.0.0.1:{broker.tcp_port}")
    local = ctl("list_users")
    assert [with_credentials.code, without.code, local.code] == [77, 77, 77]
    assert "Not administrator user" in with_credentials.err
    assert "set_user_tags" in with_credentials.err
    assert "put credentials into the URI" in without.err
    assert "as the user the broker runs as" in local.err
    assert "secret" not in with_credentials.err


def test_unexpected_answer_is_shown(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/users"] = (500, b"<h1>oops</h1>")
    assert ctl("list_users", "-q") == (70, "", "Error:\n<h1>oops</h1>\n")
    broker.answers["GET", "/api/users"] = (418, None)
    assert ctl("list_users", "-q") == (69, "", "Error:\nthe broker answered HTTP 418\n")


@pytest.mark.parametrize(
    "line", ["list_users", "status", "ping", "add_vhost v", "set_permissions guest .* .* .*", "export_definitions f"]
)
def test_page_of_another_server_is_no_success(
    broker: FakeBroker, ctl: Ctl, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """A proxy that wants a login, or another program at this port, answers every request with 200 and a page."""
    monkeypatch.chdir(broker.data_dir)
    page = (200, b"<!DOCTYPE html><title>Sign in</title>")
    monkeypatch.setattr(broker, "answers", type("Same", (), {"get": lambda *_: page})())
    found = ctl(*line.split(), "--uri", f"http://u:secret@127.0.0.1:{broker.tcp_port}")
    assert found.code == 69
    assert "answered HTTP 200 with something else than JSON: '<!DOCTYPE html><title>Sign in</title>'" in found.err
    assert "secret" not in found.err
    assert not Path("f").exists()


def test_wrong_password_gives_advice(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/users"] = (401, {"error": "not_authorized", "reason": "Login failed"})
    found = ctl("list_users", "--uri", f"http://u:secret@127.0.0.1:{broker.tcp_port}")
    assert (found.code, "Login failed. What to do: check the user's name and password" in found.err) == (77, True)
    assert "set_user_tags" not in found.err


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"AMQP\0\0\x09\x01", "no HTTP there, the answer begins with 'AMQP\\x00\\x00\\t"),
        (b"", "Remote end closed connection without response"),
    ],
    ids=["the AMQP port", "a broker that is killed"],
)
def test_port_without_an_answer_in_http_has_the_reason(ctl: Ctl, answer: bytes, why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            client.recv(65536)
            client.sendall(answer)
            client.close()

        thread = threading.Thread(target=serve)
        thread.start()
        found = ctl("list_users", "--uri", f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert found.code == 69
    assert f": {why}" in found.err
