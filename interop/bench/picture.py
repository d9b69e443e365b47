"""Pictures: of a run, amqpd's rate as a multiple of the peer's with must and aim; and of curves, a panel each.

The SVG is written directly, so that nothing needs to be installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .report import INTERPRETED, OURS, Outcome, ratio
from .scenarios import RATE, SCENARIOS

LEFT, WIDTH, ROW, TOP = 130, 640, 26, 64
PANEL_WIDTH, PANEL_HEIGHT, PANELS_A_ROW = 230, 150, 4
BAR, MUST, AIM, TEXT, GRID = "#2b6cb0", "#c53030", "#2f855a", "#1a202c", "#cbd5e0"


def draw(outcome: Outcome) -> str:
    """Return an SVG document."""
    rows = []
    for each in SCENARIOS:
        if each.name == "S7":  # a fixed rate is no comparison of rates
            continue
        target = next((target for target in each.targets if target.figure == RATE), None)
        if value := ratio(outcome.runs, each.name, OURS, outcome.peer, RATE):
            rows.append((each.name, value, target))
        if value := ratio(outcome.runs, each.name, INTERPRETED, outcome.peer, RATE):
            rows.append((f"{each.name} interpreted", value, each.interpreted))
    marks = [1.0, *(value for _, value, _ in rows), *(target.aim for _, _, target in rows if target)]
    top_power, low_power = math.ceil(math.log10(max(marks))), math.floor(math.log10(min(marks)))

    def x(value: float) -> float:
        return LEFT + WIDTH * (math.log10(value) - low_power) / max(1, top_power - low_power)

    height = TOP + ROW * len(rows) + 40
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 90}" height="{height}" '
            f'font-family="sans-serif" font-size="13" fill="{TEXT}">'
        ),
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        (
            f'<text x="{LEFT}" y="22" font-size="16">Messages a second: amqpd as a multiple of '
            f"{outcome.versions[outcome.peer]}</text>"
        ),
        f'<text x="{LEFT}" y="42" fill="#4a5568">{outcome.date}, medians of the rounds; red: must, green: aim</text>',
    ]
    for power in range(low_power, top_power + 1):
        for step in (1, 2, 5) if power < top_power else (1,):
            at = x(step * 10.0**power)
            parts.append(f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{height - 30}" stroke="{GRID}"/>')
            parts.append(f'<text x="{at:.1f}" y="{height - 12}" text-anchor="middle">{step * 10.0**power:g}x</text>')
    for index, (name, value, target) in enumerate(rows):
        y = TOP + ROW * index
        start, end = sorted((x(1.0), x(value)))
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        parts.append(f'<rect x="{start:.1f}" y="{y}" width="{max(1.0, end - start):.1f}" height="16" fill="{BAR}"/>')
        label = f"{value:.0f}x" if value >= 10 else f"{value:.1f}x"
        parts.append(f'<text x="{end + 8:.1f}" y="{y + 13}">{label}</text>')
        for factor, colour in ((target.must, MUST), (target.aim, AIM)) if target else ():
            at = x(factor)
            parts.append(
                f'<line x1="{at:.1f}" y1="{y - 3}" x2="{at:.1f}" y2="{y + 19}" stroke="{colour}" stroke-width="3"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_curves(curves: Mapping[str, Sequence[tuple[int, float]]], unit: str) -> str:
    """Return an SVG document with a panel for each curve: its counts on a logarithmic scale, its costs from 0 on."""
    rows = math.ceil(len(curves) / PANELS_A_ROW)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{PANELS_A_ROW * PANEL_WIDTH}" '
            f'height="{rows * PANEL_HEIGHT}" font-family="sans-serif" font-size="11" fill="{TEXT}">'
        ),
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for index, (name, points) in enumerate(curves.items()):
        left, top = index % PANELS_A_ROW * PANEL_WIDTH, index // PANELS_A_ROW * PANEL_HEIGHT
        parts.append(f'<g transform="translate({left + 20},{top + 30})">{_panel(name, points, unit)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(name: str, points: Sequence[tuple[int, float]], unit: str) -> str:
    width, height = PANEL_WIDTH - 50, PANEL_HEIGHT - 65
    most = max(cost for _, cost in points) * 1.25 or 1.0
    low, high = math.log10(points[0][0]), math.log10(points[-1][0])
    scale = width / max(high - low, 1e-9)
    at = [(scale * (math.log10(count) - low), height * (1 - cost / most)) for count, cost in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [
        f'<text y="-12" font-size="13">{name}</text>',
        f'<path d="M0 0V{height}H{width}" fill="none" stroke="{GRID}"/>',
        f'<polyline points="{line}" fill="none" stroke="{BAR}" stroke-width="2"/>',
    ]
    for (x, y), (count, cost) in zip(at, points, strict=True):
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{BAR}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y - 7:.1f}" text-anchor="middle">{cost:.3g}</text>')
        parts.append(f'<text x="{x:.1f}" y="{height + 15}" text-anchor="middle">{_short(count)}</text>')
    return "".join([*parts, f'<text x="{width}" y="-12" text-anchor="end" fill="#4a5568">{unit}</text>'])


def _short(count: int) -> str:
    for size, letter in ((1_000_000, "M"), (1000, "k")):
        if count >= size:
            return f"{count / size:.3g}{letter}"
    return str(count)
