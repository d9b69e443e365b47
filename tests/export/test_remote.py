"""Export over the network: the same rows as from the directory, range requests, and access only with read
permission.
"""

from __future__ import annotations

import base64
import http.client
import http.server
import json
import os
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any
from urllib.parse import quote

import cramjam
import pika
import pytest

from amqpd.storage.export import offsets
from amqpd.storage.export.arrow import Decoder, PartReader
from amqpd.storage.export.files import BrokerSource, MissingQueue, QueueName, SourceError, _Client
from amqpd.storage.export.options import NoSuchQueue, parse
from amqpd.testing import BrokerProcess, Vhost

COUNT = 3000


def test_password_that_is_not_quoted_is_not_in_the_error() -> None:
    for url in ("http://u:secret/word@h", "http://u:secret#word@h", "http://u:secret?word@h", "http://u:secret@h:x"):
        with pytest.raises(SourceError, match="expected http://") as caught:
            BrokerSource.from_url(url)
        assert "secret" not in str(caught.value)


class _LoginPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(206 if "Range" in self.headers else 200)
        self.end_headers()
        self.wfile.write(b"<html>Sign in</html>")

    def log_message(self, *values: object) -> None:
        return


def test_page_of_a_proxy_is_an_error_of_the_source() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _LoginPage) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = BrokerSource.from_url(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(SourceError, match="answer is not that of amqpd"):
            source.queues("/")
        with closing(source.open(QueueName("/", "q", "1", ""))) as files:
            with pytest.raises(SourceError, match="answer is not that of amqpd"):
                files.sizes()
            with pytest.raises(SourceError, match="answer is not that of amqpd"):
                files.read("queue.json")
        server.shutdown()


class _ClusterNode(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_list = self.path == "/api/amqpd/logs/%2F"
        self.send_response(200 if is_list else 404)
        self.end_headers()
        why = {"error": "Object Not Found", "reason": "queue 'q' in vhost '/' is in a cluster: its log is in Kafka"}
        self.wfile.write(json.dumps([{"queue": "q", "vhost": "/", "id": "1"}] if is_list else why).encode())

    def log_message(self, *values: object) -> None:
        return


def test_queue_of_a_cluster_is_no_deleted_queue() -> None:
    """The node lists the queue, and Kafka has its log: an export without an error would have no messages."""
    with http.server.HTTPServer(("127.0.0.1", 0), _ClusterNode) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = parse({"url": f"http://127.0.0.1:{server.server_port}", "queue": "q"})
        with pytest.raises(SourceError, match="its log is in Kafka"):
            offsets.latest(options)
        server.shutdown()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, until_settled: Any) -> Any:
    """A broker with small segments and 3000 messages in a queue with special characters, the first 100 acked."""
    directory = tmp_path_factory.mktemp("broker")
    with BrokerProcess(directory, settings={"storage.segment_size_bytes": 1 << 20}) as running:
        connection = pika.BlockingConnection(pika.URLParameters(amqp(running)))
        channel = connection.channel()
        channel.queue_declare("a/b \u00fc", durable=True)
        channel.queue_declare("empty", durable=True)
        channel.queue_declare("passing")
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, headers={"n": 1})
        for number in range(COUNT):
            channel.basic_publish("", "a/b \u00fc", b"%d" % number + b"." * 500, properties)
        for _ in range(100):
            method, _, _ = channel.basic_get("a/b \u00fc")
            channel.basic_ack(method.delivery_tag)
        connection.close()
        until_settled(running, "a/b \u00fc", COUNT - 100)
        yield running


def amqp(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/"


def ask(
    broker: BrokerProcess, path: str, headers: dict[str, str] | None = None, user: str = "guest", method: str = "GET",
    body: object = None,
) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=600)
    password = "guest" if user == "guest" else "secret"
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    sent = {"Authorization": f"Basic {token}", "Content-Type": "application/json", **(headers or {})}
    connection.request(method, path, None if body is None else json.dumps(body), sent)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, data


LOG = "/api/amqpd/logs/%2F/" + quote("a/b \u00fc", safe="")


def rows(**given: str) -> list[dict[str, Any]]:
    options = parse({"queue": "a/b \u00fc", "includeHeaders": "true", "splitBytes": "200000", **given})
    found = []
    for part in offsets.batch_parts(options):
        files = options.source.open(part.queue)
        decoder = Decoder("/", part.queue.queue, list(options.columns))
        for batch in PartReader(files, part, decoder).batches():
            found += batch.to_pylist()
        files.close()
    return found


def test_remote_rows_equal_local_rows(broker: BrokerProcess) -> None:
    local_rows = rows(path=str(broker.data_dir))
    remote_rows = rows(url=f"http://guest:guest@127.0.0.1:{broker.http_port}")
    assert [row["offset"] for row in remote_rows] == list(range(100, COUNT))
    assert remote_rows == local_rows


def test_empty_queue_has_no_rows_and_missing_queue_is_an_error(broker: BrokerProcess) -> None:
    url = f"http://127.0.0.1:{broker.http_port}"
    assert rows(url=url, queue="empty") == []
    with pytest.raises(NoSuchQueue):
        rows(url=url, queue="none")
    with pytest.raises(NoSuchQueue):
        rows(url=url, queue="passing")  # a queue that is not durable has no log


def test_wrong_password_or_missing_broker_is_an_error(broker: BrokerProcess) -> None:
    with pytest.raises(SourceError, match="user 'guest' is not allowed: 401"):
        rows(url=f"http://guest:wrong@127.0.0.1:{broker.http_port}")
    with pytest.raises(SourceError, match="does not answer"):
        rows(url="http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("wanted", "status", "span"),
    [
        ("bytes=0-9", 206, (0, 10)), ("bytes=5-5", 206, (5, 6)), ("bytes=1000-", 206, (1000, None)),
        ("bytes=-7", 206, (-7, None)), ("bytes=10-99999999", 206, (10, None)), (None, 200, (0, None)),
        ("bytes=99999999-", 416, None), ("bytes=9-3", 416, None), ("lines=1-2", 416, None),
    ],
)  # fmt: skip
def test_range_request_returns_these_bytes(
    broker: BrokerProcess, wanted: str | None, status: int, span: tuple[int, int | None] | None
) -> None:
    name = next(each["name"] for each in json.loads(ask(broker, LOG)[2])["files"] if each["name"].endswith(".log"))
    (path,) = [found for found in broker.data_dir.rglob(name) if b"a/b" in (found.parent / "queue.json").read_bytes()]
    whole = path.read_bytes()
    got, headers, data = ask(broker, f"{LOG}/{name}", {"Range": wanted} if wanted else {})
    assert got == status
    if span is None:
        assert data == b"" and headers["content-range"] == f"bytes */{len(whole)}"
    else:
        assert data == whole[slice(*span)]
        assert int(headers["content-length"]) == len(data)
        if status == 206:
            first = span[0] % len(whole)
            assert headers["content-range"] == f"bytes {first}-{first + len(data) - 1}/{len(whole)}"


def test_head_request_returns_the_size_and_no_body(broker: BrokerProcess) -> None:
    status, headers, data = ask(broker, f"{LOG}/queue.json", method="HEAD")
    assert status == 200 and data == b"" and int(headers["content-length"]) > 20


@pytest.mark.parametrize(
    "name", ["..%2F..%2F..%2Famqpd.db", "queue.json.swap", "clean-shutdown", "%2Fetc%2Fpasswd", "x.log", "0.log"]
)
def test_name_that_is_no_log_file_is_404(broker: BrokerProcess, name: str) -> None:
    assert ask(broker, f"{LOG}/{name}")[0] == 404


def test_removed_file_is_404(broker: BrokerProcess) -> None:
    assert ask(broker, f"{LOG}/{'9' * 20}.log")[0] == 404


def test_compressed_rows_equal_those_that_are_not(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = []
    real = http.client.HTTPResponse.getheader

    def getheader(answer: Any, name: str, default: str | None = None) -> Any:
        found = real(answer, name, default)
        if name == "Content-Type":
            kinds.append(found)
        return found

    monkeypatch.setattr(http.client.HTTPResponse, "getheader", getheader)
    url = f"http://guest:guest@127.0.0.1:{broker.http_port}"
    assert rows(url=url, transferCompression="zstd") == rows(url=url)
    assert kinds.count("application/zstd") > 1


@pytest.mark.parametrize(
    ("wanted", "compressed"), [("bytes=1000-100999", True), ("bytes=1000-1003", False), (None, False)]
)
def test_range_is_compressed_if_that_saves_bytes(broker: BrokerProcess, wanted: str | None, compressed: bool) -> None:
    name = next(each["name"] for each in json.loads(ask(broker, LOG)[2])["files"] if each["name"].endswith(".log"))
    given = {"Range": wanted} if wanted else {}
    _, plain_headers, plain = ask(broker, f"{LOG}/{name}", given)
    status, headers, data = ask(broker, f"{LOG}/{name}?compression=zstd", given)
    assert status == (206 if wanted else 200)
    assert headers.get("content-range") == plain_headers.get("content-range")
    if compressed:
        assert headers["content-type"] == "application/zstd" and int(headers["content-length"]) == len(data)
        assert len(data) < len(plain) / 4 and bytes(cramjam.zstd.decompress(data)) == plain
    else:
        assert headers["content-type"] == "application/octet-stream" and data == plain


def test_unknown_compression_is_400_and_a_removed_file_404(broker: BrokerProcess) -> None:
    assert ask(broker, f"{LOG}/queue.json?compression=gzip")[0] == 400
    assert ask(broker, f"{LOG}/{'9' * 20}.log?compression=zstd", {"Range": "bytes=0-9"})[0] == 404


def test_damaged_compressed_range_is_an_error(broker: BrokerProcess) -> None:
    client = _Client(BrokerSource.from_url(f"http://127.0.0.1:{broker.http_port}"))
    packed = bytes(cramjam.zstd.compress(b"x" * 100))
    assert client._unpacked(packed, "bytes 5-104/1000") == b"x" * 100
    with pytest.raises(SourceError, match="100 bytes in place of 101"):
        client._unpacked(packed, "bytes 5-105/1000")
    with pytest.raises(SourceError, match="Content-Range is ''"):
        client._unpacked(packed, "")
    for data, span in ((packed, "bytes 5-50/1000"), (packed[:-5], "bytes 5-104/1000"), (b"x", "bytes 0-5/9")):
        with pytest.raises(SourceError, match="damaged"):
            client._unpacked(data, span)


def test_if_match_with_another_queue_id_is_412(broker: BrokerProcess) -> None:
    identity = json.loads(ask(broker, LOG)[2])["id"]
    assert ask(broker, f"{LOG}/queue.json", {"If-Match": f'"{identity}"'})[0] == 200
    assert ask(broker, f"{LOG}/queue.json", {"If-Match": '"another"'})[0] == 412


def test_connection_serves_several_requests(broker: BrokerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=600)
    token = base64.b64encode(b"guest:guest").decode()
    for size in (10, 100_000, 1):
        headers = {"Authorization": f"Basic {token}", "Range": f"bytes=0-{size - 1}"}
        connection.request("GET", f"{LOG}/{'0' * 20}.log", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 206 and len(answer.read()) == size
    connection.close()


def test_disconnected_reader_does_not_harm_the_broker(broker: BrokerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http_port, timeout=600)
    token = base64.b64encode(b"guest:guest").decode()
    connection.request("GET", f"{LOG}/{'0' * 20}.log", headers={"Authorization": f"Basic {token}"})
    connection.getresponse().read(10)
    connection.close()
    assert len(rows(url=f"http://127.0.0.1:{broker.http_port}")) == COUNT - 100


@pytest.mark.parametrize(
    ("tags", "read", "status"),
    [("management", ".*", 200), ("management", "^other$", 401), ("", ".*", 401), ("monitoring", "", 401)],
)
def test_log_needs_read_permission_and_management_tag(broker: BrokerProcess, tags: str, read: str, status: int) -> None:
    name = f"u{os.urandom(4).hex()}"
    assert ask(broker, f"/api/users/{name}", method="PUT", body={"password": "secret", "tags": tags})[0] == 201
    given = {"configure": "", "write": "", "read": read}
    assert ask(broker, f"/api/permissions/%2F/{name}", method="PUT", body=given)[0] == 201
    assert ask(broker, LOG, user=name)[0] == status
    assert ask(broker, f"{LOG}/queue.json", user=name)[0] == status
    listed, _, data = ask(broker, "/api/amqpd/logs/%2F", user=name)
    if tags:
        assert listed == 200 and len(json.loads(data)) == (2 if read == ".*" else 0)


def test_log_of_a_vhost_without_permission_is_401(broker: BrokerProcess) -> None:
    name = f"u{os.urandom(4).hex()}"
    ask(broker, f"/api/users/{name}", method="PUT", body={"password": "secret", "tags": "management"})
    assert ask(broker, "/api/amqpd/logs/%2F", user=name)[0] == 401
    assert ask(broker, LOG, user=name)[0] == 401


def test_queue_recreated_after_planning_is_an_error(amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
    def declare(fill: Callable[[Any], None]) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
        channel = connection.channel()
        fill(channel)
        channel.queue_declare("q", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"x", pika.BasicProperties(delivery_mode=2))
        connection.close()

    declare(lambda channel: None)
    options = parse({"url": f"http://127.0.0.1:{amqpd_broker.http_port}", "vhost": amqpd_vhost.name, "queue": "q"})
    parts = offsets.batch_parts(options)
    declare(lambda channel: channel.queue_delete("q"))
    with closing(options.source.open(parts[0].queue)) as files:
        reader = PartReader(files, parts[0], Decoder("/", "q", ["value"]))
        with pytest.raises(SourceError, match="deleted and declared again"):
            list(reader.batches())


def test_error_has_the_reason_of_the_broker(amqpd_broker: BrokerProcess, amqpd_vhost: Vhost) -> None:
    url = f"http://127.0.0.1:{amqpd_broker.http_port}"
    source = parse({"url": url, "vhost": amqpd_vhost.name, "queue": "q"}).source
    files = source.open(QueueName(amqpd_vhost.name, "q", "id", ""))
    with closing(files), pytest.raises(MissingQueue, match="404 no queue 'q' in vhost"):
        files.sizes()
