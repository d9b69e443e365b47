"""Manual alarms, alarm limits, and `eval`: requests, and the texts and exit codes of rabbitmqctl 3.10.8."""

from __future__ import annotations

import json

import pytest
from fake_broker import Ctl, FakeBroker

DISK, MEMORY = "/api/amqpd/disk_free_limit", "/api/amqpd/memory_high_watermark"


@pytest.mark.parametrize(
    ("given", "body", "output"),
    [
        (("set_disk_free_limit", "100MB"), {"bytes": 100_000_000}, "disk free limit on n@h to 100MB bytes"),
        (("set_disk_free_limit", "5000"), {"bytes": 5000}, "disk free limit on n@h to 5000 bytes"),
        (("set_disk_free_limit", "1GiB"), {"bytes": 1 << 30}, "disk free limit on n@h to 1GiB bytes"),
        (("set_disk_free_limit", "2Ti"), {"bytes": 1 << 41}, "disk free limit on n@h to 2Ti bytes"),
        (("set_disk_free_limit", "2k"), {"bytes": 2048}, "disk free limit on n@h to 2k bytes"),
        (("set_disk_free_limit", "2kb"), {"bytes": 2000}, "disk free limit on n@h to 2kb bytes"),
        (
            ("set_disk_free_limit", "mem_relative", "1.5"),
            {"mem_relative": 1.5},
            "disk free limit on n@h to 1.5 times the total RAM",
        ),
        (("set_vm_memory_high_watermark", "0.000000001"), {"share": 1e-9}, "memory threshold on n@h to 0.000000001"),
        (("set_vm_memory_high_watermark", "1"), {"share": 1.0}, "memory threshold on n@h to 1"),
        (
            ("set_vm_memory_high_watermark", "absolute", "2GB"),
            {"bytes": 2_000_000_000},
            "memory threshold on n@h to 2GB bytes",
        ),
    ],
)
def test_set_limit_sends_bytes_or_share(
    broker: FakeBroker, ctl: Ctl, given: tuple[str, ...], body: dict[str, object], output: str
) -> None:
    path = DISK if given[0] == "set_disk_free_limit" else MEMORY
    broker.answers["PUT", path] = (200, {"limit_bytes": 1})
    assert ctl(*given) == (0, f"Setting {output} ...\n", "")
    assert broker.requests[0].body == body


def test_accept_clock_accepts_a_jump_if_there_is_one(broker: FakeBroker, ctl: Ctl) -> None:
    jump = {"state": "held", "jump_s": 86400.0, "held_for_s": 3000}
    broker.answers["GET", "/api/amqpd/clock"] = (200, jump)
    broker.answers["PUT", "/api/amqpd/clock"] = (200, {"state": "steady", "jump_s": 0.0, "held_for_s": 0})
    assert ctl("accept_clock") == (0, "Accepting the wall clock of n@h ...\n", "")
    assert [each.method for each in broker.requests] == ["GET", "PUT"]
    broker.answers["GET", "/api/amqpd/clock"] = (200, {"state": "steady", "jump_s": 0.0, "held_for_s": 0})
    code, _, output = ctl("accept_clock")
    assert (code, output) == (0, "There is no jump of the clock to accept\n")


@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        (("set_disk_free_limit", "1.5GB"), 65, "Bad argument."),
        (("set_disk_free_limit", "5XB"), 65, "Bad argument."),
        (("set_disk_free_limit", "mem_relative", "x"), 65, "Bad argument."),
        (("set_disk_free_limit", "mem_relative", "nan"), 65, "Bad argument."),
        (("set_disk_free_limit", "mem_relative"), 64, "not enough arguments."),
        (("set_disk_free_limit", "50MB", "x"), 64, "too many arguments."),
        (("set_disk_free_limit",), 64, "not enough arguments."),
        (("set_vm_memory_high_watermark", "x"), 65, "Bad argument."),
        (
            ("set_vm_memory_high_watermark", "1.5"),
            65,
            "Bad argument: The threshold should be a fraction between 0.0 and 1.0",
        ),
        (("set_vm_memory_high_watermark", "absolute", "0"), 65, "Bad argument."),
        (("set_vm_memory_high_watermark", "absolute"), 64, "not enough arguments."),
        (("set_vm_memory_high_watermark", "0.4", "0.5"), 64, "too many arguments."),
        (("set_alarm", "cpu"), 65, "Bad argument: there is no alarm 'cpu', it is memory or disk"),
    ],
)
def test_bad_limit_or_alarm_sends_nothing(
    broker: FakeBroker, ctl: Ctl, given: tuple[str, ...], code: int, text: str
) -> None:
    found = ctl(*given)
    assert found.code == code
    assert found.err.startswith(f"Error (argument validation): {text}\n")
    assert broker.requests == []


def test_alarm_is_set_and_cleared(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/amqpd/alarms/disk"] = broker.answers["DELETE", "/api/amqpd/alarms/disk"] = (204, None)
    assert ctl("set_alarm", "disk") == (0, "Setting alarm 'disk' on n@h ...\n", "")
    assert ctl("clear_alarm", "disk") == (0, "Clearing alarm 'disk' on n@h ...\n", "")
    assert [(request.method, request.path) for request in broker.requests] == [
        ("PUT", "/api/amqpd/alarms/disk"),
        ("DELETE", "/api/amqpd/alarms/disk"),
    ]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_eval_sets_and_clears_alarm(broker: FakeBroker, ctl: Ctl, kind: str) -> None:
    for method, text in (
        ("PUT", f"rabbit_alarm:set_alarm({{{{resource_limit, {kind}, node()}}, []}})."),
        ("DELETE", f"rabbit_alarm:clear_alarm({{resource_limit, {kind}, node()}})."),
    ):
        broker.answers[method, f"/api/amqpd/alarms/{kind}"] = (204, None)
        assert ctl("eval", text) == (0, "ok\n", "")
        assert broker.requests[-1].method == method


def test_eval_reads_and_sets_environment(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/amqpd/channel_max"] = (204, None)
    assert ctl("eval", "application:set_env(rabbit, channel_max, 7).") == (0, "ok\n", "")
    assert broker.requests[-1].body == {"value": 7}
    users = "/api/amqpd/loopback_users"
    broker.answers["PUT", users] = (204, None)
    for text, value in (
        ("[]", []),
        ('[<<"guest">>]', ["guest"]),
        ('[<<"guest">>,<<"b">>]', ["guest", "b"]),
    ):
        assert ctl("eval", f"application:set_env(rabbit, loopback_users, {text}).") == (0, "ok\n", "")
        assert broker.requests[-1].body == {"value": value}
        broker.answers["GET", users] = (200, {"value": value})
        assert ctl("eval", "{ok, V} = application:get_env(rabbit, loopback_users), V.").out == f"{text}\n"
    assert ctl("eval", stdin="application:set_env(rabbit, channel_max, 8).\n") == (0, "ok\n", "")
    assert broker.requests[-1].body == {"value": 8}
    shown = ctl("eval", "{ok, V} = application:get_env(rabbit, loopback_users), V.", "--formatter", "json").out
    assert shown == '{"node":"n@h","result":"ok","value":["guest","b"]}\n'


@pytest.mark.parametrize(
    ("authenticated", "term", "value"),
    [
        (
            True,
            '{ok,{user,<<"a">>,[management,monitoring],[{rabbit_auth_backend_internal,none}]}}',
            ["ok", ["user", "a", ["management", "monitoring"], [["rabbit_auth_backend_internal", "none"]]]],
        ),
        (
            False,
            """{refused,<<"a">>,"user '~s' - invalid credentials",[<<"a">>]}""",
            ["refused", "a", [*b"user '~s' - invalid credentials"], ["a"]],
        ),
    ],
)
def test_eval_checks_password(broker: FakeBroker, ctl: Ctl, authenticated: bool, term: str, value: object) -> None:
    """Puppet looks for "refused" in the answer."""
    broker.answers["POST", "/api/amqpd/authenticate_user"] = (200, {"authenticated": authenticated, "user": "a"})
    broker.answers["GET", "/api/users/a"] = (200, {"name": "a", "tags": ["management", "monitoring"]})
    text = 'rabbit_access_control:check_user_pass_login(list_to_binary("a"), list_to_binary("p w")).'
    assert ctl("eval", text) == (0, f"{term}\n", "")
    assert broker.requests[0].body == {"username": "a", "password": "p w"}
    assert json.loads(ctl("eval", text, "--formatter", "json").out)["value"] == value


@pytest.mark.parametrize(
    "text",
    [
        "1 + 1.",
        "os:cmd('id').",
        "application:set_env(rabbit,channel_max,5).",
        "application:set_env(rabbit, channel_max, 5)",
        "application:set_env(rabbit, channel_max, 5). 1.",
        "application:set_env(rabbit, channel_max, -5).",
        "rabbit_alarm:set_alarm({{resource_limit, cpu, node()}, []}).",
        " {ok, V} = application:get_env(rabbit, loopback_users), V.",
        'application:set_env(rabbit, loopback_users, [<<"a\\"b">>]).',
        'rabbit_access_control:check_user_pass_login(list_to_binary("a"), list_to_binary("p\\"")).',
    ],
)
def test_eval_refuses_other_expressions(broker: FakeBroker, ctl: Ctl, text: str) -> None:
    found = ctl("eval", text)
    assert (found.code, found.out, broker.requests) == (69, "", [])
    assert "evaluates no Erlang" in found.err


def test_eval_without_expression_is_an_error(ctl: Ctl) -> None:
    assert ctl("eval", "").code == ctl("eval", " ").code == 64
    assert ctl("eval") == (65, "", "Error:\nExpression to evaluate is not provided via argument or stdin\n")
