"""The rules for names find what they are there for."""

from __future__ import annotations

import ast

from names import opaque, opaque_names, shared_names


def test_riddles_are_found() -> None:
    riddles = ("elsewhere", "Opening", "settled", "recovery_told", "ToldLogs", "WholeMessage", "InnerHTTP", "_Told")
    assert [name for name in riddles if not opaque(name)] == []


def test_nouns_are_not() -> None:
    nouns = ("log_opening", "LogOpening", "Retention", "SyncBatch", "queue", "HTTPServer")
    assert [name for name in nouns if opaque(name)] == []


def test_modules_and_classes_are_seen() -> None:
    text = "class Gone: pass\nclass Queue:\n    class Elsewhere: pass\n"
    assert list(opaque_names({"a.keeping": ast.parse(text)})) == ["a.keeping", "a.keeping:Gone", "a.keeping:Elsewhere"]


def test_shared_names_are_seen() -> None:
    tree = ast.parse("class Queue: pass\nclass _Part: pass")
    trees = {"a": tree, "b": tree}
    assert shared_names(trees) == {"Queue": ["a", "b"]}
