"""The generated pages and their sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from interop.manual import arguments, commands, errors, export, headers, http, metrics, settings

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/settings.md": settings.text,
    "reference/amqpctl.md": commands.text,
    "reference/http-api.md": http.text,
    "reference/arguments.md": arguments.text,
    "reference/headers.md": headers.text,
    "reference/export.md": export.text,
    "reference/metrics.md": metrics.text,
    "reference/errors.md": errors.text,
}


def write() -> list[str]:
    """Write each page that has changed; return their names."""
    changed = []
    for name, text in PAGES.items():
        path = DOCS / name
        made = text()
        if not path.exists() or path.read_text("utf-8") != made:
            path.parent.mkdir(exist_ok=True)
            path.write_text(made, "utf-8")
            changed.append(name)
    return changed
