"""Commands that exist for RabbitMQ's scripts and test suites.

- Listeners, connections of a user, permissions, restart of a vhost, unresponsive queues, policies by name.
- `tls_versions`, `cipher_suites`, in three formats: OpenSSL's names, Erlang's tuples and maps.
- `eval`: six Erlang expressions that clients' test suites and Puppet send. Each is a call of the admin API, for
  administrators. The text must be equal, white space included; nothing is evaluated. An answer is an Erlang term.
- Feature flags and deprecated features: all features are enabled.
- rabbitmq-plugins: plugins that amqpd has built in are enabled and cannot be disabled; there are no others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from amqpd import __version__
from amqpd.cli.client import ApiAnswer, quoted
from amqpd.cli.command import MONITORING, OPERATIONS, PLUGIN_GROUP, Context, command, named_columns
from amqpd.cli.errors import DATA, SOFTWARE, UNAVAILABLE, USAGE, ApiRefused, Failure, UsageError, VhostNotFound
from amqpd.cli.formatters import compact, json_cell
from amqpd.cli.listings import Listing, list_items, plain, wanted
from amqpd.cli.users import no_user

_UNRESPONSIVE: Final = ("name",)
_UNRESPONSIVE_COLUMNS: Final = ("arguments", "auto_delete", "durable", "name", "type", "vhost")


_USER: Final = ("<username>", "name of the user")
FLAGS: Final = Listing(
    "/api/feature-flags", ("name", "state"), plain("name", "state", "stability", "provided_by", "desc", "doc_url")
)
DEPRECATED: Final = Listing(
    "/api/deprecated-features",
    ("name", "deprecation_phase"),
    plain("name", "deprecation_phase", "state", "desc", "doc_url", "provided_by"),
)
_PLUGINS: Final = (("<plugin>", "name of a plugin of RabbitMQ"),)
_plugin = partial(command, PLUGIN_GROUP, needs_app=False)
_command = partial(command, OPERATIONS)
_flag_command = partial(command, "Feature flags")
_monitoring = partial(command, MONITORING)


@_command(
    "Refuses new connections; open ones stay",
    "",
    examples=(("suspend_listeners", "the admin API still listens, for resume_listeners"),),
    needs_app=False,
)
def suspend_listeners(context: Context) -> None:
    context.info(
        f"Will suspend client connection listeners on node {context.node}. "
        "The node will no longer accept client connections!"
    )
    context.change("POST", "/api/amqpd/suspend_listeners")


@_command(
    "Accepts connections again after suspend_listeners",
    "",
    examples=(("resume_listeners", "on the same ports"),),
    needs_app=False,
)
def resume_listeners(context: Context) -> None:
    context.info(
        f"Will resume client connection listeners on node {context.node}. The node will now accept client connections"
    )
    context.change("POST", "/api/amqpd/resume_listeners")


@_command(
    "Closes the connections of a user",
    "<username> <explanation>",
    (
        _USER,
        ("<explanation>", "reason; clients get it with code 320"),
    ),
    examples=(("close_all_user_connections alice 'password change'", "clients get code 320 with the reason"),),
)
def close_all_user_connections(context: Context) -> None:
    user, reason = context.operands
    context.info(f"Closing connections of user {user}, reason: {reason}...")
    context.no_timeout()
    body = {"username": user, "reason": reason}
    context.change("POST", "/api/amqpd/close_user_connections", body)


# -- rights ------------------------------------------------------------------------------------------------------------


@command(
    "Access Control",
    "Lists user topic permissions",
    "[--no-table-headers] <username>",
    (_USER,),
    examples=(("list_user_topic_permissions alice", "one row per exchange"),),
)
def list_user_topic_permissions(context: Context) -> None:
    user = context.operands[0]
    context.info(f'Listing topic permissions for user "{user}" ...')
    answer = context.client.send("GET", f"/api/users/{quoted(user)}/topic-permissions")
    rows = answer.checked(no_user(user, UNAVAILABLE)).data
    columns = ("vhost", "exchange", "write", "read")
    if context.line.formatter == "table":  # rabbit: this one list has no header
        context.line.given["no-table-headers"] = ""
    context.show(columns, [[row[name] for name in columns] for row in rows])


@command(
    "Access Control",
    "Sets the permissions of a user in all existing vhosts",
    "<username> <conf> <write> <read>",
    (
        _USER,
        ("<conf>", "as in set_permissions"),
        ("<write>", "a regular expression, as for configure"),
        ("<read>", "a regular expression, as for configure"),
    ),
    examples=(("set_permissions_globally alice '.*' '.*' '.*'", "as set_permissions in each vhost"),),
)
def set_permissions_globally(context: Context) -> None:
    """rabbit: of 3.12. Set the permissions in every existing vhost."""
    user, configure, write, read = context.operands
    context.info(f'Setting permissions for user "{user}" in all virtual hosts ...')
    body = {"configure": configure, "write": write, "read": read}
    for vhost in context.client.get("/api/vhosts?columns=name"):
        path = f"/api/permissions/{quoted(vhost['name'])}/{quoted(user)}"
        context.client.send("PUT", path, body).checked(no_user(user))
    context.success()


# -- what is there -----------------------------------------------------------------------------------------------------


@command(
    "Virtual hosts",
    "Restarts a failed vhost: no effect, vhosts of amqpd do not fail alone",
    "[--vhost <vhost>]",
    examples=(("restart_vhost -p shop", "exit code 0 if it exists, else 70"),),
)
def restart_vhost(context: Context) -> None:
    """Check that the vhost exists: here a vhost cannot fail alone. rabbit: 70 if it does not exist."""
    about = f"vhost '{context.vhost}' on node '{context.node}'"
    context.info(f"Trying to restart {about} ...")
    answer = context.client.send("GET", f"/api/vhosts/{quoted(context.vhost)}?columns=name")
    answer.checked(Failure(SOFTWARE, f"Failed to start {about}: there is no such vhost"))
    context.success(f"Vhost '{context.vhost}' is already running on node '{context.node}'")


@_monitoring(
    "Lists queues that accept no messages because their log failed",
    "[--vhost <vhost>] [--local] [--queue-timeout <milliseconds>] [<column> ...] [--no-table-headers]",
    columns=(*_UNRESPONSIVE, *(name for name in _UNRESPONSIVE_COLUMNS if name != "name")),
    shown=1,
    examples=(("list_unresponsive_queues -p shop name type", "an empty list, unless a disk failed"),),
)
def list_unresponsive_queues(context: Context) -> None:
    """List queues whose log failed: they accept no messages. All other queues answer while the broker does."""
    columns = named_columns(_UNRESPONSIVE_COLUMNS, context.operands) or _UNRESPONSIVE
    context.line.number("queue-timeout")
    context.info(f"Listing unresponsive queues for vhost {context.vhost} ...")
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


@command(
    "Policies",
    "Lists the policies whose pattern matches a name",
    "[--vhost <vhost>] <name>",
    (("<name>", "name of a queue or an exchange, which need not exist"),),
    own_options=("object-type",),
    examples=(("list_policies_that_match -p shop orders", "the first policy applies"),),
)
def list_policies_that_match(context: Context) -> None:
    """rabbit: of 3.13. The policy in effect comes first. Python's `re` matches here, RE2 in the broker."""
    name = context.operands[0]
    kind = context.line.given.get("object-type", "queues")
    if kind not in {"queues", "exchanges"}:
        raise UsageError("Bad argument: the object type is one of queues, exchanges")
    context.info(f"Listing policies that match {kind.removesuffix('s')} '{name}' in vhost '{context.vhost}' ...")
    vhost = quoted(context.vhost)
    answer = context.client.send("GET", f"/api/policies/{vhost}").checked(VhostNotFound(context.vhost))
    wanted = {"all", kind}
    if kind == "queues":
        queue = context.client.send("GET", f"/api/queues/{vhost}/{quoted(name)}?columns=type")
        types = {"classic": "classic_queues", "quorum": "quorum_queues", "stream": "streams"}
        if queue.ok:
            wanted.add(types.get(queue.data["type"], ""))
    found = [each for each in answer.data if each["apply-to"] in wanted and re.search(each["pattern"], name)]
    found.sort(key=lambda each: -each["priority"])
    columns = ("name", "pattern", "apply-to", "definition", "priority")
    context.show(columns, [[json_cell(each[key]) for key in columns] for each in found])


FORMS: Final = {"openssl": "OpenSSL", "erlang": "Erlang term", "map": "map"}
_KEYS: Final = ("cipher", "key_exchange", "mac", "prf")


@_monitoring("Lists the TLS versions of listeners", examples=(("tls_versions", "TLS 1.2 and 1.3"),), needs_app=False)
def tls_versions(context: Context) -> None:
    context.info("Listing all TLS versions supported by the broker...")
    found = context.client.get("/api/amqpd/tls")["versions"]
    context.answer({"versions": found}, "\n".join(found))


@_monitoring(
    "Lists the cipher suites of TLS listeners, or all of the library",
    "[--format <openssl | erlang | map>] [--all] [--timeout <timeout>]",
    own_options=("format", "all", "openssl-format"),
    examples=(
        ("cipher_suites", "OpenSSL's names, the preferred one first"),
        ("cipher_suites --format map --all", "in a format of RabbitMQ's configuration"),
    ),
    needs_app=False,
)
def cipher_suites(context: Context) -> None:
    """rabbit: openssl is the default. RabbitMQ's JSON has lists of numbers, this one texts and objects."""
    given = context.line.given
    form = given.get("format", "openssl").lower()
    if "openssl-format" in given:
        form = "openssl"
    if form not in FORMS:
        raise UsageError(f"Bad argument: Format must be one of: {', '.join(FORMS)}", DATA)
    context.info(f"Listing available cipher suites in {FORMS[form]} format")
    found: list[dict[str, Any]] = context.client.get("/api/amqpd/tls")["all_suites" if "all" in given else "suites"]
    if form == "openssl":
        names = [each["name"] for each in found]
        context.answer(names, "\n".join(names))
    elif form == "map":
        lines = [f"#{{{','.join(f'{key} => {each[key]}' for key in _KEYS)}}}" for each in found]
        context.answer([{key: each[key] for key in _KEYS} for each in found], "[\n" + "\n,".join(lines) + "\n]")
    else:
        tuples = [[each[key] for key in ("key_exchange", "cipher", "mac", "prf")] for each in found]
        lines = [f"{{{','.join(each)}}}" for each in tuples]
        context.answer(tuples, "[\n" + "\n,".join(lines) + "\n]")


_BINARY: Final = '<<"([^"\\\\\\x00-\\x1f]*)">>'
_STRING: Final = r'list_to_binary\("([^"\\\x00-\x1f]*)"\)'
_BINARIES: Final = f"\\[((?:{_BINARY}(?:, ?{_BINARY})*)?)\\]"


def _alarm(method: str, context: Context, found: re.Match[str]) -> None:
    _send(context, method, f"alarms/{found[1]}")
    _ok(context)


def _set_channel_max(context: Context, found: re.Match[str]) -> None:
    _send(context, "PUT", "channel_max", {"value": int(found[1])})
    _ok(context)


def _set_loopback_users(context: Context, found: re.Match[str]) -> None:
    _send(context, "PUT", "loopback_users", {"value": re.findall(_BINARY, found[1])})
    _ok(context)


def _get_loopback_users(context: Context, _found: re.Match[str]) -> None:
    users = _send(context, "GET", "loopback_users").data["value"]
    _show_term(context, "[" + ",".join(f'<<"{user}">>' for user in users) + "]", users)


def _check_password(context: Context, found: re.Match[str]) -> None:
    name, password = found.groups()
    body = {"username": name, "password": password}
    if _send(context, "POST", "authenticate_user", body).data["authenticated"]:
        tags = context.client.get(f"/api/users/{quoted(name)}")["tags"]
        term = f'{{ok,{{user,<<"{name}">>,[{",".join(tags)}],[{{rabbit_auth_backend_internal,none}}]}}}}'
        _show_term(context, term, ["ok", ["user", name, tags, [["rabbit_auth_backend_internal", "none"]]]])
    else:
        reason = "user '~s' - invalid credentials"
        term = f'{{refused,<<"{name}">>,"{reason}",[<<"{name}">>]}}'
        _show_term(context, term, ["refused", name, [*reason.encode()], [name]])


def _show_term(context: Context, term: str, value: object) -> None:
    if context.line.formatter == "json":
        context.out.write(compact({"node": context.node, "result": "ok", "value": value}) + "\n")
    else:
        context.out.write(term + "\n")


def _send(context: Context, method: str, path: str, body: object = None) -> ApiAnswer:
    return context.client.send(method, f"/api/amqpd/{path}", body).checked()


def _ok(context: Context) -> None:
    if context.line.formatter == "json":
        context.success()
    else:
        context.out.write("ok\n")


KNOWN: Final[tuple[tuple[str, str, str, Callable[[Context, re.Match[str]], Any]], ...]] = (
    (
        "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).",
        "or disk",
        r"rabbit_alarm:set_alarm\(\{\{resource_limit, (memory|disk), node\(\)\}, \[\]\}\)\.",
        partial(_alarm, "PUT"),
    ),
    (
        "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).",
        "or disk",
        r"rabbit_alarm:clear_alarm\(\{resource_limit, (memory|disk), node\(\)\}\)\.",
        partial(_alarm, "DELETE"),
    ),
    (
        "application:set_env(rabbit, channel_max, 2047).",
        "until the next start",
        r"application:set_env\(rabbit, channel_max, ([0-9]{1,9})\)\.",
        _set_channel_max,
    ),
    (
        'application:set_env(rabbit, loopback_users, [<<"guest">>]).',
        "until the next start",
        rf"application:set_env\(rabbit, loopback_users, {_BINARIES}\)\.",
        _set_loopback_users,
    ),
    (
        "{ok, V} = application:get_env(rabbit, loopback_users), V.",
        "users as Erlang binaries",
        r"\{ok, V\} = application:get_env\(rabbit, loopback_users\), V\.",
        _get_loopback_users,
    ),
    (
        'rabbit_access_control:check_user_pass_login(list_to_binary("guest"), list_to_binary("guest")).',
        "{ok, ...} or {refused, ...}",
        rf"rabbit_access_control:check_user_pass_login\({_STRING}, {_STRING}\)\.",
        _check_password,
    ),
)
"""Example of each expression, its description, its pattern, its function."""


@command(
    OPERATIONS,
    "Runs one of six Erlang expressions from clients' test suites and Puppet, and no others",
    "<expression>",
    (
        ("<expression>", "one of the following; without it, read from standard input"),
        *((example, hint) for example, hint, _, _ in KNOWN),
    ),
    own_name="eval",
    examples=(
        ("eval 'rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []}).'", "same as set_alarm disk"),
        ("eval 'application:set_env(rabbit, loopback_users, []).'", "guest can connect from other machines"),
    ),
    needs=0,
)
def evaluate(context: Context) -> None:
    if context.operands:
        text = context.operands[0]
    else:
        text = "" if context.stdin.isatty() else context.stdin.read().rstrip("\r\n")
    if not context.operands and not text:
        raise Failure(DATA, "Expression to evaluate is not provided via argument or stdin")
    if not text.strip():
        raise UsageError('"Expression must not be blank"')
    _do(context, text)


@command(
    OPERATIONS,
    "Runs an expression of eval in a file",
    "<file>",
    (("<file>", "file with one of the expressions of eval"),),
    own_name="eval_file",
    examples=(("eval_file alarm.erl", "same as eval with the content of the file"),),
)
def evaluate_file(context: Context) -> None:
    import os

    path = context.operands[0]
    if not os.path.exists(path):  # noqa: PTH110 - pathlib is 3 ms of start-up
        raise UsageError(f'"File {path} does not exist"')
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is 3 ms of start-up
            text = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(DATA, f"{path} cannot be read: {error}") from None
    _do(context, text)


def _do(context: Context, text: str) -> None:
    for _, _, pattern, call in KNOWN:
        found = re.fullmatch(pattern, text)
        if found is not None:
            call(context, found)
            return
    known = "".join(f"\n  {example}" for example, *_ in KNOWN)
    raise Failure(UNAVAILABLE, f"amqpctl evaluates no Erlang. It knows only these expressions:{known}")


@_flag_command(
    "Lists feature flags: all are enabled",
    "[<column> ...] [--no-table-headers] [--timeout <timeout>]",
    columns=FLAGS.names(),
    shown=len(FLAGS.default),
    examples=(("list_feature_flags name state stability", "RabbitMQ's names"),),
)
def list_feature_flags(context: Context) -> None:
    list_items(context, FLAGS, "Listing feature flags ...")


@_flag_command(
    "Enables a feature flag or all: no effect, all are enabled",
    "<all | feature_flag>",
    (("<all | feature_flag>", "a name in list_feature_flags; exit code 64 for other names"),),
    examples=(("enable_feature_flag all", "exit code 0, no effect"),),
)
def enable_feature_flag(context: Context) -> None:
    name = context.operands[0]
    if name == "all":
        context.info("Enabling all feature flags ...")
        context.client.get("/api/feature-flags")
    else:
        context.info(f'Enabling feature flag "{name}" ...')
        answer = context.client.send("PUT", f"/api/feature-flags/{quoted(name)}/enable", {})
        if answer.status == 400:
            raise Failure(USAGE, f"This feature flag is not supported by node {context.node}")
        answer.checked()
    context.success()


@_flag_command(
    "Lists deprecated features: always empty, amqpd has none",
    "[<column> ...] [--no-table-headers] [--timeout <timeout>]",
    columns=DEPRECATED.names(),
    shown=len(DEPRECATED.default),
    examples=(("list_deprecated_features name state", "an empty list"),),
)
def list_deprecated_features(context: Context) -> None:
    """rabbit: of 3.13. amqpd has no deprecated features."""
    columns = wanted(DEPRECATED, context.operands)
    context.info("Listing deprecated features ...")
    context.client.get("/api/amqpd/ping")
    context.show(columns, [])


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


@_plugin(
    "Lists plugins of RabbitMQ that are built into amqpd",
    "[--verbose] [--minimal] [--enabled] [--implicitly-enabled] [--online] [--offline] [<pattern>]",
    _PLUGINS,
    own_name="list",
    examples=(("list -e -m", "only names"),),
)
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
    context.info(f'Listing plugins with pattern "{pattern}" ...')
    if "minimal" in given:
        context.out.write("".join(f"{name}\n" for name in names))
        return
    status = f"* = running on {context.node}" if running else f"[failed to contact {context.node} - status not shown]"
    context.info(" Configured: E = explicitly enabled; e = implicitly enabled")
    context.info(f" | Status: {status}")
    context.info(" |/")
    wide = max(map(len, names), default=0)
    for name in names:
        mark = f"[{'e' if name in IMPLICIT else 'E'}{'*' if running else ' '}]"
        if "verbose" not in given:
            context.out.write(f"{mark} {name.ljust(wide)} {__version__}\n")
            continue
        context.out.write(f"{mark} {name}\n")
        context.out.write(f"     Version:     \t{__version__}\n     Description: \t{BUILT_IN[name]}\n")


def _runs(context: Context) -> bool:
    """Return whether the broker runs. rabbit: the list of plugins is shown in both cases."""
    try:
        context.client.get("/api/amqpd/ping")
    except ApiRefused as error:
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


@_plugin(
    "Fails if amqpd does not have a plugin",
    "[--online] [--offline] <plugin> [<plugin> ...]",
    _PLUGINS,
    examples=(("is_enabled rabbitmq_management", "exit code 0, as amqpd has the admin API"),),
)
def is_enabled(context: Context) -> None:
    names = context.operands
    what = f"plugin {names[0]} is" if len(names) == 1 else f"plugins {', '.join(names)} are"
    if "offline" in context.line.given:
        context.info(f"Inferring if {what} from local environment...")
    else:
        context.info(f"Asking node {context.node} if {what} enabled...")
        context.client.get("/api/amqpd/ping")
    missing = [name for name in names if name not in BUILT_IN]
    if missing:
        what = f"Plugin {missing[0]} is" if len(missing) == 1 else f"Plugins {', '.join(missing)} are"
        known = ", ".join(sorted(BUILT_IN))
        raise Failure(
            UNAVAILABLE, f"{what} not enabled on node {context.node}. Enabled plugins and dependencies: {known}"
        )
    context.success(f"{what[0].upper()}{what[1:]} enabled on node {context.node}")


@_plugin(
    "Enables plugins: built-in plugins are always enabled",
    "[--all] [--online] [--offline] [<plugin> ...]",
    _PLUGINS,
    examples=(("enable rabbitmq_management", "exit code 0; 70 for a plugin that amqpd does not have"),),
)
def enable(context: Context) -> None:
    """Check that the plugins are built in. Raises: Failure (70) for others."""
    names = list(BUILT_IN) if "all" in context.line.given else context.operands
    if not names:
        raise UsageError("not enough arguments.")
    _change(context, "Enabling", names)
    _check_known(names)
    _show_configured(context)


@_plugin(
    "Enables these plugins and disables others; built-in plugins stay enabled",
    "[--online] [--offline] [<plugin> ...]",
    _PLUGINS,
    own_name="set",
    examples=(("set rabbitmq_management", "exit code 0: it is enabled"),),
)
def set_plugins(context: Context) -> None:
    """Check that the plugins are built in. rabbit: disables all others; built-in plugins stay enabled."""
    _change(context, "Enabling", context.operands)
    _check_known(context.operands)
    _show_configured(context)


@_plugin(
    "Disables plugins: refused for plugins that are built into amqpd",
    "[--all] [--online] [--offline] [<plugin> ...]",
    _PLUGINS,
    examples=(("disable rabbitmq_mqtt", "exit code 0, as amqpd does not have it; 69 for a built-in plugin"),),
)
def disable(context: Context) -> None:
    """Refuse built-in plugins. rabbit: an unknown one is no error. Raises: Failure (69)."""
    names = list(BUILT_IN) if "all" in context.line.given else context.operands
    if not names:
        raise UsageError("not enough arguments.")
    _change(context, "Disabling", names)
    if fixed := [name for name in names if name in BUILT_IN]:
        raise Failure(UNAVAILABLE, f"{', '.join(fixed)}: built into amqpd, and cannot be disabled")
    _show_configured(context)


def _change(context: Context, doing: str, names: Sequence[str]) -> None:
    context.info(f"{doing} plugins on node {context.node}:\n" + "\n".join(names))


def _check_known(names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in BUILT_IN]:
        raise Failure(SOFTWARE, f"plugins_not_found: {', '.join(missing)}. amqpd has: {', '.join(sorted(BUILT_IN))}")


def _show_configured(context: Context) -> None:
    if context.line.formatter in {"json", "erlang"}:
        context.answer({"enabled": sorted(BUILT_IN), "mode": "offline"}, "")
        return
    lines = ["The following plugins have been configured:", *(f"  {name}" for name in sorted(BUILT_IN))]
    context.info("\n".join(lines))
    context.info("Plugin configuration unchanged.")


@_plugin(
    "Displays plugin directories: always empty, amqpd has none",
    "[--online] [--offline] ",
    examples=(("directories", "empty, for scripts"),),
)
def directories(context: Context) -> None:
    answer = {"plugins_dir": "", "plugins_expand_dir": "", "enabled_plugins_file": ""}
    context.info(f"Listing plugin directories used by node {context.node}")
    context.answer(answer, "amqpd has no plugin directories: its plugins are built in")
