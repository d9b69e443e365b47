"""Administration on the page, and its effect in the broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_shop import PASSWORD

from amqpd.testing import BrokerProcess


@pytest.fixture
def broker(emptied: BrokerProcess) -> BrokerProcess:
    return emptied


def test_user_is_created_changed_and_deleted(visit, broker) -> None:
    broker.api("PUT", "/api/vhosts/shop", {})
    screen = visit(broker, "#/users")
    page = screen.page
    page.get_by_role("button", name="New user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("eve")
    dialog.get_by_label("Password", exact=False).first.fill(PASSWORD)
    dialog.get_by_label("Password again").fill("another")
    dialog.get_by_role("checkbox", name="monitoring").check()
    dialog.get_by_role("button", name="Add the user").click()
    dialog.get_by_role("alert").filter(has_text="are different").wait_for()
    dialog.get_by_label("Password again").fill(PASSWORD)
    dialog.get_by_role("button", name="Add the user").click()
    page.get_by_role("link", name="eve").click()
    page.get_by_text("No permissions.", exact=True).wait_for()
    form = page.locator("section").filter(has=page.get_by_role("heading", name="Permissions", exact=True))
    form.get_by_label("Virtual host").select_option("shop")
    form.get_by_label("Configure").fill("^eve")
    form.get_by_role("button", name="Set the permission").click()
    form.get_by_role("cell", name="^eve").wait_for()
    expected = {"user": "eve", "vhost": "shop", "configure": "^eve", "write": ".*", "read": ".*"}
    assert broker.api("GET", "/api/permissions/shop/eve") == expected
    page.get_by_label("max-connections").fill("7")
    page.get_by_role("button", name="Set max-connections").click()
    page.get_by_text("max-connections is 7.").wait_for()
    user: Any = broker.api("GET", "/api/users/eve")
    assert (user["tags"], user["limits"]) == (["monitoring"], {"max-connections": 7})
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog.get_by_text("The user has no open connection").wait_for()
    dialog.get_by_role("button", name="Delete the user").click()
    page.get_by_text("User eve was deleted.").wait_for()
    assert [each["name"] for each in as_list(broker.api("GET", "/api/users"))] == ["guest"]


def test_new_user_does_not_replace_an_existing_one(visit, broker) -> None:
    page = visit(broker, "#/users").page
    page.get_by_role("button", name="New user").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("guest")
    dialog.get_by_role("button", name="Add the user").click()
    dialog.get_by_role("alert").filter(has_text="already exists").wait_for()


def test_policy_previews_its_effect(visit, broker) -> None:
    for name in ("logs.a", "logs.b", "other"):
        broker.api("PUT", f"/api/queues/%2F/{name}", {})
        for _ in range(4):
            message = {"properties": {}, "routing_key": name, "payload": "x", "payload_encoding": "string"}
            broker.api("POST", "/api/exchanges/%2F/amq.default/publish", message)
    page = visit(broker, "#/policies").page
    page.get_by_role("button", name="New policy").click()
    page.get_by_label("Name", exact=True).fill("short")
    page.get_by_label("Pattern").fill("^logs")
    page.get_by_role("button", name="+ max-length", exact=True).click()
    page.get_by_role("spinbutton", name="max-length").fill("3")
    page.get_by_text("The policy matches 2 queues and 0 exchanges. 2 queues and 0 exchanges change.").wait_for()
    page.get_by_text("2 messages over the new length limit would be dropped or dead-lettered at once.").wait_for()
    page.get_by_role("button", name="Save the policy").click()
    page.get_by_role("button", name="Save and drop 2 messages").click()
    page.get_by_role("cell", name="^logs").wait_for()
    queues = {each["name"]: each["messages"] for each in as_list(broker.api("GET", "/api/queues"))}
    assert queues == {"logs.a": 3, "logs.b": 3, "other": 4}
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete: 2 queues and 0 exchanges change").click()
    page.get_by_text("No policies.").wait_for()
    assert broker.api("GET", "/api/policies") == []


def test_policy_replaces_another_only_after_confirmation(visit, broker) -> None:
    old = {"pattern": "^old", "apply-to": "queues", "definition": {"max-length": 11}, "priority": 3}
    broker.api("PUT", "/api/policies/%2F/short", old)
    page = visit(broker, "#/policies").page
    page.get_by_role("button", name="New policy").click()
    page.get_by_label("Name", exact=True).fill("short")
    page.get_by_label("Pattern").fill("^new")
    page.get_by_role("button", name="+ max-length", exact=True).click()
    page.get_by_role("button", name="Save the policy").click()
    dialog = page.get_by_role("dialog", name="Save the policy?")
    dialog.get_by_text("A policy short already exists in /").wait_for()
    dialog.get_by_text("^old").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    assert broker.api("GET", "/api/policies/%2F/short") == {"vhost": "/", "name": "short", **old}
    page.get_by_role("button", name="Save the policy").click()
    dialog.get_by_role("button", name="Replace", exact=True).click()
    page.get_by_text("The policy short was saved.").wait_for()
    assert dict(broker.api("GET", "/api/policies/%2F/short"))["pattern"] == "^new"


def test_permission_is_replaced_only_after_confirmation(visit, broker) -> None:
    old = {"configure": "^old", "write": "", "read": ".*"}
    broker.api("PUT", "/api/users/eve", {"password": PASSWORD, "tags": ""})
    broker.api("PUT", "/api/permissions/%2F/eve", old)
    broker.api("PUT", "/api/topic-permissions/%2F/eve", {"exchange": "amq.topic", "write": "^a", "read": "^b"})
    page = visit(broker, "#/users/eve").page
    page.get_by_role("button", name="Set the permission").click()
    dialog = page.get_by_role("dialog", name="Set the permission?")
    dialog.get_by_text("^old").wait_for()
    assert broker.api("GET", "/api/permissions/%2F/eve") == {"user": "eve", "vhost": "/", **old}
    dialog.get_by_role("button", name="Replace the permission").click()
    page.get_by_text("The permission was saved.").wait_for()
    assert dict(broker.api("GET", "/api/permissions/%2F/eve"))["write"] == ".*"
    page.get_by_role("button", name="Set the topic permission").click()
    dialog = page.get_by_role("dialog", name="Set the topic permission?")
    dialog.get_by_text("^b").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    assert as_list(broker.api("GET", "/api/topic-permissions/%2F/eve"))[0]["read"] == "^b"


def test_declaration_does_not_change_existing_objects(visit, broker) -> None:
    broker.api("PUT", "/api/queues/%2F/one", {"durable": True})
    broker.api("PUT", "/api/exchanges/%2F/one", {"type": "direct"})
    screen = visit(broker, "#/queues")
    for kind in ("queue", "exchange"):
        screen.go(f"#/{kind}s")
        screen.page.get_by_role("button", name=f"New {kind}").click()
        dialog = screen.page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("one")
        dialog.get_by_role("button", name=f"Declare the {kind}").click()
        dialog.get_by_role("alert").filter(has_text=f"{kind} of this name already exists").wait_for()
        dialog.get_by_role("button", name="Close").click()


def test_invalid_policy_is_reported_while_typing(visit, broker) -> None:
    page = visit(broker, "#/policies").page
    page.get_by_role("button", name="New policy").click()
    page.get_by_text("As JSON").click()
    page.get_by_label("Definition as JSON").fill('{"max-length": "many"}')
    page.get_by_text("is not a valid maximum length").wait_for()
    page.get_by_label("Definition as JSON").fill("{")
    page.get_by_text("The definition is not a JSON object.").first.wait_for()


def test_vhost_is_deleted_after_a_preview_of_its_content(visit, broker) -> None:
    page = visit(broker, "#/vhosts").page
    page.get_by_role("button", name="New virtual host").click()
    page.get_by_role("dialog").get_by_label("Name").fill("for a day")
    page.get_by_role("button", name="Add the virtual host").click()
    page.get_by_role("link", name="for a day").wait_for()
    for number in range(3):
        broker.api("PUT", f"/api/queues/for%20a%20day/q{number}", {})
        message = {"properties": {}, "routing_key": f"q{number}", "payload": "x", "payload_encoding": "string"}
        broker.api("POST", "/api/exchanges/for%20a%20day/amq.default/publish", message)
    page.get_by_role("link", name="for a day").click()
    page.get_by_label("protected from deletion").check()
    page.get_by_role("button", name="Save the settings").click()
    page.get_by_text("The settings were saved.").wait_for()
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("The virtual host is protected from deletion.").wait_for()
    assert dialog.locator("button.danger").count() == 0
    page.keyboard.press("Escape")
    broker.api("DELETE", "/api/vhosts/for%20a%20day/deletion/protection")
    page.get_by_role("button", name="Delete", exact=True).click()
    dialog.get_by_text("3 queues").wait_for()
    dialog.get_by_role("button", name="Delete with 3 messages").click()
    page.get_by_text("The virtual host for a day was deleted.").wait_for()
    assert [each["name"] for each in as_list(broker.api("GET", "/api/vhosts"))] == ["/"]


def test_new_vhost_does_not_change_an_existing_one(visit, broker) -> None:
    broker.api("PUT", "/api/vhosts/there", {"description": "kept"})
    page = visit(broker, "#/vhosts").page
    page.get_by_role("button", name="New virtual host").click()
    page.get_by_role("dialog").get_by_label("Name").fill("there")
    page.get_by_role("button", name="Add the virtual host").click()
    page.get_by_role("dialog").get_by_role("alert").filter(has_text="of this name already").wait_for()
    existing: Any = broker.api("GET", "/api/vhosts/there")
    assert existing["description"] == "kept"


def test_import_keeps_all_digits_of_numbers(visit, broker, tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    binding = '"source": "amq.headers", "destination_type": "queue", "destination": "q", "routing_key": ""'
    file.write_text(
        '{"queues": [{"vhost": "/", "name": "q"}], '
        f'"bindings": [{{"vhost": "/", {binding}, "arguments": {{"id": 9007199254740993}}}}]}}'
    )
    page = visit(broker, "#/definitions").page
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_role("button", name="Import: 2 new, 0 changed").click()
    page.get_by_text("Imported.").wait_for()
    found = as_list(broker.api("GET", "/api/bindings/%2F/e/amq.headers/q/q"))
    assert [each["arguments"] for each in found] == [{"id": 9007199254740993}]


def test_import_previews_its_changes(visit, broker, tmp_path: Path) -> None:
    broker.api("PUT", "/api/queues/%2F/there", {"arguments": {"x-max-length": 5}})
    broker.api("PUT", "/api/policies/%2F/p", {"pattern": "a", "definition": {"max-length": 5}})
    document = {
        "queues": [{"vhost": "/", "name": "there"}, {"vhost": "/", "name": "coming"}],
        "policies": [{"vhost": "/", "name": "p", "pattern": "b", "definition": {"max-length": 5}}],
        "exchanges": [{"vhost": "no such", "name": "x", "type": "topic"}],
    }
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(document), "utf-8")
    page = visit(broker, "#/definitions").page
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("The import would be refused: 1 item is not supported.").wait_for()
    assert page.get_by_role("button", name="Import", exact=True).is_disabled()
    page.get_by_role("cell", name="exchanges[0].vhost").wait_for()
    page.get_by_label("skip unsupported items").check()
    page.get_by_role("button", name="Preview").click()
    differences = page.get_by_role("region", name="differences")
    differences.wait_for()
    rows = [row.inner_text() for row in differences.locator("tbody tr").all()]
    assert [row.split()[0] for row in rows] == ["changed", "not", "new"]
    page.get_by_role("button", name="Import", exact=True).click()
    page.get_by_role("button", name="Import: 1 new, 1 changed").click()
    page.get_by_text("Imported; 1 item was skipped.").wait_for()
    arguments_by_name = {each["name"]: each["arguments"] for each in as_list(broker.api("GET", "/api/queues"))}
    assert arguments_by_name == {"there": {"x-max-length": 5}, "coming": {}}


def test_definitions_are_downloaded(visit, broker) -> None:
    broker.api("PUT", "/api/queues/%2F/kept", {})
    page = visit(broker, "#/definitions").page
    with page.expect_download() as download:
        page.get_by_role("link", name="Download definitions.json").click()
    document = json.loads(Path(download.value.path()).read_text("utf-8"))
    assert [each["name"] for each in document["queues"]] == ["kept"]


def test_exports_show_their_lag(visit, shop) -> None:
    page = visit(shop, "#/exports", user="anna").page
    row = page.get_by_role("row").filter(has_text="warehouse")
    row.wait_for()
    assert int(row.get_by_role("cell").nth(3).inner_text().replace(",", "")) >= 40
    declared = page.get_by_role("row").filter(has_text="lake")
    assert declared.get_by_role("button", name="Stop").is_disabled()
    row.get_by_role("button", name="Stop").click()
    page.get_by_text("The queue retains nothing for the export").wait_for()
    page.get_by_role("button", name="Cancel").click()


def test_kafka_group_shows_its_lag(visit, shop) -> None:
    page = visit(shop, "#/kafka-groups", user="anna").page
    row = page.get_by_role("row").filter(has_text="report")
    assert row.get_by_role("cell").all_inner_texts()[1:5] == ["/", "classic", "Empty", "0"]
    row.get_by_role("link", name="report").click()
    page.get_by_text("No members.").wait_for()
    cells = page.get_by_role("row").filter(has_text="events").get_by_role("cell").all_inner_texts()
    assert cells[:3] == ["events", "0", "0"]
    assert cells[3] == cells[4] != "0"


def test_kafka_groups_are_hidden_without_a_listener(visit, broker) -> None:
    screen = visit(broker, "#/kafka-groups")
    screen.page.get_by_text("the broker has no Kafka listener").wait_for()
    assert screen.page.locator("#nav a[href='#/kafka-groups']").count() == 0


def test_audit_log_pages_backwards_and_filters(visit, broker) -> None:
    for number in range(120):
        broker.api("PUT", f"/api/queues/%2F/audited{number}", {})
    page = visit(broker, "#/audit").page
    rows = page.locator("main tbody tr")
    page.get_by_text("100 records").wait_for()
    assert rows.first.inner_text().split()[2] in ("guest", "user.authentication.success")
    oldest = page.get_by_text("there are no older records")
    while not oldest.is_visible():
        before = rows.count()
        page.get_by_role("button", name="Older").click()
        rows.nth(before).wait_for()
    assert rows.count() > 120
    page.get_by_label("Selector").fill("event = 'queue.created' AND name = 'audited7'")
    page.get_by_role("button", name="Search").click()
    page.get_by_text("1 record; there are no older records").wait_for()
    page.get_by_label("Selector").fill("event = ")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("alert").filter(has_text="where").or_(page.locator("main .failure")).first.wait_for()


def as_list(found: Any) -> list[dict[str, Any]]:
    assert isinstance(found, list)
    return found


CLUSTER = {
    "clustered": True,
    "name": "shop",
    "node": "b@two",
    "nodes": [
        {"name": "a@one", "address": "one:25672", "draining": False, "vhosts": 2},
        {"name": "b@two", "address": "two:25672", "draining": False, "vhosts": 0},
        {"name": "c@three", "address": "three:25672", "draining": True, "vhosts": 0},
    ],
    "vhosts": [
        {"name": "/", "slot": 3, "node": "a@one", "state": "running"},
        {"name": "eu", "slot": 3, "node": "a@one", "state": "running"},
    ],
    "slots": 8,
    "metadata_node": "a@one",
    "kafka": ["k1:9092"],
    "confirms": {"promise": "replicated", "replication_factor": 3, "required_insync": 2},
    "relayed_out": 1,
    "relayed_in": 0,
}
"""The answer of a node in a cluster of three (amqpd/cluster/operations.py)."""


def test_cluster_shows_placement_and_moves_a_vhost(visit, broker) -> None:
    """A fake API answers for a cluster: the test checks what the page shows and what it requests."""
    broker.api("PUT", "/api/vhosts/eu", {})
    screen = visit(broker)
    page = screen.page
    requests: list[Any] = []

    def answer(route: Any) -> None:
        requests.append(route.request.post_data_json)
        route.fulfill(json={"vhosts": ["/", "eu"], "node": "b@two"})

    page.route("**/api/amqpd/cluster", lambda route: route.fulfill(json=CLUSTER))
    page.route("**/api/amqpd/move_vhost", answer)
    screen.go("#/nodes")
    page.get_by_text("replicated: at least 2 of 3 Kafka brokers have the message").wait_for()
    page.get_by_role("row").filter(has_text="c@three").get_by_text("draining").wait_for()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="eu", exact=True))
    options = row.get_by_role("option").all_inner_texts()
    assert options == ["b@two"]  # neither the current node nor a draining node
    row.get_by_role("button", name="Move").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("with all virtual hosts of its slot: / eu").wait_for()
    dialog.get_by_role("button", name="Move and close 0 connections").click()
    page.get_by_text("The virtual host eu is now on b@two.").wait_for()
    assert requests == [{"vhost": "eu", "node": "b@two"}]


def test_single_node_shows_no_cluster(visit, broker) -> None:
    page = visit(broker, "#/nodes").page
    page.get_by_text("A single node serves all virtual hosts.").wait_for()
    assert page.get_by_role("button", name="Rebalance").count() == 0
