"""Limits: requests, output, and the texts and exit codes of rabbitmqctl 3.10.8."""

from __future__ import annotations

import pytest
from fake_broker import Ctl, FakeBroker

PARAMETER = "/api/parameters/vhost-limits/shop/limits"
NO_VHOST = (404, {"error": "Object Not Found", "reason": "vhost 'shop' does not exist"})
NO_USER = (404, {"error": "Object Not Found", "reason": "user 'u/1' does not exist"})


def test_set_vhost_limits_sends_and_prints_limits(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", PARAMETER] = (204, None)
    text = '{"max-connections": 1, "max-queues": -1}'
    output = f'Setting vhost limits to "{text}" for vhost "shop" ...\n'
    assert ctl("set_vhost_limits", "-p", "shop", text) == (0, output, "")
    assert broker.requests[0].body == {"value": {"max-connections": 1, "max-queues": -1}}
    refused = ctl("set_vhost_limits", "-p", "shop", "not json")
    assert (refused.code, len(broker.requests)) == (69, 1)
    assert "JSON decoding error" in refused.err
    broker.answers["PUT", PARAMETER] = (400, {"error": "bad_request", "reason": "Validation failed\n\nwrong\n"})
    assert ctl("-q", "set_vhost_limits", "-p", "shop", "{}") == (69, "", "Error:\nValidation failed\n\nwrong\n\n")
    broker.answers["PUT", PARAMETER] = NO_VHOST
    assert ctl("-q", "set_vhost_limits", "-p", "shop", "{}") == (65, "", "Virtual host 'shop' does not exist\n")
    assert ctl("set_vhost_limits").code == 64


def test_clear_vhost_limits_deletes_the_parameter(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["DELETE", PARAMETER] = (204, None)
    assert ctl("clear_vhost_limits", "-p", "shop") == (0, 'Clearing vhost "shop" limits ...\n', "")
    broker.answers["DELETE", PARAMETER] = NO_VHOST
    assert ctl("-q", "clear_vhost_limits", "-p", "shop") == (69, "", "Error:\nParameter does not exist\n")


def test_list_vhost_limits_prints_one_or_all_vhosts(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/vhost-limits/shop"] = (200, [])
    assert ctl("list_vhost_limits", "-p", "shop") == (0, 'Listing limits for vhost "shop" ...\n\n', "")
    item = {"vhost": "shop", "value": {"max-connections": 1, "max-queues": 2}}
    broker.answers["GET", "/api/vhost-limits/shop"] = broker.answers["GET", "/api/vhost-limits"] = (200, [item])
    limits = '{"max-connections":1,"max-queues":2}'
    assert ctl("-q", "list_vhost_limits", "-p", "shop") == (0, f"{limits}\n", "")
    escaped = limits.replace('"', '\\"')
    shown = ctl("list_vhost_limits", "-p", "shop", "--formatter", "json").out
    assert shown == f'{{"node":"n@h","result":"ok","value":"{escaped}"}}\n'
    output = "Listing limits for all vhosts ...\n"
    assert ctl("list_vhost_limits", "--global") == (0, f"{output}vhost\tlimits\nshop\t{limits}\n", "")
    assert ctl("list_vhost_limits", "--global", "-p", "shop").code == 64
    broker.answers["GET", "/api/vhost-limits/shop"] = NO_VHOST
    assert ctl("-q", "list_vhost_limits", "-p", "shop") == (65, "", "Virtual host 'shop' does not exist\n")


def test_set_user_limits_sends_and_prints_limits(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/amqpd/user-limits/u%2F1"] = (204, None)
    output = 'Setting user limits to "{"max-channels": 5}" for user "u/1" ...\n'
    assert ctl("set_user_limits", "u/1", '{"max-channels": 5}') == (0, output, "")
    assert broker.requests[0].body == {"value": {"max-channels": 5}}
    broker.answers["PUT", "/api/amqpd/user-limits/u%2F1"] = NO_USER
    assert ctl("-q", "set_user_limits", "u/1", "{}") == (69, "", 'Error:\nUser "u/1" does not exist\n')


@pytest.mark.parametrize(
    ("name", "path", "output"),
    [
        ("max-channels", "/api/user-limits/u%2F1/max-channels", 'Clearing "max-channels" limit for user "u/1" ...\n'),
        ("all", "/api/amqpd/user-limits/u%2F1", 'Clearing all limits for user "u/1" ...\n'),
    ],
)
def test_clear_user_limits_clears_one_or_all(broker: FakeBroker, ctl: Ctl, name: str, path: str, output: str) -> None:
    broker.answers["DELETE", path] = (204, None)
    assert ctl("clear_user_limits", "u/1", name) == (0, output, "")
    broker.answers["DELETE", path] = NO_USER
    assert ctl("-q", "clear_user_limits", "u/1", name).code == 69
    assert ctl("clear_user_limits", "u/1").code == 64


def test_list_user_limits_prints_one_or_all_users(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", "/api/user-limits/guest"] = (200, [])
    assert ctl("list_user_limits") == (0, 'Listing limits for user "guest" ...\n{}\n', "")
    item = {"user": "alice", "value": {"max-channels": 5}}
    broker.answers["GET", "/api/user-limits/alice"] = broker.answers["GET", "/api/user-limits"] = (200, [item])
    assert ctl("-q", "list_user_limits", "--user", "alice") == (0, '{"max-channels":5}\n', "")
    shown = ctl("list_user_limits", "--user", "alice", "--formatter", "json").out
    assert shown == '{"message":"{\\"max-channels\\":5}"}\n'
    output = "Listing limits for all users ...\nuser\tlimits\n"
    assert ctl("list_user_limits", "--global") == (0, output + 'alice\t{"max-channels":5}\n', "")
    broker.answers["GET", "/api/user-limits/alice"] = NO_USER
    assert ctl("-q", "list_user_limits", "--user", "alice").code == 69
