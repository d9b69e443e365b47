"""Charts: gaps without samples, the time of the first sample, and a module that cannot be loaded."""

from __future__ import annotations

import re
import time
from typing import Any

AGE_S, STEP_S = 600, 5
# For each column of the chart's picture: whether a curve is drawn there. Axes and grid are grey.
CURVES = """canvas => {
    // Not the axes, whose letters may have coloured edges.
    const over = canvas.parentElement.querySelector(".u-over");
    const {offsetLeft, offsetTop, offsetWidth: width, offsetHeight: height} = over;
    const {data} = canvas.getContext("2d").getImageData(offsetLeft, offsetTop, width, height);
    const found = [];
    for (let x = 0; x < width; x++) {
        let there = false;
        for (let y = 0; y < height && !there; y++) {
            const [red, green, blue] = data.slice(4 * (y * width + x), 4 * (y * width + x) + 3);
            there = Math.max(red, green, blue) - Math.min(red, green, blue) > 60;
        }
        found.push(there);
    }
    return found;
}"""


def set_samples(screen: Any, ages_s: list[int]) -> None:
    """Let the overview have samples of exactly these ages."""

    def answer(route: Any) -> None:
        found = route.fetch().json()
        now = int(time.time() * 1000)
        since = {"recorded_since": now - max(ages_s) * 1000}
        samples = [{"sample": 500, "timestamp": now - age * 1000} for age in ages_s]
        for name, value in found["queue_totals"].items():
            if name.endswith("_details"):
                value |= {"samples": samples, **since}
        for name, value in found["message_stats"].items():
            if name.endswith("_details"):
                value |= {"samples": samples, **since}
        route.fulfill(json=found)

    screen.page.route(re.compile("/api/overview"), answer)


def columns(screen: Any) -> list[bool]:
    """Return the columns of the second chart, with messages in queues."""
    screen.page.locator(".chart canvas").nth(1).wait_for()
    screen.settled()
    found: list[bool] = screen.page.locator(".chart canvas").nth(1).evaluate(CURVES)
    return found


def test_curves_have_gaps_without_samples(visit, shop) -> None:
    screen = visit(shop, "#/", "anna")
    screen.page.get_by_label("Refresh").select_option("0")
    whole = range(0, AGE_S, STEP_S)
    set_samples(screen, list(whole))
    screen.page.reload()
    drawn = columns(screen)
    begin, end = drawn.index(True), len(drawn) - drawn[::-1].index(True)
    assert all(drawn[begin:end])
    screen.page.unroute_all()
    set_samples(screen, [age for age in whole if not 200 < age < 400])
    screen.page.reload()
    drawn = columns(screen)
    width = end - begin
    assert not any(drawn[begin + int(width * 0.4) : begin + int(width * 0.6)])
    assert all(drawn[begin + 3 : begin + int(width * 0.3)])
    assert all(drawn[begin + int(width * 0.7) : end - 3])
    # One missing sample is no gap: samples may be late.
    screen.page.unroute_all()
    set_samples(screen, [age for age in whole if age != 300])
    screen.page.reload()
    assert all(columns(screen)[begin:end])


def test_chart_says_since_when_samples_exist(visit, shop) -> None:
    screen = visit(shop, "#/", "anna")
    set_samples(screen, list(range(0, 120, STEP_S)))
    screen.page.reload()
    chart = screen.page.locator(".chart").nth(1)
    chart.get_by_text(re.compile(r"recorded since \d\d:\d\d:\d\d")).wait_for()
    drawn = columns(screen)
    assert drawn.index(True) > len(drawn) * 0.6  # ten minutes are shown, not stretched


def test_chart_reports_a_module_that_cannot_be_loaded(visit, shop) -> None:
    screen = visit(shop, "#/", "anna")
    screen.page.route(re.compile("uPlot"), lambda route: route.abort())
    screen.page.reload()
    screen.page.locator(".chart").first.get_by_text("cannot be loaded").wait_for()
    assert screen.page.locator(".tile b").count() > 5  # the figures are shown anyway
