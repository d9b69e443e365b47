"""rabbitmq-plugins, for scripts that enable plugins before they use them: what RabbitMQ has as plugins and amqpd has in
it is enabled, always; there is no other, and none can be switched off."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from amqpd import __version__
from amqpd.cli.command import Command, Context
from amqpd.cli.errors import SOFTWARE, UNAVAILABLE, Failure, Refused, UsageError

GROUP: Final = "Plugin Management"
BUILT_IN: Final = {
    "rabbitmq_auth_mechanism_ssl": "Certificates of TLS clients as logins (setting auth.mechanisms)",
    "rabbitmq_consistent_hash_exchange": "Exchanges of type x-consistent-hash and x-modulus-hash",
    "rabbitmq_delayed_message_exchange": "Exchanges of type x-delayed-message",
    "rabbitmq_event_exchange": "The exchange amq.rabbitmq.event (setting event_exchange_vhost)",
    "rabbitmq_jms_topic_exchange": "Exchanges of type x-jms-topic",
    "rabbitmq_management": "The admin API",
    "rabbitmq_management_agent": "The figures of the admin API",
    "rabbitmq_message_deduplication": "Exchanges of type x-message-deduplication",
    "rabbitmq_prometheus": "Metrics in Prometheus' format",
    "rabbitmq_random_exchange": "Exchanges of type x-random and x-local-random",
    "rabbitmq_recent_history_exchange": "Exchanges of type x-recent-history",
}
IMPLICIT: Final = frozenset({"rabbitmq_management_agent"})


def list_plugins(context: Context) -> None:
    given = context.line.given
    pattern = context.operands[0] if context.operands else ".*"
    try:
        matches = re.compile(pattern)
    except re.error as error:
        raise Failure(SOFTWARE, f"{pattern}: {error}") from None  # rabbit: 70
    names = [name for name in sorted(BUILT_IN) if matches.search(name)]
    if "enabled" in given and "implicitly-enabled" not in given:
        names = [name for name in names if name not in IMPLICIT]
    running = "offline" not in given and _runs(context)
    if context.line.formatter in {"json", "erlang"}:
        found = [_item(name, running) for name in names]
        context.answer({"status": "running" if running else "node_down", "format": "normal", "plugins": found}, "")
        return
    context.say(f'Listing plugins with pattern "{pattern}" ...')
    if "minimal" in given:
        context.out.write("".join(f"{name}\n" for name in names))
        return
    status = f"* = running on {context.node}" if running else f"[failed to contact {context.node} - status not shown]"
    context.say(" Configured: E = explicitly enabled; e = implicitly enabled")
    context.say(f" | Status: {status}")
    context.say(" |/")
    wide = max(map(len, names), default=0)
    for name in names:
        mark = f"[{'e' if name in IMPLICIT else 'E'}{'*' if running else ' '}]"
        if "verbose" not in given:
            context.out.write(f"{mark} {name.ljust(wide)} {__version__}\n")
            continue
        context.out.write(f"{mark} {name}\n")
        context.out.write(f"     Version:     \t{__version__}\n     Description: \t{BUILT_IN[name]}\n")


def _runs(context: Context) -> bool:
    """rabbit: a list is shown of a broker that is down too."""
    try:
        context.client.get("/api/amqpd/ping")
    except Refused as error:
        if error.exit_code != UNAVAILABLE:
            raise
        return False
    return True


def _item(name: str, running: bool) -> dict[str, Any]:
    return {
        "enabled": "implicit" if name in IMPLICIT else "enabled",
        "name": name,
        "running": running,
        "running_version": __version__ if running else None,
        "version": __version__,
    }


def is_enabled(context: Context) -> None:
    names = context.operands
    what = f"plugin {names[0]} is" if len(names) == 1 else f"plugins {', '.join(names)} are"
    if "offline" in context.line.given:
        context.say(f"Inferring if {what} from local environment...")
    else:
        context.say(f"Asking node {context.node} if {what} enabled...")
        context.client.get("/api/amqpd/ping")
    missing = [name for name in names if name not in BUILT_IN]
    if missing:
        what = f"Plugin {missing[0]} is" if len(missing) == 1 else f"Plugins {', '.join(missing)} are"
        known = ", ".join(sorted(BUILT_IN))
        raise Failure(
            UNAVAILABLE, f"{what} not enabled on node {context.node}. Enabled plugins and dependencies: {known}"
        )
    context.done(f"{what[0].upper()}{what[1:]} enabled on node {context.node}")


def enable(context: Context) -> None:
    """What is there is enabled. Raises: Failure (70) for one that is not."""
    names = list(BUILT_IN) if "all" in context.line.given else context.operands
    if not names:
        raise UsageError("not enough arguments.")
    _change(context, "Enabling", names)
    _check_known(names)
    _told(context)


def set_plugins(context: Context) -> None:
    """rabbit: the others go. Those of amqpd cannot, and stay."""
    _change(context, "Enabling", context.operands)
    _check_known(context.operands)
    _told(context)


def disable(context: Context) -> None:
    """rabbit: one that is not there is no error. Raises: Failure (69) for one that amqpd cannot do without."""
    names = list(BUILT_IN) if "all" in context.line.given else context.operands
    if not names:
        raise UsageError("not enough arguments.")
    _change(context, "Disabling", names)
    if fixed := [name for name in names if name in BUILT_IN]:
        raise Failure(UNAVAILABLE, f"{', '.join(fixed)}: part of amqpd, and cannot be disabled")
    _told(context)


def _change(context: Context, doing: str, names: Sequence[str]) -> None:
    context.say(f"{doing} plugins on node {context.node}:\n" + "\n".join(names))


def _check_known(names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in BUILT_IN]:
        raise Failure(SOFTWARE, f"plugins_not_found: {', '.join(missing)}. amqpd has: {', '.join(sorted(BUILT_IN))}")


def _told(context: Context) -> None:
    if context.line.formatter in {"json", "erlang"}:
        context.answer({"enabled": sorted(BUILT_IN), "mode": "offline"}, "")
        return
    lines = ["The following plugins have been configured:", *(f"  {name}" for name in sorted(BUILT_IN))]
    context.say("\n".join(lines))
    context.say("Plugin configuration unchanged.")


def directories(context: Context) -> None:
    told = {"plugins_dir": "", "plugins_expand_dir": "", "enabled_plugins_file": ""}
    context.say(f"Listing plugin directories used by node {context.node}")
    context.answer(told, "amqpd has no plugin directories: what it has is part of it")


_NAMES: Final = ("<plugin>", "name of a plugin, as RabbitMQ has it")
_WHERE: Final = ("online", "offline")


def _command(
    name: str,
    summary: str,
    run: Callable[[Context], None],
    example: str,
    effect: str,
    operands: str = "<plugin> [<plugin> ...]",
    least: int = 1,
    most: int | None = None,
    options: tuple[str, ...] = _WHERE,
) -> Command:
    details = (_NAMES,) if most != 0 else ()
    own = "".join(f"[--{option}] " for option in options)
    usage = f"{own}{operands}"
    return Command(name, GROUP, summary, run, usage, least, most, details, options, (), 0, ((example, effect),), False)


COMMANDS: Final = (
    _command(
        "directories", "Displays plugin directories: amqpd has none", directories, "directories",
        "for scripts that look for them", "", 0, 0,
    ),
    _command(
        "disable", "Disables plugins: amqpd's are part of it", disable, "disable rabbitmq_mqtt",
        "0: it is not there; 69 for one that is part of amqpd", "[<plugin> ...]", 0, None, ("all", *_WHERE),
    ),
    _command(
        "enable", "Enables plugins: those amqpd has are enabled", enable, "enable rabbitmq_management",
        "0: they are; 70 for one that amqpd does not have", "[<plugin> ...]", 0, None, ("all", *_WHERE),
    ),
    _command(
        "is_enabled", "Fails if a plugin is not there", is_enabled,
        "is_enabled rabbitmq_management", "0: the admin API is there",
    ),
    _command(
        "list", "Lists what RabbitMQ has as plugins and amqpd has in it", list_plugins, "list -e -m", "their names",
        "[<pattern>]", 0, 1, ("verbose", "minimal", "enabled", "implicitly-enabled", *_WHERE),
    ),
    _command(
        "set", "Enables these plugins; those of amqpd stay enabled", set_plugins, "set rabbitmq_management",
        "0: it is enabled", "[<plugin> ...]", 0, None,
    ),
)
