"""Logins of Kafka's clients: SASL PLAIN and SCRAM, limits, the audit log and the lists of connections."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from unittest.mock import MagicMock

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafka_socket import KafkaSocket, address_of, audit_records, until

from amqpd.kafka_server.server import KafkaServer
from amqpd.testing import BrokerProcess

USER, PASSWORD = "ann", "correct horse, ü=,"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
DIGESTS = dict(zip(SCRAM, ("sha256", "sha512"), strict=True))


@pytest.fixture(scope="module")
def login_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose Kafka clients must log in, with the administrator `ann`."""
    settings = {"kafka.port": 0, "kafka.host": "127.0.0.1", "kafka.anonymous_user": ""}
    with BrokerProcess(tmp_path_factory.mktemp("login-broker"), settings=settings) as broker:
        add_user(broker, USER, {"password": PASSWORD, "tags": "administrator"})
        yield broker
        assert "Traceback" not in broker.stderr


@pytest.fixture
def address(login_broker: BrokerProcess) -> str:
    return address_of(login_broker)


def add_user(broker: BrokerProcess, name: str, body: dict[str, str]) -> None:
    broker.api("PUT", f"/api/users/{name}", {"tags": "", **body})
    broker.api("PUT", f"/api/permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})


def login(mechanism: str, user: str = USER, password: str = PASSWORD) -> dict[str, Any]:
    """Return the settings of a client of kafka-python or aiokafka."""
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


class ScramClient:
    """A SCRAM login by hand over one socket. `proof` makes the last message, from the server's first one."""

    def __init__(
        self, address: str, mechanism: str = SCRAM[0], user: str = USER, nonce: str = "abc", version: int = 1
    ) -> None:
        self.socket = KafkaSocket(address)
        self.mechanism, self.nonce = mechanism, nonce
        self.first = f"n={user},r={nonce}"
        assert self.socket.ask(SaslHandshakeRequest(mechanism=mechanism), version).error_code == 0

    def send(self, message: bytes) -> Any:
        return self.socket.ask(SaslAuthenticateRequest(auth_bytes=message), 2)

    def begin(self) -> str:
        """Send the first message and return the broker's."""
        answer = self.send(f"n,,{self.first}".encode())
        assert answer.error_code == 0
        return bytes(answer.auth_bytes).decode()

    def last(self, server_first: str, password: str = PASSWORD) -> bytes:
        digest = DIGESTS[self.mechanism]
        parts = dict(each.split("=", 1) for each in server_first.split(","))
        salt, count = base64.b64decode(parts["s"]), int(parts["i"])
        client_key = hmac.digest(hashlib.pbkdf2_hmac(digest, password.encode(), salt, count), b"Client Key", digest)
        without_proof = f"c=biws,r={parts['r']}"
        signed = f"{self.first},{server_first},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(digest, client_key).digest(), signed, digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


Connect: TypeAlias = Callable[..., ScramClient]


@pytest.fixture
def connect(login_broker: BrokerProcess) -> Iterator[Connect]:
    """Make SCRAM clients that are closed at the end."""
    clients: list[ScramClient] = []

    def make(mechanism: str = SCRAM[0], user: str = USER) -> ScramClient:
        clients.append(ScramClient(address_of(login_broker), mechanism, user))
        return clients[-1]

    yield make
    for client in clients:
        client.socket.close()


class TestClients:
    @pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
    def test_kafka_python_produces_and_consumes(self, address: str, mechanism: str) -> None:
        topic = f"of-{mechanism}"
        admin = KafkaAdminClient(bootstrap_servers=address, **login(mechanism))
        admin.create_topics([NewTopic(topic, 1, 1)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=address, **login(mechanism))
        producer.send(topic, b"hello").get(30)
        producer.close()
        consumer = KafkaConsumer(topic, bootstrap_servers=address, auto_offset_reset="earliest", **login(mechanism))
        assert next(consumer).value == b"hello"
        consumer.close()

    @pytest.mark.parametrize("mechanism", SCRAM)
    def test_aiokafka_logs_in(self, address: str, mechanism: str) -> None:
        from aiokafka.admin import AIOKafkaAdminClient

        async def topics() -> list[str]:
            admin = AIOKafkaAdminClient(bootstrap_servers=address, **login(mechanism))
            await admin.start()
            try:
                found: list[str] = await admin.list_topics()
                return found
            finally:
                await admin.close()

        assert isinstance(asyncio.run(topics()), list)

    @pytest.mark.parametrize("mechanism", SCRAM)
    def test_confluent_kafka_logs_in(self, address: str, mechanism: str) -> None:
        confluent = pytest.importorskip("confluent_kafka.admin")
        admin = confluent.AdminClient(
            {
                "bootstrap.servers": address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanisms": mechanism,
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        assert admin.list_topics(timeout=30).brokers

    @pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
    def test_wrong_password_is_refused(self, address: str, mechanism: str) -> None:
        with pytest.raises(KafkaError):
            KafkaAdminClient(bootstrap_servers=address, bootstrap_timeout_ms=3000, **login(mechanism, password="wrong"))

    def test_vhost_in_the_user_name(self, login_broker: BrokerProcess, connect: Connect) -> None:
        login_broker.api("PUT", "/api/vhosts/other", {})
        login_broker.api("PUT", "/api/permissions/other/ann", {"configure": ".*", "write": ".*", "read": ".*"})
        client = connect(user="other:ann")
        assert client.send(client.last(client.begin())).error_code == 0
        answer = client.socket.ask(MetadataRequest(topics=None), 1)
        assert [topic.name for topic in answer.topics] == []


class TestScram:
    @pytest.mark.parametrize("mechanism", SCRAM)
    def test_broker_proves_that_it_knows_the_password(self, connect: Connect, mechanism: str) -> None:
        client = connect(mechanism)
        answer = client.send(client.last(client.begin()))
        assert answer.error_code == 0
        assert bytes(answer.auth_bytes).startswith(b"v=")

    def test_wrong_password_gets_an_error_that_names_the_remedy_and_the_end(self, connect: Connect) -> None:
        client = connect()
        answer = client.send(client.last(client.begin(), "wrong"))
        assert answer.error_code == 58
        assert "change_password" in answer.error_message
        assert client.socket.is_closed()

    def test_unknown_user_sees_what_a_known_one_with_a_wrong_password_does(self, connect: Connect) -> None:
        firsts, answers = [], []
        for _ in range(2):
            client = connect(user="nobody")
            firsts.append(client.begin().partition(",")[2])
            answers.append(client.send(client.last(f"r=x,{firsts[-1]}")))
        known = connect()
        known_first = known.begin().partition(",")[2]
        wrong = known.send(known.last(f"r=x,{known_first}", "wrong"))
        assert firsts[0] == firsts[1]
        assert len(firsts[0]) == len(known_first)
        assert firsts[0].rpartition("i=")[2] == known_first.rpartition("i=")[2]
        assert [(each.error_code, each.error_message) for each in answers] == [(58, wrong.error_message)] * 2

    def test_user_with_an_imported_hash_gets_credentials_with_a_password(
        self, login_broker: BrokerProcess, connect: Connect
    ) -> None:
        hashed = base64.b64encode(b"salt" + hashlib.sha256(b"saltold").digest()).decode()
        add_user(login_broker, "old", {"password_hash": hashed})
        client = connect(user="old")
        assert client.send(client.last(client.begin(), "old")).error_code == 58
        assert login_broker.says("set its password once")
        add_user(login_broker, "old", {"password": "old"})
        client = connect(user="old")
        assert client.send(client.last(client.begin(), "old")).error_code == 0
        client.socket.close()
        login_broker.api("PUT", "/api/users/old", {"password_hash": hashed, "tags": ""})
        client = connect(user="old")
        assert client.send(client.last(client.begin(), "old")).error_code == 58

    def test_last_message_of_an_earlier_login_is_refused(self, connect: Connect) -> None:
        client = connect()
        last = client.last(client.begin())
        assert client.send(last).error_code == 0
        client.socket.close()
        client = connect()
        client.begin()
        assert client.send(last).error_code == 58

    @pytest.mark.parametrize("message", [b"", b"\xff" * 100, b"n,,", b"c=biws,r=abc,p=AAAA", b"x" * 60000])
    def test_garbage_is_refused(self, connect: Connect, message: bytes) -> None:
        client = connect()
        assert client.send(message).error_code == 58
        assert client.socket.is_closed()

    @pytest.mark.parametrize(("name", "error"), [("", 0), (USER, 0), ("other", 58)])
    def test_plain_login_on_behalf_of_another_user_is_refused(self, connect: Connect, name: str, error: int) -> None:
        assert connect("PLAIN").send(f"{name}\0{USER}\0{PASSWORD}".encode()).error_code == error

    def test_message_before_the_handshake_is_refused(self, address: str) -> None:
        with KafkaSocket(address) as client:
            assert client.ask(SaslAuthenticateRequest(auth_bytes=b"n,,n=ann,r=x"), 2).error_code == 34

    def test_second_handshake_is_refused(self, connect: Connect) -> None:
        client = connect()
        assert client.socket.ask(SaslHandshakeRequest(mechanism=SCRAM[0]), 1).error_code == 34

    def test_request_within_the_login_closes_the_connection(self, connect: Connect) -> None:
        client = connect()
        client.begin()
        client.socket.send(MetadataRequest(topics=None), 1)
        assert client.socket.is_closed()

    def test_unknown_mechanism_gets_the_list(self, address: str) -> None:
        with KafkaSocket(address) as client:
            answer = client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
            assert (answer.error_code, answer.mechanisms) == (33, ["PLAIN", *SCRAM])

    @pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
    @pytest.mark.parametrize("password", [PASSWORD, "wrong"])
    def test_messages_without_headers_follow_handshake_0(self, address: str, mechanism: str, password: str) -> None:
        """As kafka-python 2.0 logs in."""
        client = ScramClient(address, mechanism, version=0)

        def send(message: bytes) -> None:
            client.socket.send_bytes(len(message).to_bytes(4, "big") + message)

        if mechanism == "PLAIN":
            send(f"\0{USER}\0{password}".encode())
        else:
            send(f"n,,{client.first}".encode())
            send(client.last(client.socket.receive().decode(), password))
        if password == PASSWORD:
            assert client.socket.receive()[:2] == (b"" if mechanism == "PLAIN" else b"v=")
            assert client.socket.ask(MetadataRequest(topics=[]), 1).topics == []
        else:
            assert client.socket.socket.recv(1) == b""
        client.socket.close()

    @pytest.mark.slow
    def test_credentials_survive_a_restart_and_an_export(self, login_broker: BrokerProcess, connect: Connect) -> None:
        client = connect(user="nobody")
        salt = client.begin().partition(",")[2]
        client.socket.close()
        exported: Any = login_broker.api("GET", "/api/definitions")
        [user] = [each for each in exported["users"] if each["name"] == USER]
        assert user["password_hash"] == ""
        assert user["scram_sha_256"].startswith("16384:")
        login_broker.stop()
        login_broker.start()
        client = connect(user="nobody")
        assert client.begin().partition(",")[2] == salt
        client.socket.close()
        login_broker.api("DELETE", f"/api/users/{USER}")
        client = connect()
        assert client.send(client.last(client.begin())).error_code == 58
        login_broker.api("POST", "/api/definitions", exported)
        client = connect()
        assert client.send(client.last(client.begin())).error_code == 0

    def test_import_of_a_password_makes_credentials(self, login_broker: BrokerProcess, connect: Connect) -> None:
        rights = {"user": "bob", "vhost": "/", "configure": "", "write": "", "read": ""}
        document = {"users": [{"name": "bob", "password": "b", "tags": ""}], "permissions": [rights]}
        login_broker.api("POST", "/api/definitions", document)
        client = connect(user="bob")
        assert client.send(client.last(client.begin(), "b")).error_code == 0

    def test_malformed_credentials_are_not_imported(self, login_broker: BrokerProcess) -> None:
        document = {"users": [{"name": "eve", "password_hash": "", "tags": "", "scram_sha_256": "1:a:b:c"}]}
        with pytest.raises(Exception, match="400"):
            login_broker.api("POST", "/api/definitions", document)


class TestLimits:
    def test_connection_limit_of_the_user(self, login_broker: BrokerProcess, connect: Connect) -> None:
        add_user(login_broker, "few", {"password": "f"})
        login_broker.api("PUT", "/api/user-limits/few/max-connections", {"value": 1})
        first = connect(user="few")
        assert first.send(first.last(first.begin(), "f")).error_code == 0
        second = connect(user="few")
        answer = second.send(second.last(second.begin(), "f"))
        assert answer.error_code == 58
        assert "user connection limit (1) is reached" in answer.error_message
        first.socket.close()
        until(lambda: not login_broker.api("GET", "/api/connections/username/few"))
        third = connect(user="few")
        assert third.send(third.last(third.begin(), "f")).error_code == 0
        third.socket.close()

    def test_connection_limit_of_the_vhost(self, login_broker: BrokerProcess, connect: Connect) -> None:
        login_broker.api("PUT", "/api/vhosts/full", {})
        login_broker.api("PUT", "/api/permissions/full/ann", {"configure": ".*", "write": ".*", "read": ".*"})
        login_broker.api("PUT", "/api/vhost-limits/full/max-connections", {"value": 0})
        client = connect(user="full:ann")
        answer = client.send(client.last(client.begin()))
        assert "connection limit (0) is reached" in answer.error_message


class TestOperators:
    def test_list_and_end_of_a_connection(self, login_broker: BrokerProcess, connect: Connect) -> None:
        client = connect()
        assert client.send(client.last(client.begin())).error_code == 0
        own = client.socket.socket.getsockname()[1]

        def listed() -> list[dict[str, Any]]:
            found: Any = login_broker.api("GET", "/api/connections")
            return [each for each in found if each["peer_port"] == own]

        [item] = listed()
        assert (item["protocol"], item["user"], item["vhost"], item["auth_mechanism"]) == (
            "Kafka", USER, "/", SCRAM[0],
        )  # fmt: skip
        name = item["name"]
        quoted = name.replace(" ", "%20").replace(">", "%3E")
        one: Any = login_broker.api("GET", f"/api/connections/{quoted}")
        assert one["name"] == name
        assert f"{name}\trunning" in login_broker.ctl("list_connections", "name", "state").stdout
        assert (one["recv_oct"] > 0, one["send_oct"] > 0) == (True, True)
        assert login_broker.api("GET", f"/api/connections/{quoted}/channels") == []
        login_broker.api("DELETE", f"/api/connections/{quoted}")
        assert client.socket.is_closed()
        assert listed() == []

    @pytest.mark.parametrize("command", ["close_connection", "close_all_connections"])
    def test_commands_close_a_connection(
        self, login_broker: BrokerProcess, address: str, connect: Connect, command: str
    ) -> None:
        client = connect()
        assert client.send(client.last(client.begin())).error_code == 0
        found: Any = login_broker.api("GET", "/api/connections")
        target = [found[0]["pid"]] if command == "close_connection" else []
        assert login_broker.ctl(command, *target, "for a test").returncode == 0
        assert client.socket.is_closed()
        assert login_broker.says("for a test")

    @pytest.mark.parametrize("command", ["close_all_user_connections", "drain"])
    def test_commands_close_the_connections_of_all_protocols(
        self, login_broker: BrokerProcess, connect: Connect, command: str
    ) -> None:
        client = connect()
        assert client.send(client.last(client.begin())).error_code == 0
        operands = [USER, "for a test"] if command == "close_all_user_connections" else []
        try:
            assert login_broker.ctl(command, *operands).returncode == 0
            assert client.socket.is_closed()
            until(lambda: not login_broker.api("GET", f"/api/connections/username/{USER}"))
        finally:
            assert login_broker.ctl("resume_listeners").returncode == 0

    def test_user_without_access_is_disconnected(
        self, login_broker: BrokerProcess, address: str, connect: Connect
    ) -> None:
        add_user(login_broker, "gone", {"password": "g"})
        client = connect(user="gone")
        assert client.send(client.last(client.begin(), "g")).error_code == 0
        login_broker.api("DELETE", "/api/users/gone")
        assert client.socket.is_closed()

    def test_audit_log_has_logins_and_topics(self, login_broker: BrokerProcess, address: str, connect: Connect) -> None:
        admin = KafkaAdminClient(bootstrap_servers=address, **login(SCRAM[1]))
        admin.create_topics([NewTopic("audited", 1, 1)])
        admin.delete_topics(["audited"])
        admin.close()
        bad = connect(user="intruder")
        assert bad.send(bad.last(bad.begin())).error_code == 58
        expected = {
            ("queue.created", "audited", USER),
            ("queue.deleted", "audited", USER),
            ("user.authentication.success", USER, USER),
        }

        def is_complete() -> bool:
            records = audit_records(login_broker)
            events = {(each["event"], each.get("name"), each.get("user")) for each in records}
            return expected <= events and any(each["event"] == "user.authentication.failure" for each in records)

        until(is_complete)
        created = [each for each in audit_records(login_broker) if each["event"] == "queue.created"]
        assert all("->" in each["connection"] for each in created)


@pytest.mark.parametrize(
    ("peer", "anonymous_user", "is_accepted"),
    [("127.0.0.1", "guest", True), ("192.0.2.7", "guest", False), ("192.0.2.7", "reader", True)],
)
def test_default_anonymous_user_is_only_for_this_machine(peer: str, anonymous_user: str, is_accepted: bool) -> None:
    """Also if `amqp.loopback_users` lets guest log in from everywhere, with a password that is not the default."""
    server, connection = MagicMock(), MagicMock(peer=(peer, 1))
    server.settings.anonymous_user = anonymous_user
    connection.peer_certificate.return_value = {}
    server.log_in.return_value = ""
    why = KafkaServer.log_in_without_sasl(server, connection)
    assert (why == "") is is_accepted
    assert server.log_in.called is is_accepted
    assert server.record_login.call_args.args == (connection, anonymous_user, why)
