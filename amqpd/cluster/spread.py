"""Definitions that come to one node, for all: what is the cluster's first, then to each node what is in its vhosts.

A single node makes all of a document or nothing of it. A cluster does so for each part: users and global parameters,
then each node's vhosts with all that is in them. Where a part is refused those before it stay, and the answer is that
refusal; the same document may be sent again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from amqpd.broker.vhost import vhosts
from amqpd.broker.vhost.pending import finished
from amqpd.management.request import BadRequest, Call, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from amqpd.broker.broker import Broker

CLUSTER_LISTS: Final = ("users", "global_parameters")
Document = dict[str, Any]


def parts(document: Mapping[str, Any]) -> tuple[Document, dict[str, Document]]:
    """What is the cluster's, with all that is no list; and by vhost what belongs to it. Raises: BadRequest."""
    own: Document = {}
    by_vhost: dict[str, Document] = {}
    for name, value in document.items():
        if name in CLUSTER_LISTS or not isinstance(value, list):
            own[name] = value
            continue
        key = "name" if name == "vhosts" else "vhost"
        for item in value:
            vhost = item.get(key) if isinstance(item, dict) else None
            if not isinstance(vhost, str):
                raise BadRequest(f"an item of {name} has no {key}")
            by_vhost.setdefault(vhost, {}).setdefault(name, []).append(item)
    return own, by_vhost


async def make_vhost(broker: Broker, part: Document, name: str) -> None:
    """One that the document brings, and that there is not: its owner takes the rest of its part."""
    item = next(iter(part.get("vhosts", ())), None)
    if item is None or broker.vhosts.exists(name):
        return
    description, kind = item.get("description", ""), item.get("default_queue_type", "classic")
    tags = item.get("tags", [])
    if not isinstance(description, str) or not isinstance(kind, str) or not isinstance(tags, list):
        raise BadRequest(f"vhost '{name}' is not as it has to be")
    kind = "classic" if kind == "undefined" else kind
    await finished(partial(vhosts.declare, broker.vhosts, name, description, [str(tag) for tag in tags], kind))


def together(documents: list[Document]) -> Document:
    """Of several vhosts."""
    found: Document = {}
    for each in documents:
        for name, items in each.items():
            found.setdefault(name, []).extend(items)
    return found


def add_difference(into: Document, other: Document, node: str) -> None:
    """To a dry run of an import the one of another node's part, but for the users, which every part has. Its paths
    begin with the node's name: they count within its part.
    """
    users = other["counts"].pop("users", {})
    told = [each for each in other["changes"] if each["kind"] != "users"]
    of_users = sum(count for what, count in users.items() if what != "same")
    into["changes_left_out"] += other["changes_left_out"] - (of_users - (len(other["changes"]) - len(told)))
    into["changes"] += [{**each, "path": f"{node}: {each['path']}"} for each in told]
    for kind, counts in other["counts"].items():
        mine = into["counts"].setdefault(kind, dict.fromkeys(counts, 0))
        for what, count in counts.items():
            mine[what] += count
    into["possible"] = into["possible"] and other["possible"]
    unknown = [path for path in other["unknown"] if not path.startswith("users[")]
    into["unknown"] += [f"{node}: {path}" for path in unknown]
    into["unknown_count"] += other["unknown_count"] - (len(other["unknown"]) - len(unknown))
    skipped = [each for each in other["skipped"] if not each["path"].startswith("users[")]
    into["skipped"] += [{**each, "path": f"{node}: {each['path']}"} for each in skipped]
    into["skipped_count"] += other["skipped_count"] - (len(other["skipped"]) - len(skipped))


def encoded(document: Document) -> bytes:
    """For another node."""
    return to_json(document).encode()


def with_body(call: Call, document: Document) -> Call:
    """The same request, with this document."""
    other = call.for_part()
    other.part = False
    other.body = document
    return other
