"""The sources as test_architecture.py sees them: modules, imports, settings that they read, sizes.

It reads the sources of the repository, not the installed package. Every import counts, also one inside a function or
for type checkers only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from amqpd.config import rows

ROOT = Path(__file__).parents[2]
BESIDE = ("routing", "storage", "cli")
"""Folders beside `amqpd/` whose packages are `amqpd.routing`, `amqpd.storage`, `amqpd.cli`."""

MODULES_MAX = 435
FILE_LINES_MAX, FUNCTION_LINES_MAX, METHODS_MAX, ATTRIBUTES_MAX = 1000, 80, 60, 45


class Import(NamedTuple):
    """One imported module. `typing_only`: the import is under `if TYPE_CHECKING`."""

    importer: str
    module: str
    line: int
    typing_only: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.module}"


@cache
def sources() -> dict[str, Path]:
    """Every module of the package, by its dotted name."""
    found: dict[str, Path] = {}
    for folder in ("amqpd", *BESIDE):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts).removesuffix(".__init__")
            found[name if folder == "amqpd" else f"amqpd.{name}"] = path
    return found


@cache
def parse(source: str) -> ast.Module:
    return ast.parse(source)


@cache
def tree_of(module: str) -> ast.Module:
    return parse(sources()[module].read_text("utf-8"))


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """All nodes of a module: several tests walk over the same trees, and a walk takes longer than parsing."""
    return list(ast.walk(tree))


def _last_name(node: ast.AST | None) -> str:
    """Return `c` for `a.b.c`, and an empty string for all that is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def imports_in(importer: str, is_package: bool, tree: ast.Module, known: set[str]) -> list[Import]:
    """Imports of one module. `from a import b` is `a.b` where that is a module of ours, else `a`."""
    found: list[Import] = []
    conditions = [node for node in nodes(tree) if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING"]
    in_types = {id(each) for node in conditions for child in node.body for each in ast.walk(child)}
    for node in nodes(tree):
        typing_only = id(node) in in_types
        if isinstance(node, ast.Import):
            found += [Import(importer, alias.name, node.lineno, typing_only) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = importer.split(".")
            if node.level:
                base = base[: len(base) - node.level + is_package]
                package = ".".join([*base, *([node.module] if node.module else [])])
            else:
                package = node.module or ""
            for alias in node.names:
                whole = f"{package}.{alias.name}"
                name = whole if whole in known or package in {"urllib", "concurrent"} else package
                found.append(Import(importer, name, node.lineno, typing_only))
        elif isinstance(node, ast.Call) and _last_name(node.func) in {"import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                found.append(Import(importer, first.value, node.lineno, typing_only))
    return found


@cache
def all_imports() -> tuple[Import, ...]:
    known = set(sources())
    return tuple(
        one
        for module, path in sources().items()
        for one in imports_in(module, path.name == "__init__.py", tree_of(module), known)
    )


def package_of(module: str) -> str:
    """Return the package that a module lies in; a package lies in itself."""
    return module if sources()[module].name == "__init__.py" else module.rpartition(".")[0]


def within(module: str, *names: str) -> bool:
    """Return whether a module is one of `names` or lies in one of them."""
    return any(module == name or module.startswith(name + ".") for name in names)


def settings_read(tree: ast.Module) -> set[str]:
    """`section.name` of all that may be a reading of a setting: `settings.amqp.port` is `amqp.port`."""
    sections = {row.name.split(".")[-2] for row in rows() if "." in row.name} | {"settings"}
    by_class = {"Settings" if section == "settings" else f"{section.title()}Settings": section for section in sections}
    names: dict[str, set[str]] = {section: {section} for section in sections}
    for node in nodes(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            found = {_last_name(node.value).lstrip("_")}
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        elif isinstance(node, ast.arg) and node.annotation is not None:
            classes = ast.unparse(node.annotation).strip("'\"").split(" | ")
            found = {by_class.get(each, "") for each in classes}
            targets = [ast.Name(node.arg)]
        else:
            continue
        for target in targets:
            names.setdefault(_last_name(target).lstrip("_"), set()).update(found & sections)
    return {
        f"{section}.{node.attr}"
        for node in nodes(tree)
        if isinstance(node, ast.Attribute)
        for section in names.get(_last_name(node.value).lstrip("_"), ())
    }


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Modules that import each other, directly or by way of others: Tarjan's strongly connected components."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        path.append(module)
        for other in sorted(edges.get(module, ())):
            if other not in order:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in path:
                low[module] = min(low[module], order[other])
        if low[module] == order[module]:
            circle = path[path.index(module) :]
            del path[path.index(module) :]
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in sorted(edges):
        if module not in order:
            visit(module)
    return found


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that the methods of a class assign to `self`."""
    targets = [
        target
        for each in ast.walk(node)
        if isinstance(each, ast.Assign | ast.AnnAssign)
        for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
    ]
    return {
        each.attr
        for each in targets
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
    }


def too_large(module: str, lines: int, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, what is too large) of a file, its functions and its classes."""
    if lines > FILE_LINES_MAX:
        yield module, f"{lines} lines"
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                yield f"{module}:{node.name}", f"{size} lines"
        elif isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
            if methods > METHODS_MAX:
                yield f"{module}:{node.name}", f"{methods} methods"
            if (count := len(attributes(node))) > ATTRIBUTES_MAX:
                yield f"{module}:{node.name}", f"{count} attributes"
