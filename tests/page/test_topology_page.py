"""The topology: its picture, links and tables."""

from __future__ import annotations

import re


def test_picture_has_all_objects(visit, shop) -> None:
    page = visit(shop, "#/topology", user="anna").page
    page.get_by_label("Virtual host").first.select_option("/")
    boxes = page.locator("svg .box")
    boxes.first.wait_for()
    shown = " ".join(boxes.all_text_contents())
    for name in ("orders", "orders.eu", "orders.asia", "invoices", "events", "graveyard", "dead", "unrouted", "lost"):
        assert name in shown
    assert page.locator("svg .lines .line.dead_letter").count() == 3
    assert page.locator("svg .lines .line.alternate").count() == 1
    assert page.locator("svg .box.queue").filter(has_text="1 consumer").count() == 2


def test_line_widths_and_growing_queues(visit, shop) -> None:
    page = visit(shop, "#/topology", user="anna").page
    # The rates come from the broker's sweep, every five seconds. A horizontal line has no height: it is hidden.
    page.locator("svg .lines .line.flows").first.wait_for(state="attached")
    widths = [float(line.get_attribute("stroke-width") or 0) for line in page.locator("svg .lines .line").all()]
    assert min(widths) == 1
    assert max(widths) > 2
    page.locator("svg .box.growing").filter(has_text="orders.asia").wait_for()
    assert page.locator("svg .box.growing").filter(has_text="graveyard").count() == 0


def test_click_opens_the_object(visit, shop) -> None:
    screen = visit(shop, "#/topology", user="anna")
    screen.page.locator("svg .box.queue").filter(has_text="invoices").locator("a").first.click()
    screen.page.get_by_role("heading", level=1).filter(has_text="invoices").wait_for()
    screen.go("#/topology")
    screen.page.locator("svg .box.exchange").filter(has_text="unrouted").locator("a").click()
    screen.page.get_by_role("heading", level=1).filter(has_text="unrouted").wait_for()


def test_zoom_in_enlarges_and_fit_restores(visit, shop) -> None:
    screen = visit(shop, "#/topology", user="anna")
    picture = screen.page.locator(".topology svg").first
    picture.wait_for()
    fit = float(picture.get_attribute("width") or 0)
    screen.page.get_by_role("button", name="Zoom in").click()
    assert float(picture.get_attribute("width") or 0) > fit
    screen.page.get_by_role("button", name="Fit").click()
    assert float(picture.get_attribute("width") or 0) == fit


def test_picture_is_hidden_from_screen_readers_and_list_is_not(visit, shop) -> None:
    screen = visit(shop, "#/topology", user="anna")
    page = screen.page
    page.locator("svg .box").first.wait_for()
    assert page.locator(".topology svg[aria-hidden=true]").count() == 1
    links = page.locator(".topology svg a")
    assert links.evaluate_all("links => links.length > 10 && links.every(a => a.getAttribute('tabindex') === '-1')")
    page.get_by_role("link", name="List", exact=True).click()
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="orders.eu")).filter(has_text="dead letters")
    row.wait_for()
    row_text = row.inner_text()
    assert re.search(r"orders\s+eu\.#", row_text)
    assert "dead" in row_text


def test_search_shows_matches_and_their_bindings(visit, shop) -> None:
    screen = visit(shop, "#/topology", user="anna")
    screen.page.get_by_role("searchbox").fill("graveyard")
    screen.page.get_by_text("1 queue and 1 exchange").wait_for()
    names = " ".join(screen.page.locator("svg .box").all_text_contents())
    assert "dead" in names
    assert "invoices" not in names
    assert "q=graveyard" in screen.page.url


def test_boxes_name_their_vhost_if_there_are_several(visit, broker) -> None:
    for vhost in ("red", "blue"):
        broker.api("PUT", f"/api/vhosts/{vhost}", {})
        broker.api("PUT", f"/api/queues/{vhost}/orders", {})
    page = visit(broker, "#/topology").page
    for vhost in ("red", "blue"):
        page.locator("svg .box.queue").filter(has_text=f"{vhost} · 0").wait_for()
        page.locator("svg .box.exchange").filter(has_text=f"{vhost} · direct").wait_for()
    page.get_by_label("Virtual host").first.select_option("red")
    page.get_by_text("1 queue and 1 exchange").wait_for()
    assert page.locator("svg .box").filter(has_text="red ·").count() == 0
