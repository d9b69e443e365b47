"""All conversations, a file for each family of them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final

from interop.compare.steps import Conversation


def collected() -> dict[str, Conversation]:
    """By name. Raises: ValueError when two have the same."""
    found: dict[str, Conversation] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        for conversation in import_module(f"{__name__}.{path.stem}").CONVERSATIONS:
            if conversation.name in found:
                raise ValueError(f"two conversations are called {conversation.name}")
            found[conversation.name] = conversation
    return found


ALL: Final = collected()
