"""Reference of the HTTP API, generated from its routes: HTML at /api/index.html, OpenAPI 3.0 at /api/openapi.json.

The summary of a route is the first sentence of its handler's docstring, else the handler's name. Schemas are
generated from the types in `api_types`. /cli explains how to get rabbitmqadmin, which RabbitMQ's own API offers for
download.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Sequence
from functools import cache, partial
from html import escape
from typing import Any, Final, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from amqpd import __version__
from amqpd.management.api_types import ANSWERS
from amqpd.management.request import ApiRequest, ApiResponse, Role, to_json
from amqpd.management.router import ApiRoute

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
    """The schemas under components/schemas, collected by calls of `of`."""

    def __init__(self) -> None:
        self.named: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type. Raises: TypeError for a type without a schema."""
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
        """Return the schema of an answer. A list is an array, or a page of it with `page` in the query."""
        whole = self.of(kind)
        if get_origin(kind) is not list:
            return whole
        page = {name: {"type": "integer"} for name in _PAGED}
        return {"oneOf": [whole, _object_schema({**page, "items": whole}, list(page))]}

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
            self.named[name] = {}  # ends the recursion of a type that contains itself
            hints = get_type_hints(kind, include_extras=True)
            required = [field for field, hint in hints.items() if _is_required(kind, hint)]
            made = _object_schema({field: self.of(hint) for field, hint in hints.items()}, required)
            description = " ".join((kind.__doc__ or "").split())
            self.named[name] = {"description": description, **made} if description else made
        return {"$ref": f"#/components/schemas/{name}"}


def _is_required(kind: Any, hint: Any) -> bool:
    """Return whether a field is required.

    `__required_keys__` does not work here: annotations that are texts hide NotRequired from it.
    """
    if typing.get_origin(hint) is NotRequired:
        return False
    return bool(kind.__total__)


def _object_schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    return {**made, "required": required} if required else made


HTML: Final = "text/html; charset=utf-8"
POLICY: Final = {"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'"}
ABOUT: Final = (
    "The paths and fields of RabbitMQ's management API. Names in a path are percent-encoded, a slash included: the "
    "vhost / is %2F. Lists take page, page_size (at most 500), name, use_regex, sort, sort_reverse and columns; what "
    "is counted comes with samples for msg_rates_age and msg_rates_incr, lengths_age and lengths_incr, data_rates_age "
    "and data_rates_incr (seconds). Errors are an object with error and reason."
)
_SHELL: Final = '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>\n'
_CLI: Final = """<h1>rabbitmqadmin</h1>
<p>rabbitmqadmin is RabbitMQ's client for this API. It works with amqpd, but it is not part of amqpd and cannot be
downloaded here.</p>
<ul>
<li><code>cargo install rabbitmqadmin</code> installs version 2. RabbitMQ also offers it
<a href="https://www.rabbitmq.com/docs/management-cli">ready to run</a>.</li>
<li>Version 1 is a Python program. It comes with RabbitMQ before 4.3, for example with Debian's package
<code>rabbitmq-server</code>.</li>
</ul>
<p><code>amqpctl</code>, which is installed with amqpd, does more.</p>
</body></html>
"""


def summary(route: ApiRoute) -> str:
    handler = route.handler
    function = handler.func if isinstance(handler, partial) else handler
    text = " ".join((function.__doc__ or "").split("\n\n")[0].split())
    first = re.split(r"(?<=[.;:])\s", text.removeprefix("rabbit: "), maxsplit=1)[0].rstrip(".;:")
    return first or str(getattr(function, "__name__", "")).replace("_", " ").strip()


def kind(route: ApiRoute) -> str:
    """Return the heading of a route in the reference: the first word of its path."""
    words = route.path.removeprefix("api/").split("/")
    return words[1] if words[0] in ("health", "amqpd") and len(words) > 1 else words[0]


def openapi(routes: tuple[ApiRoute, ...]) -> dict[str, Any]:
    """Return the OpenAPI description. Cost: about 10 ms."""
    paths: dict[str, dict[str, Any]] = {}
    schemas = Schemas()
    for route in routes:
        paths.setdefault("/" + route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.0.3",
        "info": {"title": "amqpd admin API", "version": __version__, "description": ABOUT},
        "security": [{"basic": []}],
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": dict(sorted(schemas.named.items())),
        },
        "paths": paths,
    }


def _operation(route: ApiRoute, schemas: Schemas) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", route.path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    kind_of_answer = ANSWERS.get(f"{route.method} /{route.path}")
    operation: dict[str, Any] = {
        "summary": summary(route),
        "tags": [kind(route) or "page"],
        "responses": {"default": {"description": "see the reference of the management API"}},
    }
    if kind_of_answer is not None:
        schema = schemas.answer(kind_of_answer)
        content = {"application/json": {"schema": schema}}
        operation["responses"]["200"] = {"description": summary(route), "content": content}
        if "oneOf" in schema:
            parameters += [{"name": n, "in": "query", "schema": {"type": t}} for n, t in LIST_QUERY.items()]
    if parameters:
        operation["parameters"] = parameters
    if route.method in ("PUT", "POST"):
        sent = "application/x-www-form-urlencoded" if route.login_form else "application/json"
        operation["requestBody"] = {"content": {sent: {"schema": {"type": "object"}}}}
    if route.role == Role.PUBLIC:
        operation["security"] = []
    else:
        operation["description"] = f"Requires the user tag {route.role.name.lower()} or one that includes it."
    return operation


def page(routes: tuple[ApiRoute, ...]) -> str:
    rows = [
        f"<tr><td>{route.method}</td><td><code>/{escape(route.path)}</code></td>"
        f"<td>{'' if route.role == Role.PUBLIC else route.role.name.lower()}</td><td>{escape(summary(route))}</td></tr>"
        for route in sorted(routes, key=lambda route: (route.path.split("/")[:2], route.path, route.method))
    ]
    return (
        _SHELL.format(title="amqpd admin API")
        + f"<h1>amqpd admin API</h1>\n<p>{escape(ABOUT)}</p>\n"
        + '<p>For programs: <a href="/api/openapi.json">openapi.json</a>.</p>\n'
        + "<table><tr><th>method</th><th>path</th><th>user tag</th><th></th></tr>\n"
        + "\n".join(rows)
        + "\n</table></body></html>\n"
    )


async def get_cli(_call: ApiRequest) -> ApiResponse:
    """Show how to get rabbitmqadmin, RabbitMQ's command-line client of this API."""
    return ApiResponse(200, (_SHELL.format(title="rabbitmqadmin") + _CLI).encode(), HTML, POLICY)


async def _redirect(location: str, _call: ApiRequest) -> ApiResponse:
    """Redirect to the current path."""
    return ApiResponse(301, headers={"Location": location})


async def _reference_page(make: Callable[[], bytes], content_type: str, _call: ApiRequest) -> ApiResponse:
    """Return the reference of this API."""
    return ApiResponse(200, make(), content_type, POLICY)


def reference(routes: tuple[ApiRoute, ...]) -> tuple[ApiRoute, ...]:
    """Return the routes that serve the reference of `routes` and of themselves.

    It is generated at the first request.
    """
    described: list[ApiRoute] = []

    @cache
    def html() -> bytes:
        return page(tuple(described)).encode()

    @cache
    def description() -> bytes:
        return to_json(openapi(tuple(described))).encode()

    made = (
        ApiRoute("GET", "api", Role.PUBLIC, partial(_redirect, "/api/index.html")),
        ApiRoute("GET", "doc/stats.html", Role.PUBLIC, partial(_redirect, "/api/index.html")),
        ApiRoute("GET", "cli", Role.PUBLIC, partial(_redirect, "/cli/index.html")),
        ApiRoute("GET", "cli/index.html", Role.PUBLIC, get_cli),
        ApiRoute("GET", "cli/rabbitmqadmin", Role.PUBLIC, get_cli),
        ApiRoute("GET", "api/index.html", Role.PUBLIC, partial(_reference_page, html, HTML)),
        ApiRoute("GET", "api/openapi.json", Role.PUBLIC, partial(_reference_page, description, "application/json")),
    )
    described += (*routes, *made)
    return made
