"""Policies and parameters over HTTP: the measured answers of RabbitMQ 3.10.8, and permissions."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing

import pika
import pytest

from amqpd.testing import BrokerProcess

GOOD = {"pattern": "^q", "definition": {"max-length": 5}}


def reason(answer) -> str:
    assert answer.status == 400, answer
    assert answer.json["error"] == "bad_request"
    return answer.json["reason"]


@pytest.mark.parametrize("kind", ["policies", "operator-policies"])
class TestRoutes:
    def test_policy_is_created_changed_and_deleted(self, api, amqpd_vhost, v, kind):
        path = f"/api/{kind}/{v}/p"
        assert api("PUT", path, GOOD).status == 201
        shown = {
            "vhost": amqpd_vhost.name,
            "name": "p",
            "pattern": "^q",
            "apply-to": "all",
            "definition": {"max-length": 5},
            "priority": 0,
        }
        assert api.get(path) == shown
        assert list(api.get(path)) == list(shown)
        changed = {"pattern": "^q", "definition": {"max-length": 6}, "priority": 3, "apply-to": "queues"}
        assert api("PUT", path, changed).status == 204
        shown |= changed
        assert api.get(f"/api/{kind}/{v}") == [shown]
        assert shown in api.get(f"/api/{kind}")
        assert api("DELETE", path).status == 204
        assert api("DELETE", path).status == api("GET", path).status == 404
        assert api.get(f"/api/{kind}/{v}") == []

    def test_list_is_sorted_by_priority_then_name(self, api, v, kind):
        for name, priority in (("b", 1), ("c", 0), ("a", 1), ("d", -7)):
            api.send_ok("PUT", f"/api/{kind}/{v}/{name}", {**GOOD, "priority": priority})
        assert [each["name"] for each in api.get(f"/api/{kind}/{v}")] == ["d", "c", "a", "b"]

    def test_missing_vhost_is_not_found(self, api, kind):
        for method, path, body in (
            ("GET", f"/api/{kind}/no such".replace(" ", "%20"), None),
            ("GET", f"/api/{kind}/none/p", None),
            ("PUT", f"/api/{kind}/none/p", GOOD),
            ("DELETE", f"/api/{kind}/none/p", None),
        ):
            assert api(method, path, body).status == 404

    def test_name_vhost_and_component_in_body_are_ignored(self, api, v, kind):
        body = {**GOOD, "name": "other", "vhost": "x", "component": "y"}
        assert api("PUT", f"/api/{kind}/{v}/p", body).status == 201
        assert api.get(f"/api/{kind}/{v}")[0]["name"] == "p"

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            ({"pattern": "^q"}, "[{key_missing,definition}]"),
            ({"definition": {"max-length": 1}}, "[{key_missing,pattern}]"),
            ({}, "[{key_missing,pattern},{key_missing,definition}]"),
        ],
    )
    def test_missing_keys_are_refused(self, api, v, kind, body, text):
        assert reason(api("PUT", f"/api/{kind}/{v}/p", body)) == text


DEFINITIONS = [
    ({}, "no policy provided"),
    ([], "no policy provided"),
    ("x", 'definition must be a dictionary: <<"x">>'),
    (None, "definition must be a dictionary: null"),
    ({"nonsense": 1}, '[{<<"nonsense">>,1}] are not recognised policy settings'),
    (
        {"zz": "s", "nonsense": 1, "max-length": 1},
        '[{<<"nonsense">>,1},{<<"zz">>,<<"s">>}] are not recognised policy settings',
    ),
    ({"max-length": -1}, "-1 is not a valid maximum length"),
    ({"max-length": "a"}, '<<"a">> is not a valid maximum length'),
    ({"max-length": 1.5}, "1.5 is not a valid maximum length"),
    ({"max-length": True}, "true is not a valid maximum length"),
    ({"max-length": None}, "null is not a valid maximum length"),
    ({"max-length": [1, 2]}, "[1,2] is not a valid maximum length"),
    ({"max-length": {"a": 1}}, '#{<<"a">> => 1} is not a valid maximum length'),
    ({"max-length-bytes": -1}, "-1 is not a valid maximum length in bytes"),
    ({"expires": 0}, "0 is not a valid queue expiry"),
    ({"dead-letter-exchange": 5}, "5 is not a valid dead letter exchange name"),
    ({"dead-letter-routing-key": 5}, "5 is not a valid dead letter routing key"),
    ({"dead-letter-routing-key": "k" * 256}, f'<<"{"k" * 256}">> is not a valid dead letter routing key'),
    ({"dead-letter-strategy": "x"}, '<<"x">> is not a valid dead letter strategy'),
    ({"alternate-exchange": 5}, "5 is not a valid alternate exchange name"),
    ({"delivery-limit": "1"}, '<<"1">> is not a valid delivery limit'),
    ({"delivery-limit": 1.5}, "1.5 is not a valid delivery limit"),
    ({"target-group-size": 0}, "0 is not a valid qq target count value"),
    ({"consumer-disconnected-timeout": -1}, "-1 is not a valid consumer disconnected timeout"),
    ({"queue-mode": "x"}, '<<"x">> is not a valid queue-mode value'),
    ({"queue-version": 3}, "3 is not a valid queue-version value"),
    ({"queue-version": 2.0}, "2.0 is not a valid queue-version value"),
    ({"max-in-memory-bytes": -1}, "-1 is not a valid maximum memory in bytes"),
    ({"queue-leader-locator": "x"}, '<<"x">> is not a valid queue leader locator value'),
    ({"queue-master-locator": "x"}, '<<"x">> invalid queue-master-locator value'),
    ({"ha-mode": "bad"}, '<<"bad">> is not a valid ha-mode value'),
    ({"ha-params": 1}, "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"),
    ({"overflow": "x", "message-ttl": "é"}, '<<"é">> is not a valid message TTL'),
    ({"overflow": "x", "zz": 1}, '<<"x">> is not a valid overflow value'),
]


class TestRefusals:
    @pytest.mark.parametrize(("definition", "text"), DEFINITIONS)
    def test_invalid_definition_is_refused_with_rabbitmq_reason(self, api, v, definition, text):
        answer = api("PUT", f"/api/policies/{v}/x", {"pattern": "^q", "definition": definition})
        assert reason(answer) == f"Validation failed\n\n{text}\n"

    @pytest.mark.parametrize(
        ("field", "value", "text"),
        [
            ("pattern", 5, "pattern should be a binary but was 5"),
            ("pattern", None, "pattern should be a binary but was null"),
            ("pattern", "(", "pattern should be regular expression but is invalid: "),
            ("pattern", r"a(?=b)", "pattern should be regular expression but is invalid: "),
            ("pattern", "a\0b", "pattern should be regular expression but is invalid: "),
            ("priority", "x", 'priority should be a number, actually was <<"x">>'),
            ("priority", None, "priority should be a number, actually was null"),
            ("priority", True, "priority should be a number, actually was true"),
            ("priority", 1.5, "priority should be a whole number of at most 2147483647, actually was 1.5"),
            ("priority", 2**40, "priority should be a whole number of at most 2147483647, actually was 1099511627776"),
            ("apply-to", "bad", "apply-to 'bad' unrecognised; should be 'queues', "),
            ("apply-to", 5, "apply-to '5' unrecognised; should be 'queues', "),
            ("apply-to", [], "apply-to '[]' unrecognised; should be 'queues', "),
        ],
    )
    def test_invalid_field_is_refused_with_rabbitmq_reason(self, api, v, field, value, text):
        answer = api("PUT", f"/api/policies/{v}/x", {**GOOD, field: value})
        assert reason(answer).startswith(f"Validation failed\n\n{text}")

    def test_reason_lists_all_errors(self, api, v):
        body = {"pattern": 5, "definition": {"max-length": -1, "zz": 1}, "priority": "x", "apply-to": "bad"}
        lines = reason(api("PUT", f"/api/policies/{v}/x", body)).splitlines()
        assert lines[:3] == ["Validation failed", "", "-1 is not a valid maximum length"]
        assert lines[3].startswith("apply-to 'bad' unrecognised")
        assert lines[4:] == [
            "pattern should be a binary but was 5",
            'priority should be a number, actually was <<"x">>',
        ]

    @pytest.mark.parametrize("key", ["max-age", "dead-letter-exchange", "alternate-exchange", "queue-mode"])
    def test_operator_policy_refuses_keys_of_user_policies(self, api, v, key):
        body = {"pattern": "", "definition": {"max-length": 1, key: "all"}}
        reason_text = f'Validation failed\n\n[{{<<"{key}">>,<<"all">>}}] are not recognised policy settings\n'
        assert reason(api("PUT", f"/api/operator-policies/{v}/x", body)) == reason_text

    def test_refused_policies_are_not_stored(self, api, v):
        assert api.get(f"/api/policies/{v}") == api.get(f"/api/operator-policies/{v}") == []


class TestEffectivePolicy:
    def test_queues_and_exchanges_show_their_policies(self, api, v):
        api.send_ok("PUT", f"/api/queues/{v}/q1", {"durable": True})
        api.send_ok("PUT", f"/api/exchanges/{v}/x1", {"type": "direct"})
        api.send_ok("PUT", f"/api/policies/{v}/p", {"pattern": "1$", "definition": {"max-length": 6, "expires": 9000}})
        definition = {"max-length": 5, "message-ttl": 1000}
        api.send_ok("PUT", f"/api/operator-policies/{v}/o", {"pattern": "^q", "definition": definition})
        api.send_ok("PUT", f"/api/queues/{v}/q21", {"durable": True})
        for name in ("q1", "q21"):
            shown = api.get(f"/api/queues/{v}/{name}")
            assert (shown["policy"], shown["operator_policy"]) == ("p", "o")
            assert shown["effective_policy_definition"] == {"expires": 9000, "max-length": 5, "message-ttl": 1000}
        columns = "columns=name,policy,operator_policy,effective_policy_definition"
        assert api.get(f"/api/queues/{v}?{columns}")[0]["policy"] == "p"
        assert api.get(f"/api/exchanges/{v}/x1")["policy"] == "p"
        assert api.get(f"/api/exchanges/{v}/amq.topic")["policy"] is None
        api.send_ok("DELETE", f"/api/policies/{v}/p")
        shown = api.get(f"/api/queues/{v}/q1")
        assert (shown["policy"], shown["operator_policy"]) == (None, "o")
        assert shown["effective_policy_definition"] == definition


class TestParameters:
    def test_operator_policies_are_parameters(self, api, amqpd_vhost, v):
        api.send_ok("PUT", f"/api/operator-policies/{v}/o", GOOD)
        value = {**GOOD, "priority": 0, "apply-to": "all"}
        item = {"value": value, "vhost": amqpd_vhost.name, "component": "operator_policy", "name": "o"}
        path = f"/api/parameters/operator_policy/{v}"
        assert api.get(f"{path}/o") == item
        assert api.get(path) == [item]
        assert item in api.get("/api/parameters/operator_policy")
        assert item in api.get("/api/parameters")
        assert api("PUT", f"{path}/x", {"value": {**value, "definition": {"expires": 9}}}).status == 201
        assert api.get(f"/api/operator-policies/{v}/x")["definition"] == {"expires": 9}
        assert api("DELETE", f"{path}/x").status == 204
        assert api("DELETE", f"{path}/x").status == 404

    def test_policies_are_read_only_parameters_and_not_listed(self, api, amqpd_vhost, v):
        api.send_ok("PUT", f"/api/policies/{v}/p", GOOD)
        item = {
            "value": {**GOOD, "priority": 0, "apply-to": "all"},
            "vhost": amqpd_vhost.name,
            "component": "policy",
            "name": "p",
        }
        assert api.get(f"/api/parameters/policy/{v}/p") == item
        assert api.get(f"/api/parameters/policy/{v}") == [item]
        assert item not in api.get("/api/parameters")
        reason_text = reason(api("PUT", f"/api/parameters/policy/{v}/p", {"value": {}}))
        assert reason_text == "policies may not be set using this method"
        reason_text = reason(api("DELETE", f"/api/parameters/policy/{v}/p"))
        assert reason_text == "policies may not be cleared using this method"

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (5, "x not a list 5"),
            (
                {"a": 1},
                "\n".join(
                    ['Unrecognised terms [{<<"a">>,1}] in x']
                    + [f'Key "{key}" not found in x' for key in ("definition", "pattern", "priority")]
                ),
            ),
            ({"pattern": "", "definition": {"queue-mode": "x"}, "priority": 0}, None),
        ],
    )
    def test_invalid_operator_policy_parameter_is_refused(self, api, v, value, text):
        reason_text = reason(api("PUT", f"/api/parameters/operator_policy/{v}/x", {"value": value}))
        if text is None:
            assert "are not recognised policy settings" in reason_text
        else:
            assert reason_text == f"Validation failed\n\n{text}\n"

    def test_unknown_parameter_component_is_refused(self, api, v):
        assert api.get("/api/parameters/nope") == []
        assert api("GET", "/api/parameters/nope/none").status == 404
        assert api("GET", f"/api/parameters/nope/{v}/x").status == 404
        reason_text = reason(api("PUT", f"/api/parameters/nope/{v}/x", {"value": {"a": 1}}))
        assert reason_text == "Validation failed\n\ncomponent nope not found\n"
        assert api("PUT", "/api/parameters/nope/none/x", {"value": 1}).status == 404
        reason_text = reason(api("PUT", f"/api/parameters/operator_policy/{v}/x", {"valu": 1}))
        assert reason_text == "[{key_missing,value}]"


class TestGlobalParameters:
    def test_global_parameter_takes_any_name_and_json_value(self, api):
        path = "/api/global-parameters/g%2Fl%C3%B6b"
        try:
            assert api("PUT", path, {"value": {"a": [1, "é", None, 1.5]}}).status == 201
            assert api.get(path) == {"name": "g/löb", "value": {"a": [1, "é", None, 1.5]}}
            assert api("PUT", path, {"value": 5}).status == 204
            assert {"name": "g/löb", "value": 5} in api.get("/api/global-parameters")
        finally:
            assert api("DELETE", path).status == 204
        assert api("DELETE", path).status == api("GET", path).status == 404
        assert reason(api("PUT", path, {})) == "[{key_missing,value}]"

    def test_cluster_name_is_a_global_parameter(self, api):
        node = api.get("/api/overview")["node"]
        try:
            api.send_ok("PUT", "/api/global-parameters/cluster_name", {"value": "the shop"})
            assert api.get("/api/cluster-name") == {"name": "the shop"}
            shown = api.get("/api/overview")
            assert (shown["cluster_name"], shown["node"]) == ("the shop", node)
            assert {"name": "cluster_name", "value": "the shop"} in api.get("/api/definitions")["global_parameters"]
            reason_text = reason(api("PUT", "/api/global-parameters/cluster_name", {"value": 5}))
            assert reason_text == "cluster_name should be a name, actually was 5"
        finally:
            api.send_ok("DELETE", "/api/global-parameters/cluster_name")
        assert api.get("/api/cluster-name") == {"name": node}


class TestRoles:
    @pytest.mark.parametrize("tag", ["management", "policymaker", "monitoring", "administrator"])
    def test_tag_decides_access_to_policies_and_parameters(self, api, user, v, tag):
        """The statuses are RabbitMQ's, measured, with one exception.

        Only administrators change operator policies through parameters.
        """
        caller = user(tag, configure=".*", write=".*", read=".*")
        can_change_policies, can_change_operator_policies = (
            tag in ("policymaker", "administrator"),
            tag == "administrator",
        )
        operator = {"value": {**GOOD, "priority": 0}}
        api.send_ok("PUT", f"/api/policies/{v}/p", GOOD)
        api.send_ok("PUT", f"/api/operator-policies/{v}/o", GOOD)
        for allowed, method, path, body in (
            (True, "GET", "policies", None),
            (True, "GET", f"policies/{v}", None),
            (can_change_policies, "GET", f"policies/{v}/p", None),
            (can_change_policies, "PUT", f"policies/{v}/z", GOOD),
            (can_change_policies, "DELETE", f"policies/{v}/z", None),
            (True, "GET", "operator-policies", None),
            (True, "GET", f"operator-policies/{v}", None),
            (can_change_operator_policies, "GET", f"operator-policies/{v}/o", None),
            (can_change_operator_policies, "PUT", f"operator-policies/{v}/z", GOOD),
            (can_change_operator_policies, "DELETE", f"operator-policies/{v}/z", None),
            (can_change_policies, "GET", "parameters", None),
            (can_change_policies, "GET", f"parameters/operator_policy/{v}/o", None),
            (can_change_operator_policies, "PUT", f"parameters/operator_policy/{v}/z", operator),
            (can_change_operator_policies, "DELETE", f"parameters/operator_policy/{v}/o", None),
            (can_change_policies, "GET", "global-parameters", None),
            (can_change_policies, "PUT", "global-parameters/roles", {"value": 1}),
            (can_change_policies, "DELETE", "global-parameters/roles", None),
        ):
            status = caller(method, f"/api/{path}", body).status
            assert (status in (200, 201, 204)) is allowed, (method, path, status)
            assert allowed or status == 401, (method, path, status)

    def test_policymaker_without_vhost_permission_is_refused(self, user, v):
        caller = user("policymaker")
        assert caller("PUT", f"/api/policies/{v}/p", GOOD).status == 401
        assert caller("GET", f"/api/policies/{v}").status == 401
        assert caller.get("/api/policies") == []


def test_consumer_timeout_policy_applies_to_existing_consumers(api, amqpd_vhost, v):
    """A consumer's own `x-consumer-timeout` argument takes precedence over the policy."""
    connection = pika.BlockingConnection(pika.URLParameters(amqpd_vhost.url))
    channel = connection.channel()
    channel.queue_declare("q", exclusive=True, arguments={"x-consumer-timeout": 900_000})
    for tag, arguments in (("plain", {}), ("own", {"x-consumer-timeout": 60_000})):
        channel.basic_consume("q", lambda *_: None, consumer_tag=tag, arguments=arguments)
    channel.basic_consume("q", lambda *_: None, consumer_tag="auto", auto_ack=True)

    def timeouts() -> dict[str, int]:
        return {each["consumer_tag"]: each["consumer_timeout"] for each in api.get(f"/api/consumers/{v}")}

    assert timeouts() == {"plain": 900_000, "own": 60_000, "auto": 0}
    api.send_ok("PUT", f"/api/policies/{v}/p", {"pattern": "^q", "definition": {"consumer-timeout": 400}})
    assert timeouts() == {"plain": 400, "own": 60_000, "auto": 0}
    channel.basic_cancel("auto")
    channel.basic_cancel("own")
    channel.basic_publish("", "q", b"1")
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    deadline = time.monotonic() + 60
    while not cancelled and time.monotonic() < deadline:
        connection.process_data_events(time_limit=0.1)
    assert cancelled == ["plain"]
    api.send_ok("DELETE", f"/api/policies/{v}/p")
    channel.basic_consume("q", lambda *_: None, consumer_tag="again")
    assert timeouts() == {"again": 900_000}
    connection.close()


def test_invalid_consumer_timeout_policy_is_refused(api, v):
    for value in (-1, "86400000", 1.5, True):
        body = {"pattern": "^q", "definition": {"consumer-timeout": value}}
        assert "is not a valid consumer timeout" in reason(api("PUT", f"/api/policies/{v}/p", body))


class TestAfterAKill:
    @pytest.mark.slow
    def test_confirmed_policy_changes_survive_kill(self, tmp_path, api, until_settled):
        """Each round kills the broker right after the reply. Set policies must be set and cleared ones cleared."""
        with BrokerProcess(tmp_path / "data") as broker:
            api = type(api)(broker)
            api.send_ok("PUT", "/api/queues/%2F/q", {"durable": True})
            for number in range(6):
                definition = {"max-length": number + 1, "message-ttl": 90_000}
                api.send_ok("PUT", "/api/policies/%2F/p", {"pattern": "^q", "definition": definition})
                api.send_ok("PUT", f"/api/operator-policies/%2F/o{number}", GOOD)
                api.send_ok("PUT", "/api/global-parameters/g", {"value": number})
                if number:
                    result = broker.ctl("clear_operator_policy", f"o{number - 1}")
                    assert result.returncode == 0, result.stderr
                broker.kill()
                broker.start()
                shown = api.get("/api/queues/%2F/q")
                assert (shown["policy"], shown["operator_policy"]) == ("p", f"o{number}")
                assert shown["effective_policy_definition"] == {**definition, "max-length": min(number + 1, 5)}
                assert [each["name"] for each in api.get("/api/operator-policies")] == [f"o{number}"]
                assert api.get("/api/global-parameters/g")["value"] == number
            with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                for _ in range(9):
                    channel.basic_publish("", "q", b"", pika.BasicProperties(delivery_mode=2))
                assert channel.queue_declare("q", passive=True).method.message_count == 5
            api.send_ok("DELETE", "/api/policies/%2F/p")
            api.send_ok("DELETE", "/api/operator-policies/%2F/o5")
            until_settled(broker, "q", 5)
            broker.kill()
            broker.start()
            assert api.get("/api/queues/%2F/q")["effective_policy_definition"] == {}
            assert api.get("/api/queues/%2F/q")["messages"] == 5


@pytest.mark.slow
def test_invalid_policy_row_in_database_does_not_prevent_startup(tmp_path, api):
    with BrokerProcess(tmp_path / "data") as broker:
        api = type(api)(broker)
        api.send_ok("PUT", "/api/policies/%2F/good", GOOD)
        broker.stop()
        with closing(sqlite3.connect(tmp_path / "data" / "metadata.sqlite")) as database:
            for name, pattern, definition in (("bad", "(", "{}"), ("worse", "", "[]"), ("worst", "", "junk")):
                row = ("/", name, pattern, "all", definition, 0, 0)
                database.execute("INSERT INTO policies VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            database.commit()
        broker.start()
        assert [each["name"] for each in api.get("/api/policies/%2F")] == ["good"]
        for name in ("bad", "worse", "worst"):
            assert broker.says(f"policy '{name}' in vhost '/' is invalid and ignored")
        # A new policy of the same name replaces the row.
        api.send_ok("PUT", "/api/policies/%2F/bad", GOOD)
        broker.kill()
        broker.start()
        assert [each["name"] for each in api.get("/api/policies/%2F")] == ["bad", "good"]


def test_administrator_needs_no_permission_in_the_vhost(user, v):
    """RabbitMQ: for policies, parameters and definitions."""
    boss, policymaker = user("administrator"), user("policymaker")
    limits = {"value": {"max-queues": 9}}
    calls = [
        *(
            (method, f"/api/{kind}/{v}/p", GOOD)
            for kind in ("policies", "operator-policies")
            for method in ("PUT", "DELETE")
        ),
        *((method, f"/api/parameters/vhost-limits/{v}/limits", limits) for method in ("PUT", "DELETE")),
        ("POST", f"/api/definitions/{v}", {"queues": []}),
        ("POST", f"/api/amqpd/definitions/{v}/difference", {"queues": []}),
        *(
            ("POST", f"/api/amqpd/{kind}/{v}/preview", {**GOOD, "name": "p"})
            for kind in ("policies", "operator-policies")
        ),
    ]
    for method, path, body in calls:
        assert policymaker(method, path, body).status == 401, path
        assert boss(method, path, body).status in (200, 201, 204), path
    assert boss("PUT", f"/api/queues/{v}/q", {}).status == 401
