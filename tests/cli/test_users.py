"""Users, permissions, vhosts: requests, output, and the exit codes of rabbitmqctl 3.10.8."""

from __future__ import annotations

import pytest
from fake_broker import Ctl, FakeBroker

NO_USER = (404, {"error": "Object Not Found", "reason": "user 'u' does not exist"})
NO_VHOST = (404, {"error": "Object Not Found", "reason": "vhost 'v' does not exist"})
PAIR = "/api/permissions/%2F/u"
TOPIC = "/api/topic-permissions/%2F/u"


def test_add_user_sends_password_and_prints_advice(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/users/%C3%BC%2Fu"] = (201, None)
    result = ctl("add_user", "ü/u", "p w")
    assert result == (
        0,
        (
            'Adding user "ü/u" ...\nDone. Don\'t forget to grant the user permissions to some virtual hosts! '
            "See 'amqpctl help set_permissions' to learn more.\n"
        ),
        "",
    )
    assert broker.requests[0].body == {"password": "p w", "tags": ""}
    assert broker.requests[0].headers["If-None-Match"] == "*"
    assert ctl("add_user", "ü/u", "p w", "-q") == (0, "", "")


def test_add_existing_user_is_an_error(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/users/u"] = (412, {"error": "precondition_failed"})
    assert ctl("add_user", "u", "p") == (70, 'Adding user "u" ...\n', 'Error:\nUser "u" already exists\n')


def test_password_is_read_from_stdin(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/users/u"] = (201, None)
    assert ctl("add_user", "u", stdin="from stdin \r\nmore").code == 0
    assert broker.requests[0].body["password"] == "from stdin "
    missing = ctl("add_user", "u")
    assert (missing.code, missing.err) == (65, "Error:\nPassword is not provided via argument or stdin\n")
    assert len(broker.requests) == 1


def test_empty_password_disables_the_login(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/users/u"] = (201, None)
    assert ctl("add_user", "u", "").code == 0
    assert broker.requests[0].body == {"password_hash": "", "tags": ""}


@pytest.mark.parametrize("line", [("add_user", "", "x"), ("add_vhost", ""), ("delete_vhost", "")])
def test_users_and_vhosts_need_a_name(broker: FakeBroker, ctl: Ctl, line: tuple[str, ...]) -> None:
    result = ctl(*line)
    assert (result.code, broker.requests) == (65, [])
    assert f"{line[0].split('_')[1]} cannot be an empty string" in result.err


@pytest.mark.parametrize(
    ("line", "method", "path", "body", "out"),
    [
        ("delete_user u", "DELETE", "/api/users/u", None, 'Deleting user "u" ...\n'),
        (
            "change_password u n",
            "PUT",
            "/api/amqpd/users/u/password",
            {"password": "n"},
            'Changing password for user "u" ...\n',
        ),
        (
            "clear_password u",
            "PUT",
            "/api/amqpd/users/u/password",
            {"password_hash": ""},
            'Clearing password for user "u" ...\n',
        ),
        (
            "set_user_tags u administrator monitoring",
            "PUT",
            "/api/amqpd/users/u/tags",
            {"tags": ["administrator", "monitoring"]},
            'Setting tags for user "u" to [administrator, monitoring] ...\n',
        ),
        (
            "set_user_tags u",
            "PUT",
            "/api/amqpd/users/u/tags",
            {"tags": []},
            'Setting tags for user "u" to [] ...\n',
        ),
        (
            "set_permissions u a.* w r",
            "PUT",
            PAIR,
            {"configure": "a.*", "write": "w", "read": "r"},
            'Setting permissions for user "u" in vhost "/" ...\n',
        ),
        ("clear_permissions u", "DELETE", PAIR, None, 'Clearing permissions for user "u" in vhost "/" ...\n'),
        (
            "set_topic_permissions u amq.topic ^a b",
            "PUT",
            TOPIC,
            {"exchange": "amq.topic", "write": "^a", "read": "b"},
            'Setting topic permissions on "amq.topic" for user "u" in vhost "/" ...\n',
        ),
        (
            "clear_topic_permissions u",
            "DELETE",
            TOPIC,
            None,
            'Clearing topic permissions for user "u" in vhost "/" ...\n',
        ),
        (
            "clear_topic_permissions u amq.topic",
            "DELETE",
            f"{TOPIC}/amq.topic",
            None,
            'Clearing topic permissions on "amq.topic" for user "u" in vhost "/" ...\n',
        ),
    ],
)
def test_change_sends_request_and_prints_text(
    broker: FakeBroker, ctl: Ctl, line: str, method: str, path: str, body: object, out: str
) -> None:
    broker.answers[method, path] = (204, None)
    assert ctl(*line.split()) == (0, out, "")
    assert [(request.method, request.path, request.body) for request in broker.requests] == [(method, path, body)]
    assert ctl(*line.split(), "--formatter", "json").out == '{"node":"n@h","result":"ok"}\n'


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("delete_user u", 67),
        ("change_password u n", 67),
        ("set_user_tags u t", 67),
        ("clear_password u", 69),
        ("list_user_permissions u", 69),
        ("set_permissions u . . .", 67),
        ("clear_permissions u", 67),
        ("set_topic_permissions u e . .", 67),
        ("clear_topic_permissions u", 67),
    ],
)
def test_missing_user_sets_exit_code(broker: FakeBroker, ctl: Ctl, line: str, code: int) -> None:
    for method in ("GET", "PUT", "DELETE"):
        for path in ("users/u", "amqpd/users/u/password", "amqpd/users/u/tags", "users/u/permissions"):
            broker.answers[method, f"/api/{path}"] = NO_USER
        broker.answers[method, PAIR] = broker.answers[method, TOPIC] = NO_USER
    result = ctl(*line.split(), "-q")
    assert result.code == code
    assert result.err in {'Error:\nUser "u" does not exist\n', "Error:\nUser u does not exist\n"}


@pytest.mark.parametrize(
    ("line", "code", "err"),
    [
        ("set_permissions u . . .", 69, "Error:\nVirtual host v does not exist\n"),
        ("clear_permissions u", 69, "Error:\nVirtual host v does not exist\n"),
        ("set_topic_permissions u e . .", 69, "Error:\nVirtual host v does not exist\n"),
        ("clear_topic_permissions u", 69, "Error:\nVirtual host v does not exist\n"),
        ("list_permissions", 65, "Virtual host 'v' does not exist\n"),
        ("list_topic_permissions", 65, "Virtual host 'v' does not exist\n"),
    ],
)
def test_missing_vhost_sets_exit_code(broker: FakeBroker, ctl: Ctl, line: str, code: int, err: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        for path in ("permissions/v/u", "topic-permissions/v/u", "vhosts/v/permissions", "vhosts/v/topic-permissions"):
            broker.answers[method, f"/api/{path}"] = NO_VHOST
    assert ctl("-q", "-p", "v", *line.split()) == (code, "", err)


def test_clearing_missing_permission_succeeds(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["DELETE", PAIR] = broker.answers["DELETE", TOPIC] = (404, {"reason": "no permission"})
    broker.answers["GET", "/api/users/u"] = (200, {"name": "u"})
    broker.answers["GET", "/api/vhosts/%2F"] = (200, {"name": "/"})
    assert ctl("clear_permissions", "u").code == 0
    assert ctl("clear_topic_permissions", "u").code == 0
    del broker.answers["GET", "/api/vhosts/%2F"]
    assert ctl("clear_permissions", "u", "-q") == (69, "", "Error:\nVirtual host / does not exist\n")
    del broker.answers["GET", "/api/users/u"]
    assert ctl("clear_topic_permissions", "u", "-q") == (67, "", "Error:\nUser u does not exist\n")


def test_bad_pattern_is_an_error(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", PAIR] = (400, {"error": "bad_request", "reason": "invalid regexp: missing )"})
    assert ctl("-q", "set_permissions", "u", "(", "", "") == (69, "", "Error:\ninvalid regexp: missing )\n")


def test_authenticate_user_reports_result(broker: FakeBroker, ctl: Ctl) -> None:
    path = ("POST", "/api/amqpd/authenticate_user")
    broker.answers[path] = (200, {"authenticated": True, "user": "u"})
    assert ctl("authenticate_user", "u", "p") == (0, 'Authenticating user "u" ...\nSuccess\n', "")
    assert ctl("authenticate_user", "u", "p", "--formatter", "json").out == '{"message":"Success"}\n'
    broker.answers[path] = (200, {"authenticated": False, "user": "u", "reason": "user 'u' - invalid credentials"})
    assert ctl("authenticate_user", "u", "p", "-q") == (
        65,
        "",
        "Error:\nError: failed to authenticate user \"u\"\nuser 'u' - invalid credentials\n",
    )


def test_list_users_and_permissions(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/users"] = (200, [{"name": "guest", "tags": ["administrator"]}])
    assert ctl("list_users").out == "Listing users ...\nuser\ttags\nguest\t[administrator]\n"
    row = {"user": "guest", "vhost": "/", "configure": ".*", "write": "", "read": ".*", "exchange": "amq.topic"}
    for path in ("vhosts/%2F/permissions", "vhosts/%2F/topic-permissions", "users/guest/permissions"):
        broker.answers["GET", f"/api/{path}"] = (200, [row])
    assert ctl("list_permissions").out == (
        'Listing permissions for vhost "/" ...\nuser\tconfigure\twrite\tread\nguest\t.*\t\t.*\n'
    )
    assert ctl("list_topic_permissions").out == (
        'Listing topic permissions for vhost "/" ...\nuser\texchange\twrite\tread\nguest\tamq.topic\t\t.*\n'
    )
    assert ctl("list_user_permissions", "guest").out == (
        'Listing permissions for user "guest" ...\nvhost\tconfigure\twrite\tread\n/\t.*\t\t.*\n'
    )


def test_add_and_delete_vhost(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/vhosts/shop"] = (201, None)
    assert ctl("add_vhost", "shop") == (0, 'Adding vhost "shop" ...\n', "")
    assert ctl("add_vhost", "shop", "--description", "a b", "--tags", "x,y", "--default-queue-type", "quorum").code == 0
    assert [request.body for request in broker.requests] == [
        {},
        {"description": "a b", "tags": "x,y", "default_queue_type": "quorum"},
    ]
    broker.answers["DELETE", "/api/vhosts/shop"] = (204, None)
    assert ctl("delete_vhost", "shop") == (0, 'Deleting vhost "shop" ...\n', "")
    assert ctl("delete_vhost", "nope", "-q") == (65, "", "Virtual host 'nope' does not exist\n")
