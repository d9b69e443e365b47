"""The node as a whole: who gets in, what is restarted, what does not answer; and upkeep that RabbitMQ needs and this
broker does not, which says so and ends as RabbitMQ's does."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from amqpd.cli.client import quoted
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import SOFTWARE, UNAVAILABLE, Failure, NoSuchVhost, UsageError
from amqpd.cli.users import no_user

OPERATIONS: Final = "Operations"
MONITORING: Final = "Monitoring, observability and health checks"
_UNRESPONSIVE: Final = ("name",)
_UNRESPONSIVE_COLUMNS: Final = ("arguments", "auto_delete", "durable", "name", "type", "vhost")


# -- clients -----------------------------------------------------------------------------------------------------------


def suspend_listeners(context: Context) -> None:
    context.say(
        f"Will suspend client connection listeners on node {context.node}. "
        "The node will no longer accept client connections!"
    )
    context.client.send("POST", "/api/amqpd/suspend_listeners").checked()
    context.done()


def resume_listeners(context: Context) -> None:
    context.say(
        f"Will resume client connection listeners on node {context.node}. "
        "The node will now accept client connections"
    )
    context.client.send("POST", "/api/amqpd/resume_listeners").checked()
    context.done()


def close_all_user_connections(context: Context) -> None:
    user, reason = context.operands
    context.say(f"Closing connections of user {user}, reason: {reason}...")
    context.patient()
    body = {"username": user, "reason": reason}
    context.client.send("POST", "/api/amqpd/close_user_connections", body).checked()
    context.done()


# -- rights ------------------------------------------------------------------------------------------------------------


def list_user_topic_permissions(context: Context) -> None:
    user = context.operands[0]
    context.say(f'Listing topic permissions for user "{user}" ...')
    answer = context.client.send("GET", f"/api/users/{quoted(user)}/topic-permissions")
    rows = answer.checked(no_user(user, UNAVAILABLE)).data
    columns = ("vhost", "exchange", "write", "read")
    if context.line.formatter == "table":  # rabbit: this one list has no header
        context.line.given["no-table-headers"] = ""
    context.show(columns, [[row[name] for name in columns] for row in rows])


def set_permissions_globally(context: Context) -> None:
    """rabbit: of 3.12; in every vhost there is now."""
    user, configure, write, read = context.operands
    context.say(f'Setting permissions for user "{user}" in all virtual hosts ...')
    body = {"configure": configure, "write": write, "read": read}
    for vhost in context.client.get("/api/vhosts?columns=name"):
        path = f"/api/permissions/{quoted(vhost['name'])}/{quoted(user)}"
        context.client.send("PUT", path, body).checked(no_user(user))
    context.done()


# -- what is there -----------------------------------------------------------------------------------------------------


def restart_vhost(context: Context) -> None:
    """A vhost cannot fail by itself here, so it runs already. rabbit: 70 where there is none."""
    about = f"vhost '{context.vhost}' on node '{context.node}'"
    context.say(f"Trying to restart {about} ...")
    answer = context.client.send("GET", f"/api/vhosts/{quoted(context.vhost)}?columns=name")
    answer.checked(Failure(SOFTWARE, f"Failed to start {about}: there is no such vhost"))
    context.done(f"Vhost '{context.vhost}' is already running on node '{context.node}'")


def list_unresponsive_queues(context: Context) -> None:
    """All queues answer as long as the broker does; one whose log has failed takes no message any more."""
    asked = [name for operand in context.operands for name in operand.split(",") if name]
    if unknown := sorted(set(asked) - set(_UNRESPONSIVE_COLUMNS)):
        raise UsageError(f"Info key(s) {','.join(unknown)} are not supported")
    context.line.number("queue-timeout")
    columns = tuple(dict.fromkeys(asked)) or _UNRESPONSIVE
    context.say(f"Listing unresponsive queues for vhost {context.vhost} ...")
    found = context.client.send("GET", "/api/health/checks/alarms")
    if not found.ok and found.status != 503:
        raise found.failure()
    failed = found.data.get("alarms", ()) if isinstance(found.data, dict) else ()
    rows = []
    for each in failed:
        if each.get("vhost") == context.vhost and "queue" in each:
            path = f"/api/queues/{quoted(context.vhost)}/{quoted(each['queue'])}"
            queue = context.client.get(path)
            rows.append([queue.get(name) for name in columns])
    context.show(columns, rows)


def list_policies_that_match(context: Context) -> None:
    """rabbit: of 3.13; the one that holds first. Python's regular expressions look, RE2 decides in the broker."""
    name = context.operands[0]
    kind = context.line.given.get("object-type", "queues")
    if kind not in {"queues", "exchanges"}:
        raise UsageError("Bad argument: the object type is one of queues, exchanges")
    context.say(f"Listing policies that match {kind.removesuffix('s')} '{name}' in vhost '{context.vhost}' ...")
    vhost = quoted(context.vhost)
    answer = context.client.send("GET", f"/api/policies/{vhost}").checked(NoSuchVhost(context.vhost))
    wanted = {"all", kind}
    if kind == "queues":
        queue = context.client.send("GET", f"/api/queues/{vhost}/{quoted(name)}?columns=type")
        types = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
        if queue.ok:
            wanted.add(types.get(queue.data["type"], ""))
    found = [each for each in answer.data if each["apply-to"] in wanted and re.search(each["pattern"], name)]
    found.sort(key=lambda each: -each["priority"])
    columns = ("name", "pattern", "apply-to", "definition", "priority")
    context.show(columns, [[_text(each[key]) for key in columns] for each in found])


def _text(value: Any) -> Any:
    from amqpd.cli.formatters import compact

    return compact(value) if isinstance(value, dict) else value


# -- what need not be done ---------------------------------------------------------------------------------------------


def told(saying: str, message: str, context: Context) -> None:
    """Nothing is done, and nothing has to be."""
    context.say(saying.format(node=context.node))
    context.client.get("/api/amqpd/ping")
    context.done(message)


def empty(saying: str, columns: tuple[str, ...], context: Context) -> None:
    context.say(saying)
    context.client.get("/api/amqpd/ping")
    context.show(columns, [])


def mirrors(saying: str, context: Context) -> None:
    """rabbit: 69 for none; for a queue without mirrors too, but there is nothing to stop of it."""
    context.say(f"{saying} queue '{context.operands[0]}' in vhost '{context.vhost}' ...")
    path = f"/api/queues/{quoted(context.vhost)}/{quoted(context.operands[0])}?columns=name"
    context.client.send("GET", path).checked(Failure(UNAVAILABLE, "not_found"))
    if saying.startswith("Stopping"):
        context.done()
        return
    raise Failure(UNAVAILABLE, "not_mirrored")


def not_found(saying: str, what: str, context: Context) -> None:
    """rabbit: 69 for one that is not there, and none is. Raises: Failure."""
    context.say(f"{saying} {context.operands[0]} ...")
    context.client.get("/api/amqpd/ping")
    raise Failure(UNAVAILABLE, f"{what} was not found on the target node '{context.node}': amqpd runs none")


def always_watched(context: Context) -> None:
    """Raises: Failure: confirms would lie on a full disk."""
    raise Failure(UNAVAILABLE, "the free space is always watched; set_disk_free_limit 0 lets publishers fill the disk")


def _command(
    name: str,
    group: str,
    summary: str,
    run: Callable[[Context], None],
    example: str,
    effect: str,
    *operands: tuple[str, str],
    usage: str = "",
    options: tuple[str, ...] = (),
    needs_app: bool = True,
) -> Command:
    words = " ".join(operand for operand, _ in operands)
    count = len(operands)
    line = f"{usage}{' ' if usage and words else ''}{words}"
    return Command(
        name, group, summary, run, line, count, count, operands, options, (), 0, ((example, effect),), needs_app
    )


_USER: Final = ("<username>", "name of the user")
_QUEUE: Final = ("<queue>", "name of a queue of the vhost")
_VHOST: Final = "[--vhost <vhost>]"
_STORE: Final = "SQLite or the database of metadata.url: the broker does not start without"

COMMANDS: Final = (
    _command(
        "suspend_listeners", OPERATIONS, "Lets no new client connect; those that are connected stay",
        suspend_listeners, "suspend_listeners", "the admin API still listens: resume_listeners takes it back",
        needs_app=False,
    ),
    _command(
        "resume_listeners", OPERATIONS, "Lets clients connect again after suspend_listeners", resume_listeners,
        "resume_listeners", "on the same ports", needs_app=False,
    ),
    _command(
        "close_all_user_connections", OPERATIONS, "Closes the connections of a user",
        close_all_user_connections, "close_all_user_connections alice 'password change'", "code 320, with the reason",
        _USER, ("<explanation>", "why; clients see it with code 320"),
    ),
    _command(
        "force_gc", OPERATIONS, "Frees memory: it is freed as it goes",
        partial(told, "Will ask node {node} to free memory", ""), "force_gc", "0, nothing to do", needs_app=False,
    ),
    _command(
        "list_user_topic_permissions", "Access Control", "Lists user topic permissions", list_user_topic_permissions,
        "list_user_topic_permissions alice", "a row per exchange", _USER, usage="[--no-table-headers]",
        options=("no-table-headers",),
    ),
    _command(
        "set_permissions_globally", "Access Control", "Sets user permissions for all vhosts there are",
        set_permissions_globally, "set_permissions_globally alice '.*' '.*' '.*'", "as set_permissions in each",
        _USER, ("<conf>", "as of set_permissions"), ("<write>", "likewise"), ("<read>", "likewise"),
    ),
    _command(
        "restart_vhost", "Virtual hosts", "Restarts a failed vhost: none fails by itself", restart_vhost,
        "restart_vhost -p shop", "0 if it is there, else 70", usage=_VHOST,
    ),
    Command(
        "list_unresponsive_queues",
        MONITORING,
        "Lists queues whose log has failed, so that they take no message",
        list_unresponsive_queues,
        "[--vhost <vhost>] [--local] [--queue-timeout <milliseconds>] [<column> ...] [--no-table-headers]",
        0,
        None,
        options=("local", "queue-timeout", "no-table-headers"),
        columns=(*_UNRESPONSIVE, *(name for name in _UNRESPONSIVE_COLUMNS if name != "name")),
        shown=1,
        examples=(("list_unresponsive_queues -p shop name type", "none, unless a disk failed"),),
    ),
    _command(
        "list_policies_that_match", "Policies", "Lists the policies whose pattern matches a name",
        list_policies_that_match, "list_policies_that_match -p shop orders", "the first is the one that holds",
        ("<name>", "of a queue or an exchange, which need not be there"), usage=_VHOST, options=("object-type",),
    ),
    _command(
        "list_channel_interceptors", MONITORING, "Lists channel interceptors: amqpd has none",
        partial(empty, "Listing channel interceptors ...", ("name",)), "list_channel_interceptors", "an empty list",
    ),
    _command(
        "sync_queue", "Replication", "Synchronises mirrors of a queue: it has none",
        partial(mirrors, "Synchronising"), "sync_queue orders", "69", _QUEUE, usage=_VHOST,
    ),
    _command(
        "cancel_sync_queue", "Replication", "Stops synchronising mirrors of a queue: it has none",
        partial(mirrors, "Stopping synchronising"), "cancel_sync_queue orders", "0", _QUEUE, usage=_VHOST,
    ),
    _command(
        "shovel_status", OPERATIONS, "Displays shovels: amqpd runs none",
        partial(empty, "Shovel status ...", ("name", "vhost", "type", "state")), "shovel_status", "an empty list",
    ),
    _command(
        "delete_shovel", OPERATIONS, "Deletes a shovel: amqpd runs none",
        partial(not_found, "Deleting shovel", "Shovel with the given name"), "delete_shovel s", "69",
        ("<name>", "of a shovel"), usage=_VHOST,
    ),
    _command(
        "restart_shovel", OPERATIONS, "Restarts a shovel: amqpd runs none",
        partial(not_found, "Restarting dynamic Shovel", "Shovel with the given name"), "restart_shovel s", "69",
        ("<name>", "of a shovel"), usage=_VHOST,
    ),
    _command(
        "federation_status", OPERATIONS, "Displays federation links: amqpd runs none",
        partial(empty, "Listing federation links ...", ("upstream", "status")), "federation_status", "an empty list",
        usage="[--only-down]", options=("only-down",),
    ),
    _command(
        "restart_federation_link", OPERATIONS, "Restarts a federation link: amqpd runs none",
        partial(not_found, "Restarting federation link", "Link with the given ID"), "restart_federation_link id", "69",
        ("<link_id>", "of a federation link"),
    ),
    _command(
        "hipe_compile", OPERATIONS, "Does nothing, as in RabbitMQ",
        partial(told, "This command is a no-op: amqpd's hot modules are compiled when it is built", ""),
        "hipe_compile /tmp/x", "0", ("<directory>", "of no use"), needs_app=False,
    ),
    _command(
        "reset_stats_db", OPERATIONS, "Resets the statistics: they are counted, not kept in a database",
        partial(told, "Resetting statistics of node {node} ...", ""), "reset_stats_db", "0, nothing to do",
        usage="[--all]", options=("all",),
    ),
    _command(
        "activate_free_disk_space_monitoring", OPERATIONS, "Watches the free space of the disk: it always is",
        partial(told, "Activating free disk space monitoring on node {node} ...", ""),
        "activate_free_disk_space_monitoring", "0, nothing to do",
    ),
    _command(
        "deactivate_free_disk_space_monitoring", OPERATIONS, "Refuses to watch the free space of the disk no more",
        always_watched, "deactivate_free_disk_space_monitoring", "69, and what to do instead",
    ),
    _command(
        "metadata_store_status", MONITORING, f"Displays the state of the metadata: {_STORE}",
        partial(told, "Status of the metadata store on node {node} ...", "The metadata store is open"),
        "metadata_store_status", "it is open", needs_app=False,
    ),
    _command(
        "check_if_metadata_store_is_initialized", MONITORING, f"Health check of the metadata: {_STORE}",
        partial(told, "Checking the metadata store on node {node} ...", "Metadata store is initialized"),
        "check_if_metadata_store_is_initialized", "0 once the broker answers", needs_app=False,
    ),
    _command(
        "check_if_metadata_store_is_initialized_with_data", MONITORING,
        "Health check of the metadata, and what is in it: there is a vhost after the first start",
        partial(told, "Checking the metadata store on node {node} ...", "Metadata store is initialized, with data"),
        "check_if_metadata_store_is_initialized_with_data", "0 once the broker answers", needs_app=False,
    ),
)
