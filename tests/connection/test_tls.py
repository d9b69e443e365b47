"""AMQP over TLS: versions, certificates, and peers that do not finish what they began."""

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
def papers(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The settings that name the server's certificate, its key and who signs for clients."""
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
def broker(papers: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=papers) as process:
        yield process
        assert "Traceback" not in process.stderr, process.stderr


def tls_port(broker: BrokerProcess) -> int:
    assert broker.ready is not None
    return broker.ready.listeners["amqps"][1]


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """A client's context that accepts the broker's certificate and nothing else."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def speak(broker: BrokerProcess, context: ssl.SSLContext) -> tuple[str | None, bytes]:
    """TLS version and the first bytes of connection.start. Raises ssl.SSLError, OSError."""
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
def test_versions_that_are_spoken(broker: BrokerProcess, authority: trustme.CA, version: ssl.TLSVersion) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    spoken, start = speak(broker, context)
    assert spoken == version.name.replace("_", ".")
    assert start[:3] == b"\x01\x00\x00"
    assert start[7:] == b"\x00\x0a\x00\x0a"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_tls_1_1_is_refused(broker: BrokerProcess, authority: trustme.CA) -> None:
    context = trusting(authority)
    context.set_ciphers("DEFAULT@SECLEVEL=0")  # so that this client would speak it
    context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert speak(broker, context)[0] == "TLSv1.2"
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION|UNEXPECTED_EOF"):
        speak(broker, context)


def test_the_certificate_is_the_one_configured(broker: BrokerProcess) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        speak(broker, trusting(trustme.CA()))


async def test_a_certificate_taken_over_is_there_after_stop_app_and_start_app(
    papers: dict[str, object], tmp_path: Path
) -> None:
    other = trustme.CA()
    renewed = other.issue_cert("localhost")
    renewed.private_key_pem.write_to_path(tmp_path / "key.pem")
    renewed.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    async with embedded(tmp_path / "data", settings=papers) as server:
        tls = replace(server.settings.amqp.tls, certificate=tmp_path / "certificate.pem", key=tmp_path / "key.pem")
        server.apply_settings(replace(server.settings, amqp=replace(server.settings.amqp, tls=tls)))
        await server.stop_app()
        await server.start_app()
        port = server.port("amqps")
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(other), server_hostname="localhost")
        writer.close()
        await writer.wait_closed()


def test_a_client_certificate_is_not_asked_for_by_default(broker: BrokerProcess, authority: trustme.CA) -> None:
    stranger = trusting(authority)
    trustme.CA().issue_cert("nobody@example.org").configure_cert(stranger)
    assert speak(broker, stranger)[1]


@pytest.mark.parametrize(
    ("setting", "without", "foreign"),
    [("amqp.tls.verify_peer", True, False), ("amqp.tls.fail_if_no_peer_certificate", False, False)],
)
def test_client_certificates(
    papers: dict[str, object], authority: trustme.CA, tmp_path: Path, setting: str, without: bool, foreign: bool
) -> None:
    """verify_peer refuses what `ca` did not sign; fail_if_no_peer_certificate also those who show none."""
    known, unknown = trusting(authority), trusting(authority)
    authority.issue_cert("client@example.org").configure_cert(known)
    trustme.CA().issue_cert("client@example.org").configure_cert(unknown)
    settings = {**papers, "amqp.tls.verify_peer": True, setting: True}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        for context, welcome in ((known, True), (trusting(authority), without), (unknown, foreign)):
            try:
                heard = bool(speak(broker, context)[1])
            except OSError:  # TLS 1.3: the client learns of it with its first read
                heard = False
            assert heard == welcome
        assert speak(broker, known)[1]
        assert "Traceback" not in broker.stderr, broker.stderr


def test_what_a_client_has_shown_is_told(papers: dict[str, object], authority: trustme.CA, tmp_path: Path) -> None:
    known = trusting(authority)
    authority.issue_cert("anna", common_name=" anna, of the shop", organization_name="shop").configure_cert(known)
    settings = {**papers, "amqp.tls.verify_peer": True, "event_exchange_vhost": "/"}
    with BrokerProcess(tmp_path, settings=settings) as broker:
        hearing = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = hearing.channel()
        channel.queue_declare("heard", exclusive=True)
        channel.queue_bind("heard", "amq.rabbitmq.event", "connection.created")
        theirs = pika_connection(broker, known)
        (_, properties, _) = next(channel.consume("heard", auto_ack=True))
        told = properties.headers
        listed = {each["name"]: each for each in broker.api("GET", "/api/connections")}
        theirs.close()
        hearing.close()
    theirs_listed = listed.pop(told["name"])
    (plain,) = listed.values()
    parts = told["peer_cert_subject"].split(",OU=")
    assert parts[0] == "CN=\\ anna\\, of the shop"
    assert parts[1].endswith(",O=shop")
    assert told["peer_cert_issuer"].endswith(",O=trustme v" + trustme.__version__)
    assert re.fullmatch(r"2000-01-01T[\d:]{8}Z - \d{4}-\d\d-\d\dT[\d:]{8}Z", told["peer_cert_validity"])
    for key in ("peer_cert_subject", "peer_cert_issuer", "peer_cert_validity"):
        assert (theirs_listed[key], plain[key]) == (told[key], None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"amqp.tls.certificate": ""}, "amqp.tls.certificate"),
        ({"amqp.tls.certificate": "/nowhere/certificate.pem"}, "certificate.pem"),
    ],
)
def test_unusable_papers_end_the_start(
    papers: dict[str, object], tmp_path: Path, change: dict[str, object], words: str
) -> None:
    """In words that name what to change, and without a traceback."""
    with pytest.raises(BrokerFailed) as failed:
        BrokerProcess(tmp_path, settings={**papers, **change}).start()
    assert words in str(failed.value)
    assert "Traceback" not in str(failed.value)


# -- peers that do not speak TLS, or not to the end -------------------------------------------------------------------


def test_plain_amqp_on_the_tls_port(broker: BrokerProcess, authority: trustme.CA) -> None:
    """The socket is closed at once; at most a TLS alert comes back, never AMQP."""
    with socket.create_connection(("127.0.0.1", tls_port(broker)), timeout=30) as sock:
        sock.sendall(HEADER)
        heard = b""
        try:
            while data := sock.recv(100):
                heard += data
        except ConnectionResetError:
            heard += b""  # closed all the same
    assert heard == b"" or heard[0] == 0x15
    assert speak(broker, trusting(authority))[1]


def test_tls_on_the_plain_port(broker: BrokerProcess, authority: trustme.CA) -> None:
    """spec: 4.2.2, whoever does not begin with the protocol header is told it."""
    with socket.create_connection(("127.0.0.1", broker.amqp_port), timeout=30) as plain, pytest.raises(ssl.SSLError):
        trusting(authority).wrap_socket(plain, server_hostname="localhost")


async def seconds_until_closed(port: int, first: bytes) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.monotonic()
    writer.write(first)
    try:
        while await asyncio.wait_for(reader.read(1000), HANDSHAKE_S + 30):
            pass
    except ConnectionResetError:
        pass  # closed as well
    writer.close()
    return time.monotonic() - begun


@pytest.fixture
def hurried(papers: dict[str, object], tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker that waits for an AMQP handshake no longer than for TLS's."""
    with BrokerProcess(tmp_path, settings={**papers, "amqp.handshake_timeout_s": HANDSHAKE_S}) as process:
        yield process
        assert "Traceback" not in process.stderr, process.stderr


@pytest.mark.slow
async def test_half_a_handshake_is_given_up(hurried: BrokerProcess, authority: trustme.CA) -> None:
    """A silent peer, half a ClientHello, and a whole TLS handshake without a word of AMQP; meanwhile others get in."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    port = tls_port(hurried)
    waiting = [asyncio.create_task(seconds_until_closed(port, first)) for first in (b"", hello[:40])]
    begun = time.monotonic()
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trusting(authority), server_hostname="localhost"
    )
    others = asyncio.to_thread(speak, hurried, trusting(authority))
    assert (await others)[1]
    assert await asyncio.wait_for(reader.read(100), HANDSHAKE_S + 30) == b""
    assert time.monotonic() - begun > HANDSHAKE_S - 1  # amqp.handshake_timeout_s
    writer.close()
    assert (await asyncio.to_thread(speak, hurried, trusting(authority)))[1]
    for took in await asyncio.gather(*waiting):
        assert HANDSHAKE_S - 1 < took < HANDSHAKE_S + 30


# -- messages ---------------------------------------------------------------------------------------------------------


def test_pika_over_tls(broker: BrokerProcess, authority: trustme.CA) -> None:
    """Bodies of 0, 1 and 1 MiB, confirmed, there and back."""
    connection = pika_connection(broker, trusting(authority))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("tls", durable=True)
    bodies = [b"", b"x", *[bytes([number]) * MIB for number in range(4)]]
    for body in bodies:
        channel.basic_publish("", "tls", body, pika.BasicProperties(delivery_mode=2), mandatory=True)
    heard = []
    for method, _, body in channel.consume("tls", inactivity_timeout=30):
        assert method is not None, "nothing came for 30 s"
        heard.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(heard) == len(bodies):
            break
    assert heard == bodies
    channel.queue_delete("tls")
    connection.close()


def test_the_handshake_in_small_pieces(broker: BrokerProcess, authority: trustme.CA) -> None:
    """TLS records and AMQP frames cut anywhere."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    link = trusting(authority).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", tls_port(broker)), timeout=30) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def carry() -> None:
            data = outgoing.read()
            for at in range(0, len(data), 7):
                sock.sendall(data[at : at + 7])
                time.sleep(0.0005)

        def until(step: Any) -> Any:
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    carry()
                    data = sock.recv(11)
                    assert data, "the broker hung up"
                    incoming.write(data)

        until(link.do_handshake)
        for at in range(len(HEADER)):
            link.write(HEADER[at : at + 1])
        carry()
        assert until(lambda: link.read(11))[7:] == b"\x00\x0a\x00\x0a"


@pytest.mark.slow
def test_a_consumer_that_does_not_read(broker: BrokerProcess, authority: trustme.CA) -> None:
    """24 MiB wait for a peer whose TLS socket is full; another works on; then it reads, and gets them all in order."""
    slow = pika_connection(broker, trusting(authority))
    channel = slow.channel()
    channel.queue_declare("slow", exclusive=True)
    heard: list[int] = []
    channel.basic_consume("slow", lambda _channel, _method, _properties, body: heard.append(body[0]), auto_ack=True)
    quick = pika_connection(broker, trusting(authority))
    other = quick.channel()
    other.confirm_delivery()
    for number in range(24):
        other.basic_publish("", "slow", bytes([number]) * MIB)
    begun = time.monotonic()
    other.queue_declare("quick", exclusive=True)
    other.basic_publish("", "quick", b"still here")
    assert other.basic_get("quick", auto_ack=True)[2] == b"still here"
    assert time.monotonic() - begun < 30
    deadline = time.monotonic() + 30
    while len(heard) < 24 and time.monotonic() < deadline:
        slow.process_data_events(0.2)
    assert heard == list(range(24))
    slow.close()
    quick.close()
