"""Policies that ask for mirrors of classic queues (`ha-mode` and the like), which RabbitMQ 4 does not take any more.

amqpd takes them and has no mirrors: they change nothing. These commands, of 3.13, find them and take them away before a
definitions file goes on to a RabbitMQ that refuses them.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import UNAVAILABLE, Failure
from amqpd.cli.formatters import compact

MONITORING: Final = "Monitoring, observability and health checks"
COLUMNS: Final = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
KINDS: Final = {"policies": "Policy", "operator-policies": "Operator policy"}


def mirroring(context: Context, kind: str) -> list[dict[str, Any]]:
    """Those of all vhosts. kind: of KINDS."""
    found: list[dict[str, Any]] = context.client.get(f"/api/{kind}")
    return [each for each in found if any(key.startswith("ha-") for key in each["definition"])]


def check(context: Context) -> None:
    context.say("Checking if cluster has any classic queue mirroring policy ...")
    found = {kind: mirroring(context, kind) for kind in KINDS}
    if not any(found.values()):
        context.answer({"result": "ok"}, "Cluster reported no policies enabling classic queue mirroring")
        return
    if context.line.formatter == "json":
        told = {
            "result": "error",
            "policies": found["policies"],
            "operator_policies": found["operator-policies"],
            "message": "Cluster reported policies enabling classic queue mirroring",
        }
        context.out.write(compact(told) + "\n")
    lines = [
        f"{title} {each['name']} enables classic queue mirroring"
        for kind, title in KINDS.items()
        for each in found[kind]
    ]
    raise Failure(UNAVAILABLE, "\n".join(lines))


def show(kind: str, context: Context) -> None:
    context.say(f"Listing {kind.replace('-', ' ')} with classic queue mirroring ...")
    rows = [
        [compact(each[name]) if name == "definition" else each[name] for name in COLUMNS]
        for each in mirroring(context, kind)
    ]
    context.show(COLUMNS, rows)


def remove(context: Context) -> None:
    """Takes the keys away; a policy that has no other goes. Raises: as `Client.send`."""
    context.say("Removing classic queue mirroring from policies ...")
    for kind, title in KINDS.items():
        for each in mirroring(context, kind):
            path = f"/api/{kind}/{quoted(each['vhost'])}/{quoted(each['name'])}"
            left = {key: value for key, value in each["definition"].items() if not key.startswith("ha-")}
            if left:
                body = {key: each[key] for key in ("pattern", "apply-to", "priority")} | {"definition": left}
                context.client.send("PUT", path, body).checked()
            else:
                context.client.send("DELETE", path).checked()
            context.say(f"{title} {each['name']} of vhost '{each['vhost']}' {'changed' if left else 'removed'}")
    context.done()


def _listing(kind: str) -> Command:
    name = f"list_{kind.replace('-', '_')}_with_classic_queue_mirroring"
    return Command(
        name,
        MONITORING,
        f"Lists {kind.replace('-', ' ')} that ask for mirrors of classic queues, which amqpd does not make",
        partial(show, kind),
        "[--no-table-headers] [--timeout <timeout>]",
        options=("no-table-headers",),
        examples=((name, "of all virtual hosts"),),
    )


COMMANDS: Final = (
    Command(
        "check_if_cluster_has_classic_queue_mirroring_policy",
        MONITORING,
        "Fails if a policy asks for mirrors of classic queues",
        check,
        "[--timeout <timeout>]",
        examples=(("check_if_cluster_has_classic_queue_mirroring_policy", "69, and which"),),
    ),
    *(_listing(kind) for kind in KINDS),
    Command(
        "remove_classic_queue_mirroring_from_policies",
        "Policies",
        "Takes ha-mode and the like out of all policies; one that has nothing else is removed",
        remove,
        "[--timeout <timeout>]",
        examples=(("remove_classic_queue_mirroring_from_policies", "before an upgrade to RabbitMQ 4"),),
    ),
)
