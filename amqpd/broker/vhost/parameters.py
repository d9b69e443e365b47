"""Runtime parameters: named JSON values of a component in a vhost; and global parameters.

`COMPONENTS` has a row for each component; parameters of other components are refused. RabbitMQ treats a disabled
plugin the same way. An operator policy is also a parameter, of component `operator_policy`, as in RabbitMQ's
definitions.

A global parameter is any JSON value under any name. The broker itself uses two: `cluster_name`, shown to clients, and
`internal_cluster_id`, a random name created at the first start, by which tools distinguish clusters.
"""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from amqpd.broker.vhost import limits, policies
from amqpd.broker.vhost.pending import Done, ObjectName, PendingDeclaration, ignore_result
from amqpd.broker.vhost.policy_table import term
from amqpd.broker.vhost.vhost import Namespace, VHost, VhostServices
from amqpd.storage.metadata.rows import Delete, GlobalParameterRow, Put

VALUE_BYTES_MAX: Final = 1 << 20
CLUSTER_NAME: Final = "cluster_name"
IMPORTED_HASH: Final = "imported_definition_hash_value"
CLUSTER_ID: Final = "internal_cluster_id"
OPERATOR_POLICY: Final = "operator_policy"


class InvalidParameter(ValueError):
    """Raised with RabbitMQ's text."""


class NoSuchParameter(LookupError):
    """Raised with RabbitMQ's text `Parameter does not exist`."""

    def __init__(self) -> None:
        super().__init__("Parameter does not exist")


class Parameter(NamedTuple):
    """One parameter. `value` is decoded JSON."""

    vhost: str
    component: str
    name: str
    value: Any


class ParameterComponent(NamedTuple):
    """A component with parameters.

    Attributes:
        values: returns a vhost's parameters, name -> value.
        declare: sets a parameter and returns whether it is new. Raises ValueError with RabbitMQ's text,
            DeclarationPending.
        clear: removes an existing parameter. Raises DeclarationPending.
        administrators: only administrators may change parameters. RabbitMQ also allows policymakers, but these
            parameters limit policymakers too.
        listed: lists of all parameters include the component. Otherwise it appears only when named.
    """

    name: str
    values: Callable[[VHost], Mapping[str, Any]]
    declare: Callable[[Namespace, str, Any, Done], bool]
    clear: Callable[[VHost, str, Done], None]
    administrators: bool = False
    listed: bool = True


# -- policies as parameters -------------------------------------------------------------------------------------------


def _values(operator: bool, vhost: VHost) -> Mapping[str, Any]:
    return {policy.row.name: policy.value for policy in vhost.policies.all(operator)}


def _set_operator_policy(names: Namespace, name: str, value: Any, done: Done) -> bool:
    if not isinstance(value, Mapping):
        raise InvalidParameter(f"Validation failed\n\n{name} not a list {term(value)}\n")
    return policies.declare(names, name, value, True, done)


def _clear_operator_policy(vhost: VHost, name: str, done: Done) -> None:
    policy = vhost.policies.get(name, True)
    if policy is None:
        raise NoSuchParameter
    policies.clear(vhost, policy, done)


def _set_policy(_names: Namespace, _name: str, _value: Any, _done: Done) -> bool:
    raise InvalidParameter("policies may not be set using this method")


def _clear_policy(_vhost: VHost, _name: str, _done: Done) -> None:
    raise InvalidParameter("policies may not be cleared using this method")


COMPONENTS: Final[dict[str, ParameterComponent]] = {
    component.name: component
    for component in (
        ParameterComponent(
            OPERATOR_POLICY, partial(_values, True), _set_operator_policy, _clear_operator_policy, administrators=True
        ),
        ParameterComponent(limits.COMPONENT, limits.values, limits.declare, limits.clear, administrators=True),
        ParameterComponent("policy", partial(_values, False), _set_policy, _clear_policy, listed=False),
    )
}


def component_of(name: str) -> ParameterComponent:
    """Return the component of this name. Raises: InvalidParameter."""
    component = COMPONENTS.get(name)
    if component is None:
        raise InvalidParameter(f"Validation failed\n\ncomponent {name} not found\n")
    return component


def parameters(vhosts: Iterable[VHost], component: str = "") -> list[Parameter]:
    """Return the parameters of these vhosts, of one component or of all listed ones ("")."""
    asked = [each for each in COMPONENTS.values() if each.name == component or (not component and each.listed)]
    return [
        Parameter(vhost.name, each.name, name, value)
        for vhost in vhosts
        for each in asked
        for name, value in each.values(vhost).items()
    ]


def find(vhost: VHost, component: str, name: str) -> Parameter | None:
    """Return the parameter, or None."""
    found = COMPONENTS.get(component)
    values = {} if found is None else found.values(vhost)
    return Parameter(vhost.name, component, name, values[name]) if name in values else None


# -- global -----------------------------------------------------------------------------------------------------------


class GlobalParameters:
    """The committed global parameters of one broker."""

    def __init__(self, catalogue: VhostServices) -> None:
        self._catalogue = catalogue
        self._values: dict[str, Any] = {}

    def load(self, rows: Iterable[GlobalParameterRow]) -> None:
        """Load the rows at a start. Raises: ValueError for a row that no version of amqpd wrote."""
        self._values = {row.name: json.loads(row.value) for row in rows}

    def all(self) -> list[tuple[str, Any]]:
        """Return name and value of all parameters, sorted by name."""
        return sorted(self._values.items())

    def has(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str, default: Any = None) -> Any:
        return self._values.get(name, default)

    def pending_change(self, name: str, value: Any) -> PendingDeclaration:
        """Return the pending change that sets a parameter. Raises: InvalidParameter."""
        if name == CLUSTER_NAME and not (isinstance(value, str) and value):
            raise InvalidParameter(f"{CLUSTER_NAME} should be a name, actually was {term(value)}")
        text = json.dumps(value)
        if len(text) > VALUE_BYTES_MAX:
            raise InvalidParameter(f"a parameter's value has at most {VALUE_BYTES_MAX} bytes")
        row = GlobalParameterRow(name, text)
        return PendingDeclaration(_global(name), Put(row), self._undo(name), partial(self._put, name, value))

    def declare(self, name: str, value: Any, done: Done = ignore_result) -> bool:
        """Set a parameter. Return whether it is new. Raises: InvalidParameter, DeclarationPending."""
        new = name not in self._values
        self._catalogue.declared.commit_and_apply(self.pending_change(name, value), done)
        return new

    def clear(self, name: str, done: Done = ignore_result) -> None:
        """Remove a parameter. Raises: NoSuchParameter, DeclarationPending."""
        if name not in self._values:
            raise NoSuchParameter
        change = Delete(GlobalParameterRow(name, ""))
        self._catalogue.declared.commit_and_apply(
            PendingDeclaration(_global(name), change, self._undo(name), partial(self._drop, name)), done
        )

    def apply_replicated(self, change: Put | Delete) -> None:
        """Apply a row that another node of the cluster committed. Ignore rows of other tables and unchanged ones."""
        row = change.row
        if not isinstance(row, GlobalParameterRow):
            return
        if isinstance(change, Delete):
            if row.name in self._values:
                self._drop(row.name)
            return
        value = json.loads(row.value)
        if row.name not in self._values or self._values[row.name] != value:
            self._put(row.name, value)

    def _undo(self, name: str) -> Put | Delete:
        if name in self._values:
            return Put(GlobalParameterRow(name, json.dumps(self._values[name])))
        return Delete(GlobalParameterRow(name, ""))

    def _put(self, name: str, value: Any) -> None:
        self._values[name] = value
        about = {"component": "global", "name": name, "value": value}
        self._catalogue.events.emit("parameter.set", about)

    def _drop(self, name: str) -> None:
        self._values.pop(name, None)
        self._catalogue.events.emit("parameter.cleared", {"component": "global", "name": name})


def cluster_id_row() -> GlobalParameterRow:
    """Return the row of a new cluster's id. RabbitMQ: this prefix, and 16 random bytes in 22 characters."""
    text = urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
    return GlobalParameterRow(CLUSTER_ID, json.dumps(f"rabbitmq-cluster-id-{text}"))


def _global(name: str) -> ObjectName:
    return ObjectName("", "global parameter", name)
