"""Queues and messages on the page: view, publish, get, move, purge, delete; then the broker's state is checked."""

from __future__ import annotations

import json
from typing import Any

import pika
import pytest
from page_shop import PASSWORD

from amqpd.testing import BrokerProcess


@pytest.fixture
def broker(emptied: BrokerProcess) -> BrokerProcess:
    return emptied


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(f"{broker.url}%2F"))


def fill(broker: BrokerProcess, **arguments: Any) -> None:
    """Declare `q` with a message of each kind, its dead-letter queue `failed`, and `other`."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("failed", durable=True)
        channel.queue_declare("other", durable=True)
        dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
        channel.queue_declare("q", durable=True, arguments={**dead, **arguments})
        for number in range(6):
            customer = ("acme", "smith")[number % 2]
            body = json.dumps({"order": number, "id": 12345678901234567890}).encode()
            properties = pika.BasicProperties(
                "application/json", headers={"customer": customer}, message_id=f"m{number}"
            )
            channel.basic_publish("", "q", body, properties)
        channel.basic_publish("", "q", bytes([0, 255, 65]))


def messages(broker: BrokerProcess, queue: str) -> int:
    found: Any = broker.api("GET", f"/api/queues/%2F/{queue}")
    return int(found["messages"])


def test_browsing_leaves_messages_in_the_queue(visit, broker) -> None:
    fill(broker)
    page = visit(broker, "#/queues/%2F/q?tab=messages").page
    page.get_by_label("Selector").first.fill("customer = 'smith'")
    page.get_by_role("button", name="Browse").click()
    rows = page.get_by_role("region", name="matching messages").locator("tbody tr")
    rows.nth(2).wait_for()
    assert rows.count() == 3
    rows.first.get_by_text("acme").or_(rows.first.get_by_role("cell").nth(4)).first.click()  # any cell of the row
    dialog = page.get_by_role("dialog")
    # All digits as published, which numbers of JavaScript cannot hold.
    dialog.get_by_text('"id": 12345678901234567890').wait_for()
    dialog.get_by_role("button", name="hex").click()
    dialog.get_by_text("7b 22 6f 72 64 65 72").wait_for()
    dialog.get_by_text("customer").wait_for()
    dialog.get_by_role("button", name="Find this message id").click()
    dialog.get_by_text("q, offset 1: ready").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    page.get_by_label("Selector").first.fill("nothing = 'such'")
    page.get_by_role("button", name="Browse").click()
    page.get_by_text("No matching messages.").wait_for()
    page.get_by_label("Selector").first.fill("this is (no selector")
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("alert").filter(has_text="where:").wait_for()
    assert messages(broker, "q") == 7


def test_history_of_a_dead_letter_and_redrive(visit, broker) -> None:
    fill(broker)
    with connect(broker) as connection:
        channel = connection.channel()
        for _ in range(3):
            method, _, _ = channel.basic_get("q")
            assert method is not None
            channel.basic_reject(method.delivery_tag, requeue=False)
        assert channel.queue_declare("failed", passive=True).method.message_count >= 0
    page = visit(broker, "#/queues/%2F/failed?tab=messages").page
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("region", name="matching messages").get_by_role("button").first.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("it was dead-lettered once: a consumer rejected it").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Move, copy, delete").click()
    page.get_by_role("combobox", name="Action", exact=True).select_option("redrive")
    page.get_by_label("Selector").fill("customer = 'acme'")
    page.get_by_role("button", name="Preview").click()
    dialog.get_by_text("2 messages of 3 checked will go back").wait_for()
    assert messages(broker, "failed") == 3  # counted, but nothing was moved
    dialog.get_by_role("button", name="Redrive 2 messages").click()
    jobs = page.get_by_role("region", name="jobs on this queue")
    jobs.locator("tr", has_text="Redrive").filter(has_not_text="dry run").filter(has_text="done").wait_for()
    assert (messages(broker, "failed"), messages(broker, "q")) == (1, 6)


def test_messages_are_moved_to_an_existing_queue_only(visit, broker) -> None:
    fill(broker)
    page = visit(broker, "#/queues/%2F/q?tab=jobs").page
    page.get_by_label("Queue", exact=True).fill("none")
    page.get_by_role("button", name="Preview").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("alert").filter(has_text="no queue 'none'").wait_for()
    assert dialog.get_by_role("button", name="Move").count() == 0
    page.keyboard.press("Escape")
    page.get_by_label("Queue", exact=True).fill("other")
    page.get_by_label("Maximum number of messages").fill("4")
    page.get_by_role("button", name="Preview").click()
    dialog.get_by_role("button", name="Move 4 messages").click()
    jobs = page.get_by_role("region", name="jobs on this queue")
    jobs.locator("tr", has_text="Move").filter(has_not_text="dry run").filter(has_text="done").wait_for()
    assert (messages(broker, "q"), messages(broker, "other")) == (3, 4)


def test_job_handles_at_most_the_previewed_number(visit, broker) -> None:
    fill(broker)
    page = visit(broker, "#/queues/%2F/q?tab=jobs").page
    page.get_by_role("combobox", name="Action", exact=True).select_option("delete")
    page.get_by_role("button", name="Preview").click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Delete 7 messages")
    confirm.wait_for()
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "q", b"came meanwhile")
    confirm.click()
    jobs = page.get_by_role("region", name="jobs on this queue")
    jobs.locator("tr", has_text="Delete").filter(has_not_text="dry run").filter(has_text="done").wait_for()
    assert messages(broker, "q") == 1


def test_leaving_the_page_aborts_a_search(visit, broker) -> None:
    """Each answer says that the search is not finished, as in a long queue without matches."""
    broker.api("PUT", "/api/queues/%2F/q", {})
    screen = visit(broker, "#/queues/%2F/q?tab=messages")
    urls: list[str] = []
    more = {"messages": [], "next_offset": 5, "ended": False, "hint": ""}

    def answer(route: Any) -> None:
        urls.append(route.request.url)
        route.fulfill(json=more)

    screen.page.route("**/api/queues/*/q/messages?*", answer)
    screen.page.get_by_role("button", name="Browse").click()
    while len(urls) < 5:
        screen.page.wait_for_timeout(10)
    screen.page.evaluate("location.hash = '#/exchanges'")
    screen.page.get_by_role("heading", name="Exchanges", level=1).wait_for()
    screen.settled()  # fails if requests continue
    count = len(urls)
    screen.page.wait_for_timeout(100)
    assert len(urls) == count


def test_message_with_invalid_headers_is_shown(visit, broker) -> None:
    """A publisher can send any headers: x-death without entries, a name that is not Unicode."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q", durable=True)
        headers = {"x-death": [None, {"queue": b"\xff", "reason": 5}], "x-source-queue": b"\xff"}
        channel.basic_publish("", "q", b'{"a": "\xe2\x80\xae"}', pika.BasicProperties(headers=headers))
    page = visit(broker, "#/queues/%2F/q?tab=messages").page
    page.get_by_role("button", name="Browse").click()
    page.get_by_role("region", name="matching messages").get_by_role("button").first.click()
    page.get_by_text("it was dead-lettered once: 5.").wait_for()
    assert page.get_by_label("Payload", exact=True).inner_text().count("‹202e›") == 1


def test_published_numbers_keep_all_digits(visit, broker) -> None:
    broker.api("PUT", "/api/queues/%2F/q", {})
    page = visit(broker, "#/queues/%2F/q?tab=publish").page
    page.get_by_label("Headers", exact=False).fill('{"id": 9007199254740993}')
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("Every queue that received the message has stored it").wait_for()
    with connect(broker) as connection:
        _, properties, _ = connection.channel().basic_get("q")
    assert properties.headers == {"id": 9007199254740993}


def test_classic_type_overrides_the_vhost_default(visit, broker) -> None:
    broker.api("PUT", "/api/vhosts/safe", {"default_queue_type": "quorum"})
    page = visit(broker, "#/queues").page
    page.get_by_role("button", name="New queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Virtual host").select_option("safe")
    dialog.get_by_label("Name").fill("plain")
    dialog.get_by_role("button", name="Declare the queue").click()
    page.get_by_role("link", name="plain").wait_for()
    queue: Any = broker.api("GET", "/api/queues/safe/plain")
    assert queue["type"] == "classic"


def test_published_message_is_got_and_removed(visit, broker) -> None:
    broker.api("PUT", "/api/queues/%2F/q", {})
    page = visit(broker, "#/queues/%2F/q?tab=publish").page
    page.get_by_label("Payload", exact=True).fill("Grüße")
    page.get_by_label("Headers", exact=False).fill('{"n": ')
    page.get_by_role("button", name="Publish").click()
    page.get_by_role("alert").filter(has_text="Headers: this is not JSON").wait_for()
    page.get_by_label("Headers", exact=False).fill('{"n": 1}')
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("Every queue that received the message has stored it").wait_for()
    assert messages(broker, "q") == 1
    page.get_by_role("link", name="Messages", exact=True).click()
    page.get_by_label("Ack mode").select_option("ack_requeue_false")
    page.get_by_role("button", name="Get", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("1 message at the front will be removed").wait_for()
    dialog.get_by_role("button", name="Remove 1 message").click()
    page.get_by_label("Payload", exact=True).filter(has_text="Grüße").wait_for()
    assert messages(broker, "q") == 0


def test_get_takes_at_most_the_previewed_number(visit, broker) -> None:
    def publish(text: str) -> None:
        message = {"properties": {}, "routing_key": "q", "payload": text, "payload_encoding": "string"}
        broker.api("POST", "/api/exchanges/%2F/amq.default/publish", message)

    broker.api("PUT", "/api/queues/%2F/q", {})
    publish("one")
    publish("two")
    page = visit(broker, "#/queues/%2F/q?tab=messages").page
    page.get_by_label("Number of messages").fill("10")
    page.get_by_label("Ack mode").select_option("ack_requeue_false")
    page.get_by_role("button", name="Get", exact=True).click()
    page.get_by_text("2 messages at the front will be removed from the queue").wait_for()
    publish("three")
    page.get_by_role("button", name="Remove 2 messages").click()
    page.get_by_text("Got 2 messages.").wait_for()
    assert broker.api("GET", "/api/queues/%2F/q?columns=messages") == {"messages": 1}


def test_unroutable_message_is_reported(visit, broker) -> None:
    page = visit(broker, "#/exchanges/%2F/amq.direct?tab=publish").page
    page.get_by_label("Routing key").fill("nowhere")
    page.get_by_role("button", name="Publish").click()
    page.get_by_text("No queue received the message").wait_for()


def test_purge_and_delete_preview_their_effect(visit, broker) -> None:
    fill(broker)
    screen = visit(broker, "#/queues/%2F/q")
    page, dialog = screen.page, screen.page.get_by_role("dialog")
    page.get_by_role("button", name="Purge").click()
    dialog.get_by_text("Purge deletes 7 ready messages without dead-lettering").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    assert messages(broker, "q") == 7
    page.get_by_role("button", name="Purge").click()
    dialog.get_by_role("button", name="Purge 7 messages").click()
    page.get_by_text("q was purged.").wait_for()
    assert messages(broker, "q") == 0
    page.get_by_role("button", name="Purge").click()
    dialog.get_by_text("There are no ready messages").wait_for()
    assert dialog.get_by_role("button", name="Purge").count() == 0
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete the queue").wait_for()
    # A message that arrives after the preview is not deleted.
    fill(broker)
    dialog.get_by_role("button", name="Delete the queue").click()
    dialog.get_by_role("alert").filter(has_text="not empty").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete with 7 messages").click()
    page.get_by_text("q was deleted.").wait_for()
    page.get_by_role("heading", name="Queues", level=1).wait_for()
    assert [each["name"] for each in _list(broker.api("GET", "/api/queues"))] == ["failed", "other"]


def test_queue_is_declared_bound_and_unbound(visit, broker) -> None:
    page = visit(broker, "#/queues").page
    page.get_by_role("button", name="New queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("a/b")
    dialog.get_by_label("Type").select_option("quorum")
    dialog.get_by_text("As JSON").click()
    dialog.get_by_label("Arguments as JSON").fill('{"x-max-length": "many"}')
    dialog.get_by_role("button", name="Declare the queue").click()
    dialog.get_by_role("alert").filter(has_text="x-max-length").wait_for()
    # A known argument has its own input with a unit; the JSON text has the same value.
    dialog.get_by_role("textbox", name="x-max-length").fill("11")
    dialog.get_by_label("Arguments as JSON").fill('{"x-max-length": 11}')
    dialog.get_by_role("spinbutton", name="x-max-length").fill("10")
    dialog.get_by_role("button", name="+ x-delivery-limit").click()
    dialog.get_by_role("button", name="+ x-overflow", exact=True).click()
    dialog.get_by_role("combobox", name="x-overflow").select_option("reject-publish")
    dialog.get_by_role("button", name="Remove x-delivery-limit").click()
    assert dialog.get_by_role("button", name="+ x-max-priority").count() == 0  # only classic queues have it
    dialog.get_by_role("button", name="Declare the queue").click()
    page.get_by_role("link", name="a/b").click()
    page.get_by_role("link", name="Bindings").click()
    page.get_by_text("Bind this queue to an exchange").click()
    page.get_by_label("Exchange", exact=True).fill("amq.topic")
    page.get_by_label("Routing key").fill("a.#")
    page.get_by_role("button", name="Bind", exact=True).click()
    row = page.get_by_role("row", name="amq.topic")
    row.wait_for()
    found = _list(broker.api("GET", "/api/queues/%2F/a%2Fb/bindings"))
    assert ("amq.topic", "a.#") in {(each["source"], each["routing_key"]) for each in found}
    row.get_by_role("button", name="Unbind").click()
    dialog.get_by_role("button", name="Unbind").click()
    row.wait_for(state="detached")
    queue: Any = broker.api("GET", "/api/queues/%2F/a%2Fb")
    assert queue["arguments"] == {"x-queue-type": "quorum", "x-max-length": 10, "x-overflow": "reject-publish"}


def test_stored_offset_of_a_stream_is_set(visit, broker) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        for number in range(10):
            channel.basic_publish("", "s", str(number).encode())
    screen = visit(broker, "#/queues/%2F/s?tab=offsets")
    page, dialog = screen.page, screen.page.get_by_role("dialog")
    page.get_by_text("No consumers.").wait_for()
    for offset in (4, 1):
        if not page.get_by_label("Next offset").is_visible():
            page.get_by_text("Set an offset").click()
        page.get_by_label("Name", exact=True).fill("billing")
        page.get_by_label("Next offset").fill(str(offset))
        page.get_by_role("button", name="Set the offset").click()
        if offset == 1:
            dialog.get_by_text("3 messages will be delivered again").wait_for()
        dialog.get_by_role("button", name="Set the offset").click()
        dialog.wait_for(state="detached")
        page.get_by_role("row", name="billing").get_by_role("cell", name=str(10 - offset), exact=True).wait_for()
    stored: Any = broker.api("GET", "/api/queues/%2F/s/offsets/billing")
    assert (stored["offset"], stored["lag"]) == (1, 9)
    assert page.get_by_role("button", name="Purge").count() == 0


def test_paused_connection_shows_the_reason_and_is_closed(visit, broker) -> None:
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_publish("", "q", b"x")
        assert channel.basic_get("q")[0] is not None
        broker.api("PUT", "/api/amqpd/alarms/memory", {})
        channel.basic_publish("", "q", b"waits")
        screen = visit(broker, "#/")
        page, dialog = screen.page, screen.page.get_by_role("dialog")
        page.get_by_role("alert").filter(has_text="low on memory").wait_for()
        page.get_by_text("it published during a memory or disk alarm").wait_for()
        page.get_by_role("link", name="Connections", exact=True).click()
        page.get_by_text("paused: alarm").wait_for()
        page.locator("td a").first.click()
        page.get_by_text("The broker does not read from this connection now").wait_for()
        page.get_by_role("button", name="Close", exact=True).click()
        dialog.get_by_text("1 unacked message").wait_for()
        dialog.get_by_role("button", name="Close the connection").click()
        page.get_by_text("No connections.").wait_for()
        broker.api("DELETE", "/api/amqpd/alarms/memory")
        with pytest.raises(pika.exceptions.AMQPError):
            connection.process_data_events(5)


@pytest.mark.parametrize(
    ("rights", "offered"),
    [
        (("", "", ""), []),
        (("", "", "^q$"), ["Messages", "Move, copy, delete"]),
        (("", "^amq\\.default$", ""), ["Publish"]),
    ],
)
def test_tabs_need_permissions(visit, broker, rights, offered) -> None:
    fill(broker)
    configure, write, read = rights
    broker.api("PUT", "/api/users/eve", {"password": PASSWORD, "tags": "management"})
    broker.api("PUT", "/api/permissions/%2F/eve", {"configure": configure, "write": write, "read": read})
    page = visit(broker, "#/queues/%2F/q", "eve").page
    tabs = page.get_by_role("navigation", name="Parts of this queue")
    tabs.wait_for()
    for name in offered:
        tabs.get_by_role("link", name=name, exact=True).wait_for()
    for name in {"Messages", "Publish", "Move, copy, delete"} - set(offered):
        assert tabs.get_by_role("link", name=name, exact=True).count() == 0
    assert page.get_by_role("button", name="Delete").count() == 0
    assert page.get_by_role("button", name="Purge").count() == (1 if read else 0)


def _list(answer: object) -> list[Any]:
    assert isinstance(answer, list)
    return answer


def publish(broker: BrokerProcess, queue: str, *texts: str) -> None:
    for text in texts:
        message = {"properties": {}, "routing_key": queue, "payload": text, "payload_encoding": "string"}
        broker.api("POST", "/api/exchanges/%2F/amq.default/publish", message)


def test_watch_shows_new_messages_of_a_stream(visit, broker) -> None:
    broker.api("PUT", "/api/queues/%2F/s", {"arguments": {"x-queue-type": "stream"}})
    publish(broker, "s", "before")
    page = visit(broker, "#/queues/%2F/s?tab=messages").page
    page.get_by_label("From").select_option("tail")
    with page.expect_response(lambda answer: "offset=1" in answer.url):
        page.get_by_role("button", name="Watch").click()
    publish(broker, "s", "one", "two")
    lines = page.get_by_role("region", name="new messages").locator("tbody tr")
    lines.nth(1).wait_for()
    assert ["two" in lines.first.inner_text(), "one" in lines.nth(1).inner_text(), lines.count()] == [True, True, 2]
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Paused: 2 new messages").wait_for()
    page.get_by_role("button", name="Stop watching").click()
    lines.first.wait_for(state="detached")


def test_messages_are_downloaded_as_lines_of_json(visit, broker) -> None:
    fill(broker)
    page = visit(broker, "#/queues/%2F/q?tab=messages").page
    page.get_by_label("Selector").first.fill("customer = 'acme'")
    page.get_by_role("button", name="Browse").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download all matching messages").click()
    page.get_by_text("3 are in the file").wait_for()
    assert download.value.suggested_filename == "q.jsonl"
    lines = [json.loads(line) for line in download.value.path().read_text("utf-8").splitlines()]
    assert [each["offset"] for each in lines] == [0, 2, 4]
    assert [each["properties"]["headers"]["customer"] for each in lines] == ["acme"] * 3
    assert json.loads(lines[0]["payload"])["order"] == 0
    assert messages(broker, "q") == 7


def test_consumers_of_a_queue_are_paged(visit, broker) -> None:
    broker.api("PUT", "/api/queues/%2F/q", {})
    screen = visit(broker, "#/queues/%2F/q")
    urls: list[str] = []
    screen.page.on("request", lambda request: urls.append(request.url))
    with connect(broker) as connection:
        channel = connection.channel()
        for number in range(60):
            channel.basic_consume("q", lambda *_: None, consumer_tag=f"tag-{number:02}")
        screen.go("#/queues/%2F/q?tab=consumers")
        screen.page.get_by_text("60 consumers", exact=True).wait_for()
        assert screen.page.get_by_role("region", name="consumers").locator("tbody tr").count() == 50
        screen.page.get_by_role("button", name="Next").click()
        screen.page.get_by_text("tag-59").wait_for()
    assert not any("consumer_details" in url for url in urls)
