"""Health checks: exit code 0, or 69 with the reason. Probes and scripts run them, mostly as rabbitmq-diagnostics.

Texts, codes and JSON are rabbitmq-diagnostics 3.10's, measured. Checks about replicas are in `fixed_answers`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from amqpd.cli.command import MONITORING, Context, command
from amqpd.cli.errors import DATA, SOFTWARE, UNAVAILABLE, Failure, UsageError

PURPOSES: Final = {"amqp": "AMQP 0-9-1", "amqp/ssl": "AMQP 0-9-1 over TLS", "http": "HTTP API", "https": "HTTPS API"}
CONNECT_S: Final = 5.0
UNITS: Final = {"days": 1.0, "weeks": 7.0, "months": 30.4375, "years": 365.25}


def check(context: Context, fine: str, wrong: str, about: dict[str, Any] | None = None) -> None:
    """End a check: answer `fine`, or raise Failure if there is a text `wrong`."""
    if not wrong:
        context.answer({"result": "ok", **(about or {})}, fine)
    elif context.line.formatter == "json":
        from amqpd.cli.formatters import compact

        raise _JsonFailure(compact({"result": "error", "message": wrong, **(about or {})}))
    else:
        raise Failure(UNAVAILABLE, wrong)


class _JsonFailure(Failure):
    """JSON of a failed check. rabbit: written to standard error without a prefix."""

    def __init__(self, text: str) -> None:
        super().__init__(UNAVAILABLE, text)

    def shown(self) -> str:
        return self.text


# -- is it there -------------------------------------------------------------------------------------------------------


def app_runs(context: Context) -> bool:
    """Return whether AMQP is served. Raises: as `ApiClient.get`."""
    return bool(context.client.get("/api/amqpd/app")["running"])


_command = partial(command, MONITORING)


@_command(
    "Fails if the broker does not serve AMQP clients",
    examples=(("check_running -t 5", "exit code 69 also between stop_app and start_app"),),
    needs_app=False,
)
def check_running(context: Context) -> None:
    context.info(f"Checking if amqpd is running on node {context.node} ...")
    if not app_runs(context):
        raise Failure(UNAVAILABLE, _not_running(context))
    context.success(f"amqpd on node {context.node} is fully booted and running")


@_command(
    "Displays whether clients can connect",
    examples=(("is_running --formatter json", "the answer is in the key `result`; the exit code is 0 in both cases"),),
    needs_app=False,
)
def is_running(context: Context) -> None:
    """rabbit: exit code 0 in both cases; the answer is the text, or `result` in JSON."""
    context.info(f"Asking node {context.node} for its status ...")
    running = app_runs(context)
    text = f"amqpd on node {context.node} is fully booted and running" if running else _not_running(context)
    context.answer({"result": running, "message": text}, text)


@_command(
    "Displays whether the broker is still starting",
    examples=(("is_booting", "a broker that answers has started"),),
    needs_app=False,
)
def is_booting(context: Context) -> None:
    """Answer no: the admin API listens only after the boot."""
    context.info(f"Asking node {context.node} for its boot status ...")
    context.client.get("/api/amqpd/ping")
    state = "fully booted (check with is_running), stopped or has not started booting yet"
    text = f"amqpd on node {context.node} is {state}"
    context.answer({"result": False, "message": text}, text)


def _not_running(context: Context) -> str:
    return f"amqpd on node {context.node} is not running or has not fully booted yet (check with is_booting)"


@_command(
    "Checks the app and its alarms; deprecated in RabbitMQ",
    examples=(("node_health_check", "exit code 70 if the check fails"),),
)
def node_health_check(context: Context) -> None:
    context.warn("node_health_check is deprecated: check_running, check_local_alarms and others say more.")
    context.info(f"Checking health of node {context.node} ...")
    found = context.client.get("/api/healthchecks/node")
    if found["status"] != "ok":
        raise Failure(SOFTWARE, f"Error: health check failed. Message: {found['reason']}")
    context.success("Health check passed")


# -- alarms ------------------------------------------------------------------------------------------------------------


def alarms_of(context: Context, local: bool) -> list[str]:
    """Return a line for each alarm. local: of the asked node only, not of the other nodes of its cluster."""
    found = context.client.send("GET", f"/api/health/checks/{'local-' if local else ''}alarms")
    if found.ok:
        return []
    if found.status != 503 or not isinstance(found.data, dict) or "alarms" not in found.data:
        raise found.failure()
    return [_alarm(each) for each in found.data["alarms"]]


def _alarm(alarm: dict[str, Any]) -> str:
    if "queue" in alarm:
        return f"The log of queue '{alarm['queue']}' in vhost '{alarm['vhost']}' failed on node {alarm['node']}"
    names = {"memory": "Memory", "disk": "Free disk space"}
    return f"{names.get(alarm['resource'], alarm['resource'])} alarm on node {alarm['node']}"


def _where(context: Context, found: list[str]) -> dict[str, list[str]]:
    """Split alarms of the cluster into those of the asked node and of other nodes."""
    local = alarms_of(context, local=True)
    return {"local": local, "global": [each for each in found if each not in local]}


@_command("Lists the alarms in effect", examples=(("alarms --formatter json", "for programs"),))
def alarms(context: Context) -> None:
    context.info(f"Asking node {context.node} to report any known resource alarms ...")
    found = alarms_of(context, local=False)
    if not found:
        text = f"Node {context.node} reported no alarms, local or clusterwide"
        context.answer({"result": "ok", "node": context.node, "alarms": []}, text)
        return
    message = {"result": "ok", "message": f"Node {context.node} reported alarms"}
    context.answer({**message, **_where(context, found)}, "\n".join(found))


@_command("Fails if there is an alarm", examples=(("check_alarms", "exit code 69 while publishers are blocked"),))
def check_alarms(context: Context) -> None:
    _check_alarms(context, local=False)


@_command(
    "Fails if this node has an alarm",
    examples=(("-q check_local_alarms", "for a probe; on a single node the same as check_alarms"),),
)
def check_local_alarms(context: Context) -> None:
    _check_alarms(context, local=True)


def _check_alarms(context: Context, *, local: bool) -> None:
    context.info(f"Asking node {context.node} to report any local resource alarms ...")
    found = alarms_of(context, local)
    fine = f"Node {context.node} reported no {'local alarms' if local else 'alarms, local or clusterwide'}"
    where: dict[str, Any] = {"local": found} if local else _where(context, found) if found else {}
    check(context, fine, "\n".join(found), where if found else None)


# -- listeners ---------------------------------------------------------------------------------------------------------


def listeners_of(context: Context) -> list[dict[str, Any]]:
    found = context.client.get("/api/amqpd/status?totals=false")["listeners"]
    return [listener_item(one, context.node) for one in found]


def listener_item(one: dict[str, Any], node: str) -> dict[str, Any]:
    """Return a listener of the API with RabbitMQ's names."""
    address, protocol = one["ip_address"], one["protocol"]
    interface = f"[{address}]" if ":" in address else address or "[::]"
    about = {"interface": interface, "node": node, "port": one["port"], "protocol": protocol}
    return {**about, "purpose": PURPOSES.get(protocol, protocol)}


def listener_line(one: dict[str, Any]) -> str:
    return f"Interface: {one['interface']}, port: {one['port']}, protocol: {one['protocol']}, purpose: {one['purpose']}"


@_command(
    "Lists active listeners: interface, port, protocol", examples=(("listeners --formatter json", "for programs"),)
)
def listeners(context: Context) -> None:
    context.info(f"Asking node {context.node} to report its protocol listeners ...")
    found = listeners_of(context)
    answer = {"result": "ok", "node": context.node, "listeners": found}
    context.answer(answer, "\n".join(listener_line(one) for one in found))


@_command(
    "Health check that connects to the port of each listener",
    examples=(("check_port_connectivity", "exit code 69 with the port that does not answer"),),
)
def check_port_connectivity(context: Context) -> None:
    import socket

    context.info(f"Testing TCP connections to all active listeners on node {context.node} ...")
    host = context.client.host
    found = listeners_of(context)
    bad = []
    for one in found:
        address = str(one["interface"]).strip("[]")
        local = host or ("127.0.0.1" if address in {"", "::", "0.0.0.0"} else address)
        try:
            socket.create_connection((local, one["port"]), CONNECT_S).close()
        except OSError:
            bad.append(listener_line(one))
    ports = ", ".join(str(port) for port in sorted(one["port"] for one in found))
    wrong = f"Connection to ports of the following listeners on node {context.node} failed: \n" + "\n".join(bad)
    check(context, f"Successfully connected to ports {ports} on node {context.node}.", wrong if bad else "")


@_command(
    "Fails if no listener uses the port",
    details=(("<port>", "number of a TCP port"),),
    examples=(("check_port_listener 5672", "exit code 0 if AMQP is on its usual port"),),
)
def check_port_listener(context: Context) -> None:
    text = context.operands[0]
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 65536):
        raise UsageError("Bad argument: Argument must be a positive integer", DATA)
    context.info(f"Asking node {context.node} if there's an active listener on port {text} ...")
    ports = sorted(one["port"] for one in listeners_of(context))
    wrong = (
        f"No listener for port {text} is active on node {context.node}. "
        f"Found listeners that use the following ports: {', '.join(str(port) for port in ports)}"
    )
    fine = f"A listener for port {text} is running on node {context.node}."
    check(context, fine, "" if int(text) in ports else wrong, {"port": int(text)})


@_command(
    "Fails if no listener serves the protocol",
    details=(("<protocol>", "amqp, amqps, http, or another protocol that `listeners` shows"),),
    examples=(("check_protocol_listener amqps", "exit code 69 if there is no TLS listener"),),
)
def check_protocol_listener(context: Context) -> None:
    text = context.operands[0]
    context.info(f"Asking node {context.node} if there's an active listener for protocol {text} ...")
    names = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqp10": "amqp", "amqps": "amqp/ssl"}
    wanted = names.get(text.lower(), text.lower())
    protocols = sorted({one["protocol"] for one in listeners_of(context)})
    wrong = (
        f"No listener for protocol {text} is active on node {context.node}. "
        f"Found listeners for the following protocols: {', '.join(protocols)}"
    )
    fine = f"A listener for protocol {wanted} is running on node {context.node}."
    check(context, fine, "" if wanted in protocols else wrong, {"protocol": wanted})


# -- what is inside ----------------------------------------------------------------------------------------------------


@_command(
    "Health check that all vhosts are running",
    examples=(("check_virtual_hosts", "exit code 69 and the names of vhosts that are down"),),
)
def check_virtual_hosts(context: Context) -> None:
    context.info(f"Checking if all vhosts are running on node {context.node} ...")
    found = context.client.send("GET", "/api/health/checks/virtual-hosts")
    down = found.data["virtual-hosts"] if found.status == 503 and isinstance(found.data, dict) else []
    if not down:
        found.checked()
    wrong = f"Some virtual hosts on node {context.node} are down:\n" + "\n".join(down)
    check(context, f"Node {context.node} reported all vhosts as running", wrong if down else "")


@_command(
    "Displays the certificates of listeners that use TLS, and of the authorities they trust",
    examples=(("certificates --formatter json", "subject, issuer, validity"),),
)
def certificates(context: Context) -> None:
    context.info(f"Certificates of node {context.node} ...")
    found = context.client.get("/api/amqpd/certificates")
    lines = []
    for each in found:
        lines += [f"{each['path']}:", *(f"\t{name}: {value}" for name, value in each.items() if name != "path")]
    context.answer(found, "\n".join(lines))


@_command(
    "Fails if a certificate expires soon",
    "[--within <within>] [--unit <unit>] [--timeout <timeout>]",
    examples=(
        (
            "check_certificate_expiration --within 30 --unit days",
            "exit code 69 and the certificates that expire within 30 days",
        ),
    ),
)
def check_certificate_expiration(context: Context) -> None:
    unit = context.line.given.get("unit", "weeks").lower()
    within = context.line.number("within") if "within" in context.line.given else 4
    if unit not in UNITS:
        raise UsageError(f"unit '{unit}' is not supported. Please use one of: {', '.join(UNITS)}")
    context.info(f"Checking certificate expiration on node {context.node} ...")
    import time

    now = time.time()
    until = now + within * UNITS[unit] * 86400
    wrong = "\n".join(
        f"Certificate {each['path']} {'expired' if each['not_after_s'] < now else 'expires'} on {each['not_after']}"
        for each in context.client.get("/api/amqpd/certificates")
        if each["not_after_s"] < until
    )
    check(context, f"No certificates are expiring within {within} {unit}.", wrong)
