from __future__ import annotations

import json

import pytest
from fake_broker import Ctl, FakeBroker

GROUPS = "/api/amqpd/kafka/groups/shop"
ONE = f"{GROUPS}/a%2Fb"
GROUP = {
    "vhost": "shop",
    "name": "a/b",
    "type": "classic",
    "state": "Stable",
    "protocol_type": "consumer",
    "protocol": "range",
    "member_count": 1,
    "lag": 1203,
}
MEMBER = {
    "id": "m-1",
    "instance_id": None,
    "client_id": "app",
    "host": "10.0.0.7",
    "assignment": {"orders": [0, 1], "logs": [0]},
}
OFFSETS = [
    {"topic": "orders", "partition": 0, "offset": 8, "end_offset": 1211, "lag": 1203, "member_id": "m-1"},
    {"topic": "orders", "partition": 1, "offset": None, "end_offset": 4, "lag": None, "member_id": "m-1"},
]
CHANGES = [{"topic": "orders", "partition": 0, "before": None, "after": 3}]
NO_LISTENER = (404, {"reason": "Not Found", "detail": "the broker has no Kafka listener: set kafka.port"})
IN_USE = (400, {"error": "bad_request", "reason": "Kafka group 'a/b' is in use (state Stable): stop its members first"})


def test_list_shows_state_members_and_lag(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", GROUPS] = (200, [GROUP])
    assert ctl("list_kafka_groups", "-p", "shop") == (
        0,
        """\
Listing Kafka groups for vhost shop ...
name\ttype\tstate\tmember_count\tlag
a/b\tclassic\tStable\t1\t1203
""",
        "",
    )
    assert ctl("-q", "-p", "shop", "list_kafka_groups", "protocol", "name").out == "protocol\tname\nrange\ta/b\n"
    assert ctl("list_kafka_groups", "nonsense").code == 64


def test_group_is_described_by_two_aligned_tables(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", ONE] = (200, {**GROUP, "members": [MEMBER], "offsets": OFFSETS})
    assert ctl("describe_kafka_group", "-p", "shop", "a/b") == (
        0,
        """\
Describing Kafka group a/b in vhost shop ...
type classic, state Stable, protocol range
member  client_id  host      assignment
m-1     app        10.0.0.7  orders: 0, 1; logs: 0

topic   partition  offset  end_offset   lag  member
orders          0       8        1211  1203  m-1
orders          1                   4        m-1
""",
        "",
    )
    headless = ctl("-s", "-p", "shop", "describe_kafka_group", "a/b").out
    assert headless.startswith("m-1  app  10.0.0.7  orders: 0, 1; logs: 0\n\norders  0")


def test_described_group_is_one_object_in_json(broker: FakeBroker, ctl: Ctl) -> None:
    answer = {**GROUP, "members": [MEMBER], "offsets": OFFSETS}
    broker.answers["GET", ONE] = (200, answer)
    assert json.loads(ctl("describe_kafka_group", "-p", "shop", "a/b", "--formatter", "json").out) == answer


@pytest.mark.parametrize(
    ("options", "target"),
    [
        (("--to-earliest",), {"to": "earliest"}),
        (("--to-latest",), {"to": "latest"}),
        (("--to-offset", "41"), {"offset": 41}),
        (("--to-datetime", "2026-11-28T08:00:00"), {"time": "2026-11-28T08:00:00"}),
        (("--shift-by", "-10"), {"shift": -10}),
        (("--shift-by=+10", "--partition", "2"), {"shift": 10, "partition": 2}),
    ],
)
def test_reset_sends_target_and_shows_old_and_new_offset(
    broker: FakeBroker, ctl: Ctl, options: tuple[str, ...], target: dict[str, object]
) -> None:
    broker.answers["POST", f"{ONE}/offsets"] = (200, CHANGES)
    result = ctl("-q", "reset_kafka_offsets", "-p", "shop", "a/b", "--topic", "orders", *options)
    assert result == (0, "topic\tpartition\told_offset\tnew_offset\norders\t0\t\t3\n", "")
    assert broker.requests[0].body == {"topic": "orders", "dry_run": False, **target}


def test_dry_run_of_reset_asks_the_broker(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["POST", f"{ONE}/offsets"] = (200, CHANGES)
    result = ctl("reset_kafka_offsets", "-p", "shop", "a/b", "--topic", "orders", "--to-latest", "--dry-run")
    assert result.out.startswith("Computing offsets of Kafka group a/b in vhost shop ...\n")
    assert broker.requests[0].body == {"topic": "orders", "dry_run": True, "to": "latest"}


@pytest.mark.parametrize(
    "line",
    [
        "--to-earliest",
        "--topic t",
        "--topic t --to-earliest --to-latest",
        "--topic t --shift-by 1.5",
        "--topic t --shift-by --",
        "--topic t --to-offset -1",
        "--topic t --to-earliest --partition x",
    ],
)
def test_bad_reset_is_a_usage_error(broker: FakeBroker, ctl: Ctl, line: str) -> None:
    assert ctl("reset_kafka_offsets", "g", *line.split()).code == 64
    assert broker.requests == []


def test_delete(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["DELETE", ONE] = (204, None)
    assert ctl("delete_kafka_group", "-p", "shop", "a/b") == (
        0,
        "Deleting Kafka group a/b in vhost shop ...\n",
        "",
    )


@pytest.mark.parametrize("answer", [NO_LISTENER, IN_USE])
def test_refusal_is_shown_with_exit_code_69(broker: FakeBroker, ctl: Ctl, answer: tuple[int, dict[str, str]]) -> None:
    for method, path, line in (
        ("GET", GROUPS, ("list_kafka_groups",)),
        ("GET", ONE, ("describe_kafka_group", "a/b")),
        ("POST", f"{ONE}/offsets", ("reset_kafka_offsets", "a/b", "--topic", "t", "--to-latest")),
        ("DELETE", ONE, ("delete_kafka_group", "a/b")),
    ):
        broker.answers[method, path] = answer
        text = answer[1].get("detail", answer[1]["reason"])
        assert ctl("-q", "-p", "shop", *line) == (69, "", f"Error:\n{text}\n")


def test_names_of_groups_are_completed(broker: FakeBroker, ctl: Ctl) -> None:
    broker.answers["GET", GROUPS] = (200, {"items": [{"name": "billing"}, {"name": "bills"}, {"name": "report"}]})
    result = ctl("autocomplete", "--", "amqpctl", "describe_kafka_group", "-p", "shop", "bil")
    assert result.out == "billing\nbills\n"
