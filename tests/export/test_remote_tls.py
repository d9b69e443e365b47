"""Export over HTTPS with a client certificate: reading queue files and committing. Spark is not needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pika
import pytest
import trustme

from amqpd.storage.export.files import BrokerSource, QueueName, SourceError, TlsFiles
from amqpd.storage.export.job import CommitFailed, commit
from amqpd.storage.export.options import BadOption, parse
from amqpd.testing import BrokerProcess


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    for name in ("spark", "stranger"):
        authority.issue_cert(common_name=name).private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    return folder


@pytest.fixture(scope="module")
def broker(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings: dict[str, object] = {
        "http.tls.port": 0,
        "http.tls.certificate": certificates / "server.pem",
        "http.tls.key": certificates / "server.pem",
        "http.tls.ca": certificates / "ca.pem",
        "http.tls.verify_peer": True,
        "auth.mechanisms": "PLAIN,EXTERNAL",
        "auth.ssl_cert_login_from": "common_name",
    }
    with BrokerProcess(tmp_path_factory.mktemp("data"), settings=settings) as process:
        process.api("PUT", "/api/users/spark", {"password_hash": "", "tags": "management"})
        process.api("PUT", "/api/permissions/%2F/spark", {"configure": "", "write": "", "read": ".*"})
        with closing(pika.BlockingConnection(pika.URLParameters(process.url))) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True, arguments={"x-export": "lake"})
            channel.basic_publish("", "orders", b"one of them", pika.BasicProperties(delivery_mode=2))
        yield process


def options(broker: BrokerProcess, certificates: Path, name: str = "spark", **more: str) -> dict[str, str]:
    assert broker.ready is not None
    return {
        "url": f"https://localhost:{broker.ready.listeners['https'][1]}",
        "queue": "orders",
        "tlsCaCertFile": str(certificates / "ca.pem"),
        "tlsCertFile": str(certificates / f"{name}.pem"),
        **more,
    }


def list_queues(given: dict[str, str]) -> list[QueueName]:
    return parse(given).source.queues("/")


def test_client_certificate_can_read_and_commit(broker: BrokerProcess, certificates: Path) -> None:
    source = parse(options(broker, certificates)).source
    (queue,) = source.queues("/")
    files = source.open(queue)
    (segment,) = [name for name in files.sizes() if name.endswith(".log")]
    assert b"one of them" in files.pread(segment, 1 << 16, 0)
    files.close()
    commit(source, queue, "lake", 1)
    (export,) = broker.api("GET", "/api/amqpd/exports/%2F/orders")["exports"]
    assert (export["name"], export["offset"]) == ("lake", 1)


def test_unknown_certificate_or_ca_is_an_error(broker: BrokerProcess, certificates: Path) -> None:
    with pytest.raises(SourceError, match="the certificate's user is not allowed: 401"):
        list_queues(options(broker, certificates, "stranger"))
    assert list_queues(options(broker, certificates, "stranger", user="guest", password="guest"))
    with pytest.raises(SourceError, match="CERTIFICATE_VERIFY_FAILED"):
        parse({"url": options(broker, certificates)["url"], "queue": "orders"}).source.queues("/")
    stranger = parse(options(broker, certificates, "stranger")).source
    (queue,) = list_queues(options(broker, certificates))
    with pytest.raises(CommitFailed, match="401"):
        commit(stranger, queue, "lake", 1)


def test_inconsistent_tls_options_are_refused(certificates: Path) -> None:
    https = {"url": "https://h", "queue": "q"}
    source = parse({**https, "tlscertfile": "c", "tlsKeyFile": "k"}).source
    assert source == BrokerSource("https://h:15671", "", "", TlsFiles("", "c", "k"))
    with pytest.raises(BadOption, match="tlsKeyFile needs tlsCertFile"):
        parse({**https, "tlsKeyFile": "k"})
    with pytest.raises(SourceError, match="https"):
        parse({"url": "http://h", "queue": "q", "tlsCaCertFile": "c"})
    with pytest.raises(BadOption, match="need url"):
        parse({"path": "/d", "queue": "q", "tlsCaCertFile": "c"})
    with pytest.raises(SourceError, match=r"/nowhere\.pem: No such file"):
        parse({**https, "tlsCaCertFile": "/nowhere.pem"}).source.queues("/")


def test_large_ranges_over_tls_equal_the_file(broker: BrokerProcess, certificates: Path) -> None:
    """The ranges span many TLS records."""
    with closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("large", durable=True)
        for number in range(6):
            body = bytes([number]) * 300_000
            channel.basic_publish("", "large", body, pika.BasicProperties(delivery_mode=2))
    source = parse(options(broker, certificates) | {"queue": "large"}).source
    queue = next(each for each in source.queues("/") if each.queue == "large")
    files = source.open(queue)
    (segment, size) = next(each for each in files.sizes().items() if each[0].endswith(".log"))
    (path,) = [each for each in broker.data_dir.rglob(segment) if each.stat().st_size == size]
    whole = path.read_bytes()
    assert files.pread(segment, size, 0) == whole[:size]
    assert files.pread(segment, 700_001, 123_457) == whole[123_457 : 123_457 + 700_001]
    files.close()
