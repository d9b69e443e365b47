"""Runtime parameters: /parameters of components, per vhost; /global-parameters. In RabbitMQ parameters also make
federation links and shovels; their lists are empty here.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqpd.broker.vhost import parameters
from amqpd.broker.vhost.pending import finished
from amqpd.broker.vhost.parameters import Component, InvalidParameter, Parameter, component_of
from amqpd.management.request import CREATED, NO_CONTENT, BadRequest, Call, NotThere, Reply, Role, clean_name
from amqpd.management.listing import listing, one
from amqpd.management.router import Route


def parameter_item(parameter: Parameter) -> dict[str, Any]:
    """rabbit: in this order."""
    return {
        "value": parameter.value,
        "vhost": parameter.vhost,
        "component": parameter.component,
        "name": parameter.name,
    }


def global_item(named: tuple[str, Any]) -> dict[str, Any]:
    return {"name": named[0], "value": named[1]}


async def get_parameters(call: Call) -> Reply:
    """Runtime parameters, all or of one component."""
    found = parameters.parameters(call.vhosts(), call.params.get("component", ""))
    return await listing(call, found, parameter_item, lambda each: each.name)


async def get_parameter(call: Call) -> Reply:
    """One parameter."""
    return one(call, parameter_item(_found(call)))


async def put_parameter(call: Call) -> Reply:
    """Sets the parameter; 201 for a new one, 204 for another value; 400 for an unknown component, or a wrong value."""
    vhost = call.vhost()
    name = clean_name(call.params["name"], "a parameter")
    value = call.given("value")
    try:
        component = component_of(call.params["component"])
        _check(call, component)
        new = await finished(partial(component.declare, vhost, name, value))
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return CREATED if new else NO_CONTENT


async def delete_parameter(call: Call) -> Reply:
    """Clears the parameter."""
    found = _found(call)
    component = component_of(found.component)
    _check(call, component)
    try:
        await finished(partial(component.clear, call.vhost(), found.name))
    except InvalidParameter as error:
        raise BadRequest(str(error)) from None
    return NO_CONTENT


def _found(call: Call) -> Parameter:
    found = parameters.find(call.vhost(), call.params["component"], call.params["name"])
    if found is None:
        raise NotThere(NotThere.text)
    return found


def _check(call: Call, component: Component) -> None:
    if component.administrators:
        call.require(Role.ADMINISTRATOR)


async def get_global_parameters(call: Call) -> Reply:
    """Global parameters."""
    return await listing(call, call.broker.global_parameters.all(), global_item, lambda named: named[0])


async def get_global_parameter(call: Call) -> Reply:
    """One global parameter."""
    name = call.params["name"]
    _global(call, name)
    return one(call, global_item((name, call.broker.global_parameters.get(name))))


async def put_global_parameter(call: Call) -> Reply:
    """Sets the global parameter."""
    name = clean_name(call.params["name"], "a parameter")
    value = call.given("value")
    try:
        new = await finished(partial(call.broker.global_parameters.declare, name, value))
    except InvalidParameter as error:
        raise BadRequest(str(error)) from None
    return CREATED if new else NO_CONTENT


async def delete_global_parameter(call: Call) -> Reply:
    """Clears the global parameter."""
    name = call.params["name"]
    _global(call, name)
    await finished(partial(call.broker.global_parameters.clear, name))
    return NO_CONTENT


def _global(call: Call, name: str) -> None:
    if not call.broker.global_parameters.has(name):
        raise NotThere(NotThere.text)


async def get_federation_links(call: Call) -> Reply:
    """Federation links, of which there are none."""
    return await _none(call)


async def get_shovels(call: Call) -> Reply:
    """Shovels, of which there are none."""
    return await _none(call)


async def _none(call: Call) -> Reply:
    """The empty list, or page. Raises: as `Call.vhost`."""
    call.vhosts()
    nothing: list[dict[str, Any]] = []
    return await listing(call, nothing, dict, lambda item: str(item["name"]))


_ONE: Final = "api/parameters/{component}/{vhost}/{name}"
_GLOBAL: Final = "api/global-parameters"

ROUTES: Final = (
    Route("GET", "api/parameters", Role.POLICYMAKER, get_parameters),
    Route("GET", "api/parameters/{component}", Role.POLICYMAKER, get_parameters),
    Route("GET", "api/parameters/{component}/{vhost}", Role.POLICYMAKER, get_parameters),
    Route("GET", _ONE, Role.POLICYMAKER, get_parameter),
    Route("PUT", _ONE, Role.POLICYMAKER, put_parameter),
    Route("DELETE", _ONE, Role.POLICYMAKER, delete_parameter),
    Route("GET", _GLOBAL, Role.POLICYMAKER, get_global_parameters),
    Route("GET", f"{_GLOBAL}/{{name}}", Role.POLICYMAKER, get_global_parameter),
    Route("PUT", f"{_GLOBAL}/{{name}}", Role.POLICYMAKER, put_global_parameter),
    Route("DELETE", f"{_GLOBAL}/{{name}}", Role.POLICYMAKER, delete_global_parameter),
    Route("GET", "api/federation-links", Role.MONITORING, get_federation_links),
    Route("GET", "api/federation-links/{vhost}", Role.MONITORING, get_federation_links),
    Route("GET", "api/shovels", Role.MONITORING, get_shovels),
    Route("GET", "api/shovels/{vhost}", Role.MONITORING, get_shovels),
)
