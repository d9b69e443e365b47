"""ACLs from permissions, and SCRAM credentials, with kafka-python's admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    NewTopic,
    ResourcePatternFilter,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka.errors import ClusterAuthorizationFailedError, GroupAuthorizationFailedError, TopicAuthorizationFailedError
from kafka.protocol.admin import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteGroupsRequest,
    DescribeAclsRequest,
    DescribeGroupsRequest,
    DescribeUserScramCredentialsRequest,
    ListGroupsRequest,
)
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from kafka_socket import KafkaSocket, audit_records, until
from share_client import DESCRIBE, ShareMember

from amqpd.kafka_server import access_admin
from amqpd.kafka_server.access_admin import LITERAL, PREFIXED, resource_patterns
from amqpd.testing import BrokerProcess, embedded

ANY_RESOURCE = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)


@pytest.fixture(scope="module")
def admin(kafka_broker: BrokerProcess, kafka_address: str) -> Iterator[KafkaAdminClient]:
    """An admin client of the administrator `guest`."""
    kafka_broker.api("PUT", "/api/users/reader", {"password": "r", "tags": ""})
    rights = {"configure": "^$", "write": "^(a\\.b|c-d)$", "read": "^logs\\."}
    kafka_broker.api("PUT", "/api/permissions/%2F/reader", rights)
    kafka_broker.api("PUT", "/api/users/odd", {"password": "o", "tags": ""})
    kafka_broker.api("PUT", "/api/permissions/%2F/odd", {"configure": "", "write": "a[bc]", "read": ""})
    client = KafkaAdminClient(bootstrap_servers=kafka_address)
    yield client
    client.close()
    for name in ("reader", "odd"):
        kafka_broker.api("DELETE", f"/api/users/{name}")


def login(user: str, password: str, mechanism: str = "PLAIN") -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", []),
        ("^$", []),
        (".*", [("*", LITERAL)]),
        ("^.*$", [("*", LITERAL)]),
        ("^orders$", [("orders", LITERAL)]),
        (r"^a\.b-c_d$", [("a.b-c_d", LITERAL)]),
        ("^(a|b)$", [("a", LITERAL), ("b", LITERAL)]),
        ("^orders", [("orders", PREFIXED)]),
        (r"^orders\..*", [("orders.", PREFIXED)]),
        ("^orders.*$", [("orders", PREFIXED)]),
        ("orders", None),
        ("^a.b$", None),
        ("^a|b$", None),
        ("^(a|b)", None),
        ("^é$", None),
        ("[a-z]+", None),
    ],
)
def test_permission_as_resource_patterns(pattern: str, expected: list[tuple[str, int]] | None) -> None:
    assert resource_patterns(pattern) == expected


def shown(acls: list[ACL]) -> set[tuple[str, str, str, str, str]]:
    return {
        (
            each.principal,
            each.resource_pattern.resource_type.name,
            each.resource_pattern.resource_name,
            each.resource_pattern.pattern_type.name,
            each.operation.name,
        )
        for each in acls
    }


def described(admin: KafkaAdminClient, **fields: Any) -> set[tuple[str, str, str, str, str]]:
    given = {"principal": None, "host": None, "operation": ACLOperation.ANY, "permission_type": ACLPermissionType.ANY}
    found = admin.describe_acls(ACLFilter(**{**given, "resource_pattern": ANY_RESOURCE, **fields}))
    return shown(found[0] if isinstance(found, tuple) else found)


class TestAcls:
    def test_permissions_of_a_user(self, admin: KafkaAdminClient) -> None:
        assert described(admin, principal="User:reader") == {
            ("User:reader", "TOPIC", "a.b", "LITERAL", "WRITE"),
            ("User:reader", "TOPIC", "c-d", "LITERAL", "WRITE"),
            ("User:reader", "TOPIC", "logs.", "PREFIXED", "READ"),
            ("User:reader", "GROUP", "logs.", "PREFIXED", "READ"),
        }

    def test_filters(self, admin: KafkaAdminClient) -> None:
        match = ResourcePatternFilter(ResourceType.TOPIC, "logs.web", ACLResourcePatternType.MATCH)
        found = described(admin, resource_pattern=match, operation=ACLOperation.READ)
        assert found == {
            ("User:reader", "TOPIC", "logs.", "PREFIXED", "READ"),
            ("User:guest", "TOPIC", "*", "LITERAL", "READ"),
        }
        assert described(admin, permission_type=ACLPermissionType.DENY) == set()
        assert described(admin, host="10.0.0.1") == set()

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_regular_expressions_that_are_no_acls_are_counted(
        self, admin: KafkaAdminClient, kafka_address: str, version: int
    ) -> None:
        with KafkaSocket(kafka_address) as client:
            request = DescribeAclsRequest(
                resource_type_filter=1,
                resource_name_filter=None,
                pattern_type_filter=1,
                principal_filter="User:odd",
                host_filter=None,
                operation=1,
                permission_type=1,
            )
            answer = client.ask(request, version)
            assert (answer.error_code, answer.resources) == (0, [])
            assert answer.error_message.startswith("1 permissions are regular expressions")

    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_creation_and_deletion_name_the_command(self, kafka_address: str, version: int) -> None:
        names = {"principal": "User:reader", "host": "*", "operation": 3, "permission_type": 3}
        create, delete = CreateAclsRequest, DeleteAclsRequest
        creation = create.AclCreation(resource_type=2, resource_name="t", resource_pattern_type=3, **names)
        every = {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
        acl_filter = delete.DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, **every
        )
        with KafkaSocket(kafka_address) as client:
            [created] = client.ask(create(creations=[creation]), version).results
            [deleted] = client.ask(delete(filters=[acl_filter]), version).filter_results
        assert (created.error_code, deleted.error_code, deleted.matching_acls) == (54, 54, [])
        assert "amqpctl set_permissions" in created.error_message
        assert deleted.error_message == created.error_message

    def test_other_users_see_nothing(self, admin: KafkaAdminClient, kafka_address: str) -> None:
        client = KafkaAdminClient(bootstrap_servers=kafka_address, **login("reader", "r"))
        with pytest.raises(ClusterAuthorizationFailedError):
            described(client)
        with pytest.raises(ClusterAuthorizationFailedError):
            client.describe_user_scram_credentials()
        client.close()

    def test_administrator_without_the_tag_cannot_change_credentials_any_more(
        self, admin: KafkaAdminClient, kafka_broker: BrokerProcess, kafka_address: str
    ) -> None:
        kafka_broker.api("PUT", "/api/users/former", {"password": "f", "tags": "administrator"})
        rights = {"configure": "", "write": "", "read": ""}
        kafka_broker.api("PUT", "/api/permissions/%2F/former", rights)
        deletion = AlterUserScramCredentialsRequest.fields["deletions"].data_class(name="absent", mechanism=1)
        request = AlterUserScramCredentialsRequest(deletions=[deletion], upsertions=[])
        with KafkaSocket(kafka_address) as raw:
            assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
            assert raw.ask(SaslAuthenticateRequest(auth_bytes=b"\0former\0f"), 2).error_code == 0
            assert [each.error_code for each in raw.ask(request, 0).results] == [91]
            kafka_broker.api("PUT", "/api/amqpd/users/former/tags", {"tags": []})
            assert [each.error_code for each in raw.ask(request, 0).results] == [31]
        kafka_broker.api("DELETE", "/api/users/former")


class TestGroups:
    def test_group_whose_name_the_user_may_not_read(self, admin: KafkaAdminClient, kafka_address: str) -> None:
        settings = {"bootstrap_servers": kafka_address, "consumer_timeout_ms": 30_000, **login("reader", "r")}
        consumer = KafkaConsumer("logs.web", group_id="other", **settings)
        with pytest.raises(GroupAuthorizationFailedError):
            next(consumer)
        consumer.close()

    def test_groups_of_others_are_neither_listed_nor_described_nor_deleted(
        self, admin: KafkaAdminClient, kafka_address: str
    ) -> None:
        admin.create_topics([NewTopic("grouped", 1, 1)])
        offsets = {TopicPartition("grouped", 0): OffsetAndMetadata(0, "", -1)}
        for group in ("other", "logs.report"):
            consumer = KafkaConsumer(bootstrap_servers=kafka_address, group_id=group)
            consumer.commit(offsets)
            consumer.close()
        client = KafkaAdminClient(bootstrap_servers=kafka_address, **login("reader", "r"))
        listed = {each["group_id"] for each in client.list_groups()}
        client.close()
        assert "logs.report" in listed
        assert "other" not in listed
        with KafkaSocket(kafka_address) as raw:
            assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
            assert raw.ask(SaslAuthenticateRequest(auth_bytes=b"\0reader\0r"), 2).error_code == 0
            described = raw.ask(DescribeGroupsRequest(groups=["other", "logs.report"]), 4).groups
            deleted = raw.ask(DeleteGroupsRequest(groups_names=["other", "logs.report"]), 1).results
        assert [each.error_code for each in described] == [30, 0]
        assert [each.error_code for each in deleted] == [30, 30]

    def test_share_groups_of_others_are_neither_listed_nor_described(
        self, admin: KafkaAdminClient, kafka_address: str
    ) -> None:
        admin.create_topics([NewTopic("shared", 1, 1)])
        with ShareMember(kafka_address, "other", "shared") as member, KafkaSocket(kafka_address) as raw:
            assert member.heartbeat(0, ["shared"])[0] == 0
            assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
            assert raw.ask(SaslAuthenticateRequest(auth_bytes=b"\0reader\0r"), 2).error_code == 0
            listed = raw.ask(ListGroupsRequest(states_filter=[], types_filter=["share"], version=5), 5).groups
            raw.send_frame(DESCRIBE, 1, b"\2\6other\0\0", b"\0")
            described = raw.receive()
            assert member.heartbeat(-1)[0] == 0
        assert listed == []
        assert int.from_bytes(described[10:12], "big") == 30
        assert member.id.encode() not in described


def test_refusals_are_in_the_audit_log(
    admin: KafkaAdminClient, kafka_broker: BrokerProcess, kafka_address: str
) -> None:
    admin.create_topics([NewTopic("secret", 1, 1)])
    producer = KafkaProducer(bootstrap_servers=kafka_address, retries=0, **login("guest", "guest"))
    producer.send("secret", b"x").get(30)
    producer.close()
    kafka_broker.api("PUT", "/api/permissions/%2F/odd", {"configure": "", "write": "^secret$", "read": ""})
    consumer = KafkaConsumer(bootstrap_servers=kafka_address, consumer_timeout_ms=30_000, **login("odd", "o"))
    consumer.assign([TopicPartition("secret", 0)])
    consumer.seek(TopicPartition("secret", 0), 0)
    with pytest.raises(TopicAuthorizationFailedError):
        next(consumer)
    consumer.close()
    kafka_broker.api("PUT", "/api/permissions/%2F/odd", {"configure": "", "write": "a[bc]", "read": "^secret$"})
    producer = KafkaProducer(bootstrap_servers=kafka_address, **login("odd", "o"))
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("secret", b"x").get(30)
    producer.close()

    def refused() -> set[str]:
        return {each["name"] for each in audit_records(kafka_broker) if each["event"] == "access.refused"}

    until(lambda: {"Fetch", "Produce", "group"} <= refused())


class TestScramCredentials:
    def test_all_and_one(self, admin: KafkaAdminClient) -> None:
        every = admin.describe_user_scram_credentials()
        assert {"guest", "reader"} <= every.keys()
        assert "16384" in str(every["reader"])
        assert list(admin.describe_user_scram_credentials(["reader"])) == ["reader"]

    def test_changed_and_deleted(self, admin: KafkaAdminClient, kafka_address: str) -> None:
        change = UserScramCredentialUpsertion("reader", ScramMechanism.SCRAM_SHA_256, "other", iterations=4096)
        assert admin.alter_user_scram_credentials([change])["reader"] is None
        consumer = KafkaConsumer(bootstrap_servers=kafka_address, **login("reader", "other", "SCRAM-SHA-256"))
        assert isinstance(consumer.topics(), set)
        consumer.close()
        # The other mechanism and PLAIN have the password of before.
        for mechanism in ("SCRAM-SHA-512", "PLAIN"):
            KafkaAdminClient(bootstrap_servers=kafka_address, **login("reader", "r", mechanism)).close()
        deletion = UserScramCredentialDeletion("reader", ScramMechanism.SCRAM_SHA_256)
        assert admin.alter_user_scram_credentials([deletion])["reader"] is None
        assert admin.alter_user_scram_credentials([deletion])["reader"] is not None

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"name": "nobody"}, 91),
            ({"mechanism": 3}, 33),
            ({"iterations": 4095}, 93),
            ({"iterations": 16385}, 93),
            ({"salt": b""}, 93),
            ({"salted_password": b"short"}, 93),
        ],
    )
    def test_refused_change(
        self, admin: KafkaAdminClient, kafka_address: str, change: dict[str, Any], code: int
    ) -> None:
        fields = {"name": "odd", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": bytes(32)}
        types = AlterUserScramCredentialsRequest
        upsertion = types.ScramCredentialUpsertion(**{**fields, **change})
        with KafkaSocket(kafka_address) as client:
            answer = client.ask(types(deletions=[], upsertions=[upsertion]), 0)
            assert [each.error_code for each in answer.results] == [code]

    def test_user_that_is_named_twice(self, admin: KafkaAdminClient, kafka_address: str) -> None:
        types = DescribeUserScramCredentialsRequest
        with KafkaSocket(kafka_address) as client:
            answer = client.ask(types(users=[types.UserName(name="reader")] * 2), 0)
            assert [(each.user, each.error_code) for each in answer.results] == [("reader", 92)]


async def test_changes_of_both_mechanisms_at_once_keep_both(tmp_path: Path) -> None:
    """Two clients change one user: the second change begins before the first one is committed."""

    def change(mechanism: int, size: int) -> Any:
        fields = {"name": "guest", "mechanism": mechanism, "iterations": 4096, "salt": b"new salt"}
        upsertion = SimpleNamespace(**fields, salted_password=bytes(size))
        request = SimpleNamespace(deletions=(), upsertions=[upsertion])
        user = SimpleNamespace(name="guest")
        session = SimpleNamespace(
            broker=server.broker, user=user, peer=("127.0.0.1", 1), front_end="kafka", name="client"
        )
        call = SimpleNamespace(request=request, session=session, reply=replies.append)
        call.connection = SimpleNamespace(closed=False)
        return access_admin._alter_all(call, ["guest"])  # type: ignore[arg-type]

    replies: list[Any] = []
    async with embedded(tmp_path) as server:
        await asyncio.gather(change(1, 32), change(2, 64))
        found = [server.broker.auth.scram_credentials("guest", name) for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")]
    assert [each["results"][0]["error_code"] for each in replies] == [0, 0]
    assert [each is not None and each.salt for each in found] == [b"new salt"] * 2


def test_change_of_credentials_is_in_the_audit_log(admin: KafkaAdminClient, kafka_broker: BrokerProcess) -> None:
    change = UserScramCredentialUpsertion("odd", ScramMechanism.SCRAM_SHA_512, "secret", iterations=4096)
    assert admin.alter_user_scram_credentials([change])["odd"] is None

    def actors() -> list[str]:
        records = [each for each in audit_records(kafka_broker) if each["event"] == "user.password.changed"]
        return [each["user"] for each in records if each["name"] == "odd"]

    assert until(actors) == ["guest"]
