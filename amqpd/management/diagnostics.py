"""What the process runs with: its settings, variables, command line, names and memory. For `amqpctl environment`,
`os_env`, `command_line_arguments`, `resolve_hostname` and `memory_breakdown`."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
import ssl
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from amqpd.management.request import BadRequest, Call, NotThere, Reply, Role, reply
from amqpd.management.router import Route
from amqpd.config import rows, value_of
from amqpd.config.help import MASK, masked, shown
from amqpd.tls import choose_ciphers

FAMILIES: Final = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6, "any": socket.AF_UNSPEC}
RESOLVE_S: Final = 10.0
_SIOCGIFADDR: Final = 0x8915
_STATUS: Final = Path("/proc/self/status")
_SECRET: Final = re.compile(r"PASS|SECRET|COOKIE|TOKEN|__URL$", re.IGNORECASE)
_IN_URI: Final = re.compile(r"(://[^:/@\s]*:)[^/@\s]*@")


async def environment(call: Call) -> Reply:
    """Every setting as this process has it; secrets are hidden."""
    found: dict[str, Any] = {}
    for row in rows():
        value = value_of(call.server.latest if row.reloaded else call.broker.settings, row.name)
        if row.secret:
            found[row.name] = masked(row.name, shown(value))
        else:
            found[row.name] = value if isinstance(value, bool | int | float) else shown(value)
    return reply(found)


async def os_environment(call: Call) -> Reply:
    """The variables that configure a broker, `AMQPD_*` and `RABBITMQ_*`; secrets are hidden."""
    found = {
        name: MASK if _SECRET.search(name) and value else value
        for name, value in sorted(os.environ.items())
        if name.startswith(("AMQPD_", "RABBITMQ_"))
    }
    return reply(found)


async def command_line(call: Call) -> Reply:
    """Command line of the broker's process; what hides in options of passwords and URLs is hidden."""
    found: list[str] = []
    for argument in sys.argv:
        name, equals, value = argument.partition("=")
        follows = bool(found) and "=" not in found[-1] and _is_secret(found[-1])
        if follows or (equals and _is_secret(name)):
            argument = MASK if follows else f"{name}={MASK if value else ''}"
        found.append(_IN_URI.sub(rf"\1{MASK}@", argument))
    return reply(found)


def _is_secret(option: str) -> bool:
    return option in {row.option for row in rows() if row.secret}


async def resolve(call: Call) -> Reply:
    """The addresses of `host` as this machine sees them, in `family` (ipv4, ipv6, any)."""
    host, family = call.query.get("host", ""), call.query.get("family", "ipv4").lower()
    if not host or family not in FAMILIES:
        raise BadRequest(f"host is needed, and a family of {', '.join(FAMILIES)}")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await loop.getaddrinfo(host, None, family=FAMILIES[family], type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise NotThere(f"Hostname does not resolve ({error})") from None
    return reply(list(dict.fromkeys(str(each[4][0]) for each in found)))


async def interfaces(call: Call) -> Reply:
    """Network interfaces of the machine, by name.
    Hardware address, flags that are set, addresses. Linux tells most of it in /sys."""
    found: dict[str, Any] = {}
    for _, name in socket.if_nameindex():
        about = Path("/sys/class/net", name)
        found[name] = {
            "hwaddr": _read(about / "address"),
            "mtu": _read(about / "mtu"),
            "flags": _read(about / "operstate"),
            "addr": _addresses(name),
        }
    return reply(found)


def _read(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except OSError:
        return ""


def _addresses(name: str) -> list[str]:
    """The interface's own: IPv4 from the kernel's answer to SIOCGIFADDR, IPv6 from /proc/net/if_inet6."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            addresses.append(socket.inet_ntoa(answer[20:24]))
        except OSError:  # it has none
            pass
    for line in _read(Path("/proc/net/if_inet6")).splitlines():
        words = line.split()
        if words[-1] == name:
            addresses.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    return addresses


async def tls(call: Call) -> Reply:
    """What a TLS listener for AMQP offers: by OpenSSL, the broker's own rule of 1.2 and more, and amqp.tls.ciphers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    choose_ciphers(context, call.broker.settings.amqp.tls.ciphers, "amqp.tls.ciphers")
    newest, oldest = context.maximum_version, context.minimum_version
    spoken = (("tlsv1.3", newest != ssl.TLSVersion.TLSv1_2), ("tlsv1.2", oldest != ssl.TLSVersion.TLSv1_3))
    versions = [name for name, there in spoken if there]
    # OpenSSL names suites of a version that is not spoken, too. Those of before 1.3 have names of older protocols.
    version_of = {True: "tlsv1.3", False: "tlsv1.2"}
    suites = [
        _suite(each) for each in context.get_ciphers() if version_of[each["protocol"] == "TLSv1.3"] in versions
    ]
    context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    every = [_suite(each) for each in context.get_ciphers()]
    return reply(
        {"versions": versions, "ciphers": [each["name"] for each in suites], "suites": suites, "all_suites": every}
    )


def _suite(about: Mapping[str, Any]) -> dict[str, str]:
    """One of OpenSSL's cipher suites by its name, and by its parts as Erlang calls them."""
    exchange, login = (str(about[key]).partition("-")[2].replace("-", "_") for key in ("kea", "auth"))
    ends = about["name"].rpartition("SHA")[2] if "SHA" in about["name"] else ""
    return {
        "name": about["name"],
        "cipher": str(about["symmetric"] or "null").replace("-", "_"),
        "key_exchange": exchange if exchange in ("any", "rsa", "psk", "srp") else f"{exchange}_{login}",
        "mac": "aead" if about["aead"] else str(about["digest"] or "null"),
        "prf": f"sha{ends}" if ends in ("256", "384") else "default_prf",
    }


async def memory(call: Call) -> Reply:
    """Resident memory, by what it is used for."""
    found = memory_by_use(call)
    return reply({**found, "total": {"rss": sum(found.values())}, "strategy": "rss"})


def memory_by_use(call: Call) -> dict[str, int]:
    """Resident bytes by what they are for: program files, message bodies on their way in, and all else.

    rabbit: its names of the categories that have a meaning here.
    """
    sizes = {
        name: int(text.split()[0]) * 1024
        for name, _, text in (line.partition(":") for line in _read(_STATUS).splitlines())
        if name in {"RssAnon", "RssFile", "RssShmem"}
    }
    total, code = sum(sizes.values()), sizes.get("RssFile", 0)
    readers = min(call.broker.unfinished_bodies.kept_bytes, total - code)
    return {"connection_readers": readers, "code": code, "other_proc": total - code - readers}


ROUTES: Final = (
    Route("GET", "api/amqpd/environment", Role.ADMINISTRATOR, environment),
    Route("GET", "api/amqpd/os_env", Role.ADMINISTRATOR, os_environment),
    Route("GET", "api/amqpd/command_line", Role.ADMINISTRATOR, command_line),
    Route("GET", "api/amqpd/resolve", Role.ADMINISTRATOR, resolve),
    Route("GET", "api/amqpd/interfaces", Role.MONITORING, interfaces),
    Route("GET", "api/amqpd/tls", Role.MONITORING, tls),
    Route("GET", "api/amqpd/memory", Role.MONITORING, memory),
)
