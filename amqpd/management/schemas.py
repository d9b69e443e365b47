"""Schemas of OpenAPI 3.0, made from the types in `shapes`."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

_PLAIN: Final[dict[Any, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_PAGED: Final = ("filtered_count", "item_count", "page", "page_count", "page_size", "total_count")
LIST_QUERY: Final = {
    "page": "integer",
    "page_size": "integer",
    "name": "string",
    "use_regex": "boolean",
    "sort": "string",
    "sort_reverse": "boolean",
    "columns": "string",
}


class Schemas:
    """Collects what stands under components/schemas while `of` is asked for one after the other."""

    def __init__(self) -> None:
        self.named: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Raises: TypeError for a type that has no schema here."""
        origin, arguments = get_origin(kind), get_args(kind)
        if kind is Any:
            return {}
        if kind in _PLAIN:
            return {"type": _PLAIN[kind]}
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin in (NotRequired, Required):
            return self.of(arguments[0])
        if origin in (list, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (types.UnionType, Union):
            return self._either(arguments)
        if is_typeddict(kind):
            return self._object(kind)
        raise TypeError(f"no schema for {kind}")

    def answer(self, kind: Any) -> dict[str, Any]:
        """Of a whole answer: a list is an array, and with `page` in the query a page of it."""
        whole = self.of(kind)
        if get_origin(kind) is not list:
            return whole
        page = {name: {"type": "integer"} for name in _PAGED}
        return {"oneOf": [whole, _made({**page, "items": whole}, list(page))]}

    def _either(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        kinds = [self.of(each) for each in arguments if each is not types.NoneType]
        if len(kinds) > 1:
            return {"oneOf": kinds}
        if "$ref" in kinds[0]:
            return {"allOf": kinds, "nullable": True}
        return {**kinds[0], "nullable": True}

    def _object(self, kind: Any) -> dict[str, Any]:
        name = kind.__name__
        if name not in self.named:
            self.named[name] = {}  # one that holds itself ends here
            hints = get_type_hints(kind, include_extras=True)
            required = [field for field, hint in hints.items() if _is_required(kind, field, hint)]
            made = _made({field: self.of(hint) for field, hint in hints.items()}, required)
            said = " ".join((kind.__doc__ or "").split())
            self.named[name] = {"description": said, **made} if said else made
        return {"$ref": f"#/components/schemas/{name}"}


def _is_required(kind: Any, field: str, hint: Any) -> bool:
    """Not by __required_keys__: annotations that are texts hide NotRequired from it."""
    if typing.get_origin(hint) is NotRequired:
        return False
    return bool(kind.__total__)


def _made(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    return {**made, "required": required} if required else made
