"""The page on three nodes with one virtual host each: any node shows everything and names an unreachable node.

The nodes are those of tests/relay, without Kafka: the test assigns virtual hosts, and none moves by itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "relay"))

from relay_rig import Rig


@pytest.fixture(scope="module")
def three_nodes(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Nodes a, b and c, each with a virtual host of its letter and two queues. A test that stops a node restarts it."""
    with Rig(tmp_path_factory.mktemp("nodes"), ("a", "b", "c")) as rig:
        for name in "abc":
            rig[name].api("DELETE", "/api/vhosts/%2F")
            rig.own(f"v{name}", name)
            for queue in ("orders", "mails"):
                rig[name].api("PUT", f"/api/queues/v{name}/{queue}", {})
        yield rig


def test_any_node_shows_everything(visit, three_nodes: Rig) -> None:
    screen = visit(three_nodes["b"])
    page = screen.page
    page.locator(".tile").filter(has_text="queues").get_by_text("6", exact=True).wait_for()
    page.get_by_role("heading", name="Node b").wait_for()
    screen.go("#/queues")
    page.get_by_text("6 queues").wait_for()
    page.get_by_role("button", name="Node", exact=True).wait_for()
    rows = sorted(tuple(row.split()[:3]) for row in page.locator("main tbody tr").all_inner_texts())
    assert rows == sorted((name, f"v{node}", node) for node in "abc" for name in ("orders", "mails"))
    # An action on another node's queue goes to that node.
    screen.go("#/queues/vc/orders")
    page.get_by_role("link", name="Publish").click()
    page.get_by_label("Payload").first.fill("by b to c")
    page.get_by_role("button", name="Publish", exact=True).click()
    page.get_by_text("Every queue that received").wait_for()
    assert three_nodes["c"].api("GET", "/api/queues/vc/orders?columns=messages") == {"messages": 1}
    page.get_by_role("button", name="Purge").click()
    page.get_by_role("button", name="Purge 1 message").click()
    page.get_by_text("orders was purged.").wait_for()
    screen.go("#/nodes")
    for name in "abc":
        page.get_by_role("heading", name=name, exact=True).wait_for()


def test_unreachable_node_is_named(visit, three_nodes: Rig) -> None:
    screen = visit(three_nodes["b"], "#/queues")
    page = screen.page
    page.get_by_text("6 queues").wait_for()
    assert page.get_by_text("does not answer").count() == 0
    three_nodes["c"].stop()
    page.get_by_role("alert").filter(has_text="A node does not answer, so its data are missing here: c").wait_for()
    page.get_by_text("4 queues").wait_for()
    for path in ("#/", "#/topology", "#/exchanges"):
        screen.go(path)
        page.get_by_role("alert").filter(has_text="missing here: c").wait_for()
    screen.go("#/nodes")
    section = page.locator("section").filter(has=page.get_by_role("heading", name="c", exact=True))
    section.get_by_text("The node does not answer.").wait_for()
    screen.go("#/queues/va/orders")
    page.get_by_role("heading", level=1).filter(has_text="orders").wait_for()
    three_nodes["c"].start()
    screen.go("#/queues")
    page.get_by_text("6 queues").wait_for()
    page.get_by_text("does not answer").first.wait_for(state="detached")
