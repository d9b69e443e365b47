"""All pages: path, heading and needed user tag."""

from __future__ import annotations

from typing import NamedTuple

from page_shop import part

from amqpd.management.request import Role


class Place(NamedTuple):
    """A page's user tag and heading."""

    role: Role
    heading: str


LISTS = {
    "#/": Place(Role.MANAGEMENT, "Overview"),
    "#/nodes": Place(Role.MONITORING, "Nodes"),
    "#/connections": Place(Role.MANAGEMENT, "Connections"),
    "#/channels": Place(Role.MANAGEMENT, "Channels"),
    "#/queues": Place(Role.MANAGEMENT, "Queues"),
    "#/exchanges": Place(Role.MANAGEMENT, "Exchanges"),
    "#/topology": Place(Role.MANAGEMENT, "Topology"),
    "#/kafka-groups": Place(Role.MONITORING, "Kafka groups"),
    "#/policies": Place(Role.MANAGEMENT, "Policies"),
    "#/vhosts": Place(Role.MANAGEMENT, "Virtual hosts"),
    "#/exports": Place(Role.MANAGEMENT, "Exports"),
    "#/users": Place(Role.ADMINISTRATOR, "Users"),
    "#/definitions": Place(Role.ADMINISTRATOR, "Definitions"),
    "#/audit": Place(Role.ADMINISTRATOR, "Audit log"),
}
"""The pages that the navigation lists."""
THINGS = {
    "#/topology?tab=list": Place(Role.MANAGEMENT, "Topology"),
    "#/queues/%2F/orders.eu": Place(Role.MANAGEMENT, "Queue orders.eu"),
    "#/queues/%2F/invoices?tab=messages": Place(Role.MANAGEMENT, "Queue invoices"),
    "#/queues/%2F/events": Place(Role.MANAGEMENT, "Stream events"),
    "#/exchanges/%2F/orders": Place(Role.MANAGEMENT, "Exchange orders"),
    "#/exchanges/%2F/amq.default": Place(Role.MANAGEMENT, "Exchange (AMQP default)"),
    "#/vhosts/%2F": Place(Role.MANAGEMENT, "Virtual host /"),
    "#/policies?tab=operator": Place(Role.MANAGEMENT, "Policies"),
    "#/kafka-groups/%2F/report": Place(Role.MONITORING, "Kafka group report"),
    "#/users/manny": Place(Role.ADMINISTRATOR, "User manny"),
}
PAGES = {**LISTS, **THINGS}


def pages_of(name: str) -> list[str]:
    """Return the pages of objects with this name in the vhost `hostile`."""
    at = part(name)
    return [f"#/queues/hostile/{at}", f"#/exchanges/hostile/{at}", f"#/vhosts/{at}", f"#/users/{at}"]


BESIDE = """new MutationObserver((_, watch) => {
    if (!document.querySelector("%s")) return;
    window.beside = document.querySelectorAll("%s").length;
    watch.disconnect();
}).observe(document, {childList: true, subtree: true});"""
"""Script for a new page: counts the second selector's elements when the first selector first matches."""
