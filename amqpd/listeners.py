"""Addresses that the server listens on: from `amqp.host` and a port to sockets.

An empty host is every interface, by one socket per family: IPv4, and IPv6 alone (V6ONLY) where the kernel has it, both
on the same port, also where port 0 asks for any free one. So `localhost` reaches the broker whatever it resolves to
first, a peer's address has one shape, and a kernel without IPv6 is no trouble.
"""

from __future__ import annotations

import errno
import socket
from typing import Final, NamedTuple

from amqpd import process

ANY: Final = "0.0.0.0"
ANY_IPV6: Final = "::"
# The kernel says where a free port is for one family; somebody may have it for the other.
TRIES: Final = 32
# What a kernel says that has no IPv6, or has it switched off.
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


class Listener(NamedTuple):
    """Something that is listened on. protocol: `amqp`, `amqps`, `http`, a guest's own, or `unix` with the socket's path
    as its host and no port, which is 0.
    """

    protocol: str
    host: str
    port: int

    def __str__(self) -> str:
        """As the ready line has it."""
        return f"{self.protocol} {shown(self.host)}:{self.port}"


def shown(host: str) -> str:
    """As it stands before a colon and a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets whose addresses are taken, so that port 0 is known before anything is served.

    One per address of a host with commas, for an empty host one per family that the kernel has. Raises: OSError with
    host and port in its text; no socket is left then.
    """
    if "," in host:
        return _bound_addresses([each.strip() for each in host.split(",")], port)
    if host:
        return [bound_socket(host, port)]
    for _ in range(TRIES):
        first = bound_socket(ANY, port)
        try:
            return [first, bound_socket(ANY_IPV6, first.getsockname()[1], only_ipv6=True)]
        except OSError as error:
            if error.errno in _NO_IPV6:
                return [first]
            first.close()
            if port or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"found no port that is free for IPv4 and IPv6, in {TRIES} tries")


def _bound_addresses(hosts: list[str], port: int) -> list[socket.socket]:
    """A port that is free for the first address and not for another is an error, port 0 too."""
    found: list[socket.socket] = []
    try:
        for host in hosts:
            found.append(bound_socket(host, found[0].getsockname()[1] if found else port, ":" in host))
    except OSError:
        for sock in found:
            sock.close()
        raise
    return found


def bound_socket(host: str, port: int, only_ipv6: bool = False) -> socket.socket:
    """One of them. `::` without `only_ipv6` takes both families. Raises: OSError with host and port in its text."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock: socket.socket | None = None
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_ipv6)
        sock.bind((socket.gethostbyname(host) if family == socket.AF_INET else host, port))
        sock.listen(process.backlog())
        sock.setblocking(False)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise OSError(error.errno, f"cannot listen on {shown(host)}:{port}: {error.strerror}") from error
    return sock
