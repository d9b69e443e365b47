"""All conversations, one file per family."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from interop.compare.steps import Conversation


def collected() -> dict[str, Conversation]:
    """Return the conversations by name. Raises: ValueError for a duplicate name."""
    found: dict[str, Conversation] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        for conversation in import_module(f"{__name__}.{path.stem}").CONVERSATIONS:
            if conversation.name in found:
                raise ValueError(f"two conversations are called {conversation.name}")
            found[conversation.name] = conversation
    return found


ALL: Final = collected()
