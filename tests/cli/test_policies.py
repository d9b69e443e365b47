"""Policies and parameters: requests, output, and the texts and exit codes of rabbitmqctl 3.10.8."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from fake_broker import Ctl, FakeBroker

POLICY = {
    "vhost": "/",
    "name": "p",
    "pattern": "^q",
    "apply-to": "queues",
    "definition": {"max-length": 6, "overflow": "é"},
    "priority": 3,
}
NO_VHOST = (404, {"error": "Object Not Found", "reason": "vhost 'nope' does not exist"})
INVALID = (400, {"error": "bad_request", "reason": "Validation failed\n\n-5 is not a valid maximum length\n"})


class Kind(NamedTuple):
    """A kind of policy: its commands, its API path, and its words in the texts."""

    command: str
    listing: str
    path: str
    setting: str
    clearing: str
    words: str


KINDS = [
    Kind("policy", "list_policies", "policies", "policy", "policy", "policies"),
    Kind(
        "operator_policy",
        "list_operator_policies",
        "operator-policies",
        "operator policy override",
        "operator policy",
        "operator policy overrides",
    ),
]


@pytest.mark.parametrize("kind", KINDS)
class TestSet:
    def test_set_sends_and_prints_policy(self, broker: FakeBroker, ctl: Ctl, kind: Kind) -> None:
        broker.answers["PUT", f"/api/{kind.path}/%2F/c%2F1"] = (201, None)
        arguments = ("--priority", "7", "--apply-to", "queues", "c/1", "^c", '{"max-length":5}')
        definition = '{"max-length":5}'
        output = (
            f'Setting {kind.setting} "c/1" for pattern "^c" to "{definition}" with priority "7" for vhost "/" ...\n'
        )
        assert ctl(f"set_{kind.command}", *arguments) == (0, output, "")
        body = {"pattern": "^c", "definition": {"max-length": 5}, "priority": 7, "apply-to": "queues"}
        assert broker.requests[0].body == body
        assert ctl("-q", f"set_{kind.command}", "--priority", "-2", "c/1", "^c", '{"max-length":5}') == (0, "", "")
        assert broker.requests[1].body == {**body, "priority": -2, "apply-to": "all"}

    def test_set_refusals_and_bad_arguments(self, broker: FakeBroker, ctl: Ctl, kind: Kind) -> None:
        broker.answers["PUT", f"/api/{kind.path}/%2F/c"] = INVALID
        broker.answers["PUT", f"/api/{kind.path}/nope/c"] = NO_VHOST
        refused = ctl("-q", f"set_{kind.command}", "c", "^c", '{"max-length":-5}')
        assert refused == (69, "", "Error:\nValidation failed\n\n-5 is not a valid maximum length\n\n")
        missing = ctl("-q", "-p", "nope", f"set_{kind.command}", "c", "^c", '{"max-length":5}')
        assert missing == (65, "", "Virtual host 'nope' does not exist\n")
        request_count = len(broker.requests)
        assert ctl("-q", f"set_{kind.command}", "c", "^c", "junk").code == 69
        assert "JSON decoding error. Reason: " in ctl("-q", f"set_{kind.command}", "c", "^c", "junk").err
        assert "--priority : x" in ctl(f"set_{kind.command}", "--priority", "x", "c", "^c", "{}").err
        assert ctl(f"set_{kind.command}", "--priority", "x", "c", "^c", "{}").code == 64
        assert ctl(f"set_{kind.command}", "c").code == ctl(f"set_{kind.command}", "a", "b", "c", "d").code == 64
        assert ctl(f"set_{kind.command}", "", "^c", "{}").code == 65
        assert len(broker.requests) == request_count


@pytest.mark.parametrize("kind", KINDS)
def test_clear_policy(broker: FakeBroker, ctl: Ctl, kind: Kind) -> None:
    broker.answers["DELETE", f"/api/{kind.path}/%2F/c"] = (204, None)
    assert ctl(f"clear_{kind.command}", "c") == (0, f'Clearing {kind.clearing} "c" on vhost "/" ...\n', "")
    assert ctl("-q", f"clear_{kind.command}", "none") == (69, "", "Error:\nParameter does not exist\n")
    assert ctl(f"clear_{kind.command}").code == 64


@pytest.mark.parametrize("kind", KINDS)
def test_list_policies(broker: FakeBroker, ctl: Ctl, kind: Kind) -> None:
    broker.answers["GET", f"/api/{kind.path}/%2F"] = (200, [POLICY])
    broker.answers["GET", f"/api/{kind.path}/nope"] = NO_VHOST
    row = '/\tp\t^q\tqueues\t{"max-length":6,"overflow":"é"}\t3\n'
    header = "vhost\tname\tpattern\tapply-to\tdefinition\tpriority\n"
    assert ctl(kind.listing) == (0, f'Listing {kind.words} for vhost "/" ...\n{header}{row}', "")
    assert ctl("-q", kind.listing).out == header + row
    assert ctl("-s", kind.listing).out == row
    assert ctl(kind.listing, "--formatter", "json").out == (
        '[\n{"vhost":"/","name":"p","pattern":"^q","apply-to":"queues",'
        '"definition":"{\\"max-length\\":6,\\"overflow\\":\\"é\\"}","priority":3}\n]\n'
    )
    assert ctl("-q", kind.listing, "-p", "nope") == (65, "", "Virtual host 'nope' does not exist\n")


def test_set_clear_and_list_parameters(broker: FakeBroker, ctl: Ctl) -> None:
    path = "/api/parameters/operator_policy/%2F/x"
    broker.answers["PUT", path] = (201, None)
    broker.answers["DELETE", path] = (204, None)
    broker.answers["PUT", "/api/parameters/nope/%2F/x"] = (
        400,
        {"error": "bad_request", "reason": "Validation failed\n\ncomponent nope not found\n"},
    )
    output = 'Setting runtime parameter "x" for component "operator_policy" to "{"a":1}" in vhost "/" ...\n'
    assert ctl("set_parameter", "operator_policy", "x", '{"a":1}') == (0, output, "")
    assert broker.requests[0].body == {"value": {"a": 1}}
    refused = ctl("-q", "set_parameter", "nope", "x", "1")
    assert refused == (69, "", "Error:\nValidation failed\n\ncomponent nope not found\n\n")
    output = 'Clearing runtime parameter "x" for component "operator_policy" on vhost "/" ...\n'
    assert ctl("clear_parameter", "operator_policy", "x") == (0, output, "")
    assert ctl("-q", "clear_parameter", "nope", "x") == (69, "", "Error:\nParameter does not exist\n")
    refused = ctl("-q", "clear_parameter", "policy", "x")
    assert refused == (69, "", "Error:\npolicies may not be cleared using this method\n")
    broker.answers["GET", "/api/policies/%2F"] = (200, [])
    other = {"component": "operator_policy", "name": "y", "vhost": "other", "value": 1}
    mine = {"component": "operator_policy", "name": "x", "vhost": "/", "value": {"a": [1]}}
    broker.answers["GET", "/api/parameters"] = (200, [other, mine])
    assert ctl("list_parameters").out == (
        'Listing runtime parameters for vhost "/" ...\ncomponent\tname\tvalue\noperator_policy\tx\t{"a":[1]}\n'
    )
    broker.answers["GET", "/api/policies/nope"] = NO_VHOST
    assert ctl("-q", "list_parameters", "-p", "nope") == (65, "", "Virtual host 'nope' does not exist\n")


def test_set_clear_and_list_global_parameters(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["PUT", "/api/global-parameters/g"] = (201, None)
    broker.answers["DELETE", "/api/global-parameters/g"] = (204, None)
    broker.answers["GET", "/api/global-parameters"] = (200, [{"name": "g", "value": {"a": None}}])
    output = 'Setting global runtime parameter "g" to "{"a":1}" ...\n'
    assert ctl("set_global_parameter", "g", '{"a":1}') == (0, output, "")
    assert broker.requests[0].body == {"value": {"a": 1}}
    assert ctl("clear_global_parameter", "g") == (0, 'Clearing global runtime parameter "g" ...\n', "")
    assert ctl("-q", "clear_global_parameter", "none") == (69, "", "Error:\nParameter does not exist\n")
    assert ctl("list_global_parameters").out == ('Listing global runtime parameters ...\nname\tvalue\ng\t{"a":null}\n')
    assert ctl("list_global_parameters", "--formatter", "json").out == ('[\n{"name":"g","value":"{\\"a\\":null}"}\n]\n')
