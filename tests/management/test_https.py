"""The admin API over TLS: next to plain HTTP or alone, its certificates, and clients without TLS."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from amqpd.testing import BrokerFailed, BrokerProcess, embedded

BASIC = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_settings(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("https")
    server = authority.issue_cert("localhost", "127.0.0.1", not_after=datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC))
    server.private_key_pem.write_to_path(folder / "key.pem")
    for blob in server.cert_chain_pems:
        blob.write_to_path(folder / "certificate.pem", append=True)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {
        "http.tls.port": 0,
        "http.tls.certificate": folder / "certificate.pem",
        "http.tls.key": folder / "key.pem",
        "http.tls.ca": folder / "ca.pem",
    }


@pytest.fixture(scope="module")
def broker(tls_settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=tls_settings) as process:
        yield process
        assert "Traceback" not in process.stderr, process.stderr


def https_port(broker: BrokerProcess) -> int:
    assert broker.ready is not None
    return broker.ready.listeners["https"][1]


def trusting_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def https_get(port: int, path: str, context: ssl.SSLContext, headers: dict[str, str] = BASIC) -> tuple[int, Any]:
    """Return status and decoded body. Raises urllib.error.URLError if there is no answer."""
    request = urllib.request.Request(f"https://localhost:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_https_answers_like_plain_http(broker: BrokerProcess, authority: trustme.CA) -> None:
    status, whoami = https_get(https_port(broker), "/api/whoami", trusting_context(authority))
    assert (status, whoami["name"]) == (200, "guest")
    assert broker.api("GET", "/api/whoami") == whoami
    assert https_get(https_port(broker), "/api/whoami", trusting_context(authority), {})[0] == 401
    overview = broker.api("GET", "/api/overview")
    assert {each["protocol"]: each["port"] for each in overview["listeners"]}["https"] == https_port(broker)
    ports = {each["port"]: each.get("ssl") for each in overview["contexts"]}
    assert ports == {str(broker.http_port): None, str(https_port(broker)): "true"}  # rabbit: ports as text
    assert broker.api("GET", "/api/health/checks/protocol-listener/https")["status"] == "ok"


def test_client_rejects_untrusted_certificate(broker: BrokerProcess) -> None:
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        https_get(https_port(broker), "/api/whoami", ssl.create_default_context())


def test_plain_http_on_tls_port_is_closed(broker: BrokerProcess, authority: trustme.CA) -> None:
    with socket.create_connection(("127.0.0.1", https_port(broker)), timeout=30) as sock:
        sock.sendall(b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b""
        try:
            while data := sock.recv(100):
                received += data
        except ConnectionResetError:
            received += b""  # a reset closes the connection, too
    assert received == b"" or received[0] == 0x15  # a TLS alert
    assert https_get(https_port(broker), "/api/whoami", trusting_context(authority))[0] == 200


@pytest.mark.slow
def test_silent_client_is_closed(broker: BrokerProcess) -> None:
    with socket.create_connection(("127.0.0.1", https_port(broker)), timeout=50) as sock:
        assert sock.recv(1) == b""  # within five seconds; aiohttp's default would be a minute


def test_https_without_plain_http(tls_settings: dict[str, object], authority: trustme.CA, tmp_path: Path) -> None:
    settings = {**tls_settings, "http.port": "off", "http.tls.host": "0.0.0.0"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        assert broker.ready is not None
        assert sorted(broker.ready.listeners) == ["amqp", "https"]
        assert broker.ready.listeners["https"][0] == "0.0.0.0"
        assert https_get(https_port(broker), "/api/whoami", trusting_context(authority))[0] == 200


def test_certificate_expiration_check(
    tls_settings: dict[str, object], broker: BrokerProcess, authority: trustme.CA
) -> None:
    """The reply has the format of RabbitMQ 3.10.8, including its times."""
    check = "/api/health/checks/certificate-expiration"
    context = trusting_context(authority)
    assert https_get(https_port(broker), f"{check}/1/days", context) == (200, {"status": "ok"})
    assert https_get(https_port(broker), f"{check}/-1/weeks", context) == (200, {"status": "ok"})
    status, reply = https_get(https_port(broker), f"{check}/10/years", context)
    assert (status, reply["status"], reply["reason"]) == (503, "failed", "Certificates expiring")
    (expired,) = reply["expired"]
    assert expired.pop("node").startswith("amqpd@")
    assert [each[:4] for each in expired.pop("cacertfile_expires_on")] > ["2029"]
    assert "2030-05-06 7:08:09" in expired.pop("certfile_expires_on")
    assert expired == {
        "protocol": "https",
        "interface": "127.0.0.1",
        "port": https_port(broker),
        "cacertfile": str(tls_settings["http.tls.ca"]),
        "certfile": str(tls_settings["http.tls.certificate"]),
    }
    unit = "Time unit not recognised. Supported units: days, weeks, months, years."
    for path, reason in (("1/day", unit), ("x/days", "Invalid expiration value.")):
        refused = https_get(https_port(broker), f"{check}/{path}", context)
        assert refused == (400, {"error": "bad_request", "reason": reason})
    listed = broker.api("GET", "/api/amqpd/certificates")
    assert {each["path"] for each in listed} == {
        str(tls_settings[f"http.tls.{name}"]) for name in ("certificate", "ca")
    }


def test_unusable_certificate_prevents_startup(tls_settings: dict[str, object], tmp_path: Path) -> None:
    wrong = trustme.CA().issue_cert("localhost")
    wrong.private_key_pem.write_to_path(tmp_path / "other.pem")
    key = serialization.load_pem_private_key(Path(str(tls_settings["http.tls.key"])).read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"a passphrase")
    form = serialization.PrivateFormat.PKCS8
    (tmp_path / "locked.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, secret))
    for name, words in (("other.pem", "http.tls"), ("locked.pem", "http.tls: .*passphrase, which is not supported")):
        with pytest.raises(BrokerFailed) as failed:
            BrokerProcess(tmp_path / "data", settings={**tls_settings, "http.tls.key": tmp_path / name}).start()
        assert re.search(words, str(failed.value))
        assert "Traceback" not in str(failed.value)


async def test_certificates_are_reloaded_for_all_listeners_or_none(
    tls_settings: dict[str, object], tmp_path: Path
) -> None:
    """SIGHUP reloads AMQPS and HTTPS together. If one certificate does not fit, both keep the old one."""
    other = trustme.CA()
    renewed = other.issue_cert("localhost")
    renewed.private_key_pem.write_to_path(tmp_path / "key.pem")
    renewed.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    amqps = {name.replace("http.", "amqp."): value for name, value in tls_settings.items()}
    async with embedded(tmp_path / "data", settings={**tls_settings, **amqps}) as server:
        settings = server.settings

        async def speaks_with(authority: trustme.CA, protocol: str) -> bool:
            context = trusting_context(authority)
            port = server.port(protocol)
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
            except ssl.SSLCertVerificationError:
                return False
            writer.close()
            await writer.wait_closed()
            return True

        new = {"certificate": tmp_path / "certificate.pem", "key": tmp_path / "key.pem"}
        new_amqp = replace(settings.amqp, tls=replace(settings.amqp.tls, **new))
        no_key = replace(settings.http.tls, certificate=tmp_path / "certificate.pem")
        with pytest.raises(OSError, match=r"http\.tls"):
            server.apply_settings(replace(settings, amqp=new_amqp, http=replace(settings.http, tls=no_key)))
        assert not await speaks_with(other, "amqps")
        new_http = replace(settings.http, tls=replace(settings.http.tls, **new))
        server.apply_settings(replace(settings, amqp=new_amqp, http=new_http))
        assert await speaks_with(other, "amqps")
        assert await speaks_with(other, "https")


@pytest.mark.slow
def test_amqpctl_reload_reports_changes_and_errors(
    tls_settings: dict[str, object], authority: trustme.CA, tmp_path: Path
) -> None:
    """The command does the same as SIGHUP. Files that do not fit change nothing and are named."""
    names = {"certificate": tmp_path / "certificate.pem", "key": tmp_path / "key.pem"}
    for name, path in names.items():
        path.write_bytes(Path(str(tls_settings[f"http.tls.{name}"])).read_bytes())
    config = tmp_path / "amqpd.toml"
    tls_table = f'[http.tls]\ncertificate = "{names["certificate"]}"\n'
    config.write_text(f"{tls_table}[amqp]\nheartbeat_s = 60\n")
    settings = {"http.tls.port": 0, "http.tls.key": names["key"]}
    with BrokerProcess(tmp_path / "data", settings=settings, env={"AMQPD_CONFIG": str(config)}) as broker:
        other = trustme.CA()
        renewed = other.issue_cert("localhost")
        renewed.cert_chain_pems[0].write_to_path(names["certificate"])
        refused = broker.ctl("reload")
        assert refused.returncode != 0
        assert f"http.tls: {names['certificate']}" in refused.stderr
        assert https_get(https_port(broker), "/api/whoami", trusting_context(authority))[0] == 200
        renewed.private_key_pem.write_to_path(names["key"])
        config.write_text(f"{tls_table}[amqp]\nheartbeat_s = 30\n")
        reloaded = broker.ctl("reload", "-q")
        assert (reloaded.returncode, reloaded.stdout) == (0, "needs a restart: amqp.heartbeat_s\n")
        assert https_get(https_port(broker), "/api/whoami", trusting_context(other))[0] == 200
        # After a change of path, the certificates list shows the new path.
        third = tmp_path / "third.pem"
        third.write_bytes(names["certificate"].read_bytes())
        config.write_text(f'[http.tls]\ncertificate = "{third}"\n')
        assert broker.ctl("reload", "-q").stdout == "changed: http.tls.certificate\n"
        assert [each["path"] for each in broker.api("GET", "/api/amqpd/certificates")] == [str(third)]
        config.write_text("[amqp]\nheartbeats = 30\n")
        unknown = broker.ctl("reload")
        assert unknown.returncode != 0
        assert "unknown setting amqp.heartbeats" in unknown.stderr
        assert "Traceback" not in broker.stderr, broker.stderr
