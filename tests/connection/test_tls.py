"""AMQP over TLS: versions, certificates, and unfinished handshakes."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pika
import pytest
import trustme

from amqpd.testing import BrokerFailed, BrokerProcess, embedded

HEADER = b"AMQP\x00\x00\x09\x01"
MIB = 1 << 20
HANDSHAKE_S = 5.0


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls_settings(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The settings that name the server's certificate, its key and the CA for clients."""
    folder = tmp_path_factory.mktemp("tls")
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_pem.write_to_path(folder / "key.pem")
    for blob in server.cert_chain_pems:
        blob.write_to_path(folder / "certificate.pem", append=True)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {
        "amqp.tls.port": 0,
        "amqp.tls.certificate": folder / "certificate.pem",
        "amqp.tls.key": folder / "key.pem",
        "amqp.tls.ca": folder / "ca.pem",
    }


@pytest.fixture(scope="module")
def broker(tls_settings: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=tls_settings) as process:
        yield process
        assert "Traceback" not in process.stderr, process.stderr


def tls_port(broker: BrokerProcess) -> int:
    assert broker.ready is not None
    return broker.ready.listeners["amqps"][1]


def trusting_context(authority: trustme.CA) -> ssl.SSLContext:
    """Return a client context that trusts only this CA."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def first_reply(broker: BrokerProcess, context: ssl.SSLContext) -> tuple[str | None, bytes]:
    """Return the TLS version and the first bytes of connection.start. Raises ssl.SSLError, OSError."""
    with (
        socket.create_connection(("127.0.0.1", tls_port(broker)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        sock.sendall(HEADER)
        return sock.version(), sock.recv(11)


def pika_connection(broker: BrokerProcess, context: ssl.SSLContext) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            "127.0.0.1",
            tls_port(broker),
            ssl_options=pika.SSLOptions(context, "localhost"),
            socket_timeout=30,
            blocked_connection_timeout=30,
        )
    )


# -- versions and certificates --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_supported_tls_versions(broker: BrokerProcess, authority: trustme.CA, version: ssl.TLSVersion) -> None:
    context = trusting_context(authority)
    context.minimum_version = context.maximum_version = version
    version_used, start = first_reply(broker, context)
    assert version_used == version.name.replace("_", ".")
    assert start[:3] == b"\x01\x00\x00"
    assert start[7:] == b"\x00\x0a\x00\x0a"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_tls_1_1_is_refused(broker: BrokerProcess, authority: trustme.CA) -> None:
    context = trusting_context(authority)
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # so that the client offers TLS 1.1
    context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert first_reply(broker, context)[0] == "TLSv1.2"
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
        first_reply(broker, context)


def test_server_presents_configured_certificate(broker: BrokerProcess) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        first_reply(broker, trusting_context(trustme.CA()))


async def test_reloaded_certificate_survives_stop_app_and_start_app(
    tls_settings: dict[str, object], tmp_path: Path
) -> None:
    other = trustme.CA()
    renewed = other.issue_cert("localhost")
    renewed.private_key_pem.write_to_path(tmp_path / "key.pem")
    renewed.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    async with embedded(tmp_path / "data", settings=tls_settings) as server:
        tls = replace(server.settings.amqp.tls, certificate=tmp_path / "certificate.pem", key=tmp_path / "key.pem")
        server.apply_settings(replace(server.settings, amqp=replace(server.settings.amqp, tls=tls)))
        await server.stop_app()
        await server.start_app()
        port = server.port("amqps")
        _, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=trusting_context(other), server_hostname="localhost"
        )
        writer.close()
        await writer.wait_closed()


def test_client_certificate_is_not_verified_by_default(broker: BrokerProcess, authority: trustme.CA) -> None:
    foreign = trusting_context(authority)
    trustme.CA().issue_cert("nobody@example.org").configure_cert(foreign)
    assert first_reply(broker, foreign)[1]


@pytest.mark.parametrize(
    ("setting", "without", "foreign"),
    [("amqp.tls.verify_peer", True, False), ("amqp.tls.fail_if_no_peer_certificate", False, False)],
)
def test_verified_client_certificates(
    tls_settings: dict[str, object], authority: trustme.CA, tmp_path: Path, setting: str, without: bool, foreign: bool
) -> None:
    """verify_peer refuses certificates that `ca` did not sign; fail_if_no_peer_certificate also clients without one."""
    known, unknown = trusting_context(authority), trusting_context(authority)
    authority.issue_cert("client@example.org").configure_cert(known)
    trustme.CA().issue_cert("client@example.org").configure_cert(unknown)
    settings = {**tls_settings, "amqp.tls.verify_peer": True, setting: True}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        for context, expected in ((known, True), (trusting_context(authority), without), (unknown, foreign)):
            try:
                accepted = bool(first_reply(broker, context)[1])
            except OSError:  # TLS 1.3: the client sees the refusal at its first read
                accepted = False
            assert accepted == expected
        assert first_reply(broker, known)[1]
        assert "Traceback" not in broker.stderr, broker.stderr


def test_client_certificate_is_in_event_and_connection_list(
    tls_settings: dict[str, object], authority: trustme.CA, tmp_path: Path
) -> None:
    known = trusting_context(authority)
    authority.issue_cert("anna", common_name=" anna, of the shop", organization_name="shop").configure_cert(known)
    settings = {**tls_settings, "amqp.tls.verify_peer": True, "event_exchange_vhost": "/"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        listener = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = listener.channel()
        channel.queue_declare("heard", exclusive=True)
        channel.queue_bind("heard", "amq.rabbitmq.event", "connection.created")
        client = pika_connection(broker, known)
        (_, properties, _) = next(channel.consume("heard", auto_ack=True))
        event = properties.headers
        listed = {each["name"]: each for each in broker.api("GET", "/api/connections")}
        client.close()
        listener.close()
    client_listed = listed.pop(event["name"])
    (plain,) = listed.values()
    parts = event["peer_cert_subject"].split(",OU=")
    assert parts[0] == "CN=\\ anna\\, of the shop"
    assert parts[1].endswith(",O=shop")
    assert event["peer_cert_issuer"].endswith(",O=trustme v" + trustme.__version__)
    assert re.fullmatch(r"2000-01-01T[\d:]{8}Z - \d{4}-\d\d-\d\dT[\d:]{8}Z", event["peer_cert_validity"])
    for key in ("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity"):
        assert (client_listed[key], plain[key]) == (event[key], None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"amqp.tls.certificate": ""}, "amqp.tls.certificate"),
        ({"amqp.tls.certificate": "/nowhere/certificate.pem"}, "certificate.pem"),
    ],
)
def test_unusable_certificate_fails_the_start(
    tls_settings: dict[str, object], tmp_path: Path, change: dict[str, object], words: str
) -> None:
    """The message names the setting or file, without a traceback."""
    with pytest.raises(BrokerFailed) as failed:
        BrokerProcess(tmp_path, settings={**tls_settings, **change}).start()
    assert words in str(failed.value)
    assert "Traceback" not in str(failed.value)


# -- peers that do not speak TLS, or not to the end -------------------------------------------------------------------


def test_plain_amqp_on_tls_port_is_closed(broker: BrokerProcess, authority: trustme.CA) -> None:
    """The socket is closed at once; the reply is at most a TLS alert, never AMQP."""
    with socket.create_connection(("127.0.0.1", tls_port(broker)), timeout=30) as sock:
        sock.sendall(HEADER)
        received = b""
        try:
            while data := sock.recv(100):
                received += data
        except ConnectionResetError:
            received += b""  # closed, too
    assert received == b"" or received[0] == 0x15
    assert first_reply(broker, trusting_context(authority))[1]


def test_tls_on_plain_port_is_refused(broker: BrokerProcess, authority: trustme.CA) -> None:
    """Spec 4.2.2: a client that does not begin with the protocol header gets the broker's header and is closed."""
    with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=30) as plain, pytest.raises(ssl.SSLError):
        trusting_context(authority).wrap_socket(plain, server_hostname="localhost")
    assert broker.says("a client speaks TLS, and this port does not: b'\\x16\\x03")


async def seconds_until_closed(port: int, first: bytes) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started = time.monotonic()
    writer.write(first)
    try:
        while await asyncio.wait_for(reader.read(1000), HANDSHAKE_S + 30):
            pass
    except ConnectionResetError:
        pass  # closed, too
    writer.close()
    return time.monotonic() - started


@pytest.fixture
def impatient_broker(tls_settings: dict[str, object], tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker with a short AMQP handshake timeout, equal to that of TLS."""
    with BrokerProcess(tmp_path, settings={**tls_settings, "amqp.handshake_timeout_s": HANDSHAKE_S}) as process:
        yield process
        assert "Traceback" not in process.stderr, process.stderr


@pytest.mark.slow
async def test_unfinished_handshakes_time_out(impatient_broker: BrokerProcess, authority: trustme.CA) -> None:
    """Silence, half a ClientHello, and a TLS handshake without AMQP time out. Others connect meanwhile."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusting_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    port = tls_port(impatient_broker)
    waiting = [asyncio.create_task(seconds_until_closed(port, first)) for first in (b"", hello[:40])]
    started = time.monotonic()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trusting_context(authority), server_hostname="localhost"
    )
    others = asyncio.to_thread(first_reply, impatient_broker, trusting_context(authority))
    assert (await others)[1]
    assert await asyncio.wait_for(reader.read(100), HANDSHAKE_S + 30) == b""
    assert time.monotonic() - started > HANDSHAKE_S - 1  # amqp.handshake_timeout_s
    writer.close()
    assert (await asyncio.to_thread(first_reply, impatient_broker, trusting_context(authority)))[1]
    for took in await asyncio.gather(*waiting):
        assert HANDSHAKE_S - 1 < took < HANDSHAKE_S + 30


# -- messages ---------------------------------------------------------------------------------------------------------


def test_pika_over_tls(broker: BrokerProcess, authority: trustme.CA) -> None:
    """Publish with confirms and consume bodies of 0 bytes, 1 byte and 1 MiB."""
    connection = pika_connection(broker, trusting_context(authority))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("tls", durable=True)
    bodies = [b"", b"x", *[bytes([number]) * MIB for number in range(4)]]
    for body in bodies:
        channel.basic_publish("", "tls", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    received = []
    for method, _, body in channel.consume("tls", inactivity_timeout=30):
        assert method is not None, "no delivery within 30 s"
        received.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(received) == len(bodies):
            break
    assert received == bodies
    channel.queue_delete("tls")
    connection.close()


def test_handshake_in_small_pieces(broker: BrokerProcess, authority: trustme.CA) -> None:
    """TLS records and AMQP frames are cut anywhere."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    link = trusting_context(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", tls_port(broker)), timeout=30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send_pieces() -> None:
            data = outgoing.read()
            for at in range(0, len(data), 7):
                sock.sendall(data[at : at + 7])
                time.sleep(0.0005)

        def run_until_done(step: Any) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    send_pieces()
                    data = sock.recv(11)
                    assert data, "the broker closed the socket"
                    incoming.write(data)

        run_until_done(link.do_handshake)
        for at in range(len(HEADER)):
            link.write(HEADER[at : at + 1])
        send_pieces()
        assert run_until_done(lambda: link.read(11))[7:] == b"\x00\x0a\x00\x0a"


@pytest.mark.slow
def test_consumer_that_does_not_read_over_tls(broker: BrokerProcess, authority: trustme.CA) -> None:
    """24 MiB wait for a consumer whose TLS socket is full. Others work. Later it gets all in order."""
    slow = pika_connection(broker, trusting_context(authority))
    channel = slow.channel()
    channel.queue_declare("slow", exclusive=True)
    received: list[int] = []
    channel.basic_consume("slow", lambda _channel, _method, _properties, body: received.append(body[0]), auto_ack=True)
    quick = pika_connection(broker, trusting_context(authority))
    other = quick.channel()
    other.confirm_delivery()
    for number in range(24):
        other.basic_publish("", "slow", bytes([number]) * MIB)
    started = time.monotonic()
    other.queue_declare("quick", exclusive=True)
    other.basic_publish("", "quick", b"still here")
    assert other.basic_get("quick", auto_ack=True)[2] == b"still here"
    assert time.monotonic() - started < 30
    deadline = time.monotonic() + 30
    while len(received) < 24 and time.monotonic() < deadline:
        slow.process_data_events(0.2)
    assert received == list(range(24))
    slow.close()
    quick.close()
