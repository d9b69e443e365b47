"""Hosts for tests: network namespaces on one bridge, made and removed by the test that uses them. As root only.

    with Network(3) as network:
        network.hosts[0].prefix      # before a command: it runs on that host
        network.hosts[0].unplug()    # nothing comes in or goes out any more
        network.hosts[0].plug()
        network.hosts[0].drop_from(network.hosts[1].address)     # what comes from there is lost; what goes there is not
        network.hosts[0].drop_to(network.hosts[1].address)
        network.hosts[0].heal()

This process stands on the bridge itself, with the first address. What comes from here stays on this machine: the bridge
has no way out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_NETWORK = "10.213.{}"
_TABLE = "amqpd"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=30)


@dataclass(frozen=True)
class Host:
    """A place where a program runs. name: of its namespace, "" for this machine's own network."""

    name: str
    address: str
    plug_name: str = ""

    @property
    def prefix(self) -> list[str]:
        """What stands before a command that shall run there."""
        return ["ip", "netns", "exec", self.name] if self.name else []

    def unplug(self) -> None:
        """Cuts it off: what is sent is lost, nobody is told."""
        _ip("link", "set", self.plug_name, "down")

    def plug(self) -> None:
        """Undoes that."""
        _ip("link", "set", self.plug_name, "up")

    def drop_from(self, *addresses: str) -> None:
        """What comes from there is lost; nobody is told. Needs nft."""
        self._drop("input", "saddr", addresses)

    def drop_to(self, *addresses: str) -> None:
        """What goes there is lost; nobody is told. Needs nft."""
        self._drop("output", "daddr", addresses)

    def heal(self) -> None:
        """Undoes both."""
        self._nft(f"add table inet {_TABLE}", f"delete table inet {_TABLE}")

    def _drop(self, hook: str, which: str, addresses: tuple[str, ...]) -> None:
        rules = [f"add rule inet {_TABLE} {hook} ip {which} {address} drop" for address in addresses]
        chain = f"add chain inet {_TABLE} {hook} {{ type filter hook {hook} priority 0; }}"
        self._nft(f"add table inet {_TABLE}", chain, *rules)

    def _nft(self, *commands: str) -> None:
        subprocess.run(
            [*self.prefix, "nft", "-f", "-"],
            input="\n".join(commands) + "\n",
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        )


def missing() -> str:
    """Why there can be no such hosts here; "": there can."""
    if os.geteuid() != 0:
        return "network namespaces are root's"
    if shutil.which("ip") is None:
        return "no ip: apt install iproute2"
    if shutil.which("nft") is None:
        return "no nft: apt install nftables"
    name = f"amqpd-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces: {error.stderr.strip()}"
    return ""


class Network:
    """A bridge and its hosts. number: 0 to 7, so that two networks of one run are apart, and those of two runs."""

    def __init__(self, count: int, number: int = 0) -> None:
        self._mark = f"{os.getpid() % 100000}{chr(ord('a') + number % 26)}"
        self._bridge = f"amqb{self._mark}"
        self._base = _NETWORK.format((os.getpid() * 8 + number) % 256)
        self.address = f"{self._base}.1"
        self.hosts = [
            Host(f"amqpd-{self._mark}-{index}", f"{self._base}.{index + 10}", f"amqp{self._mark}{index}")
            for index in range(count)
        ]

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("address", "add", f"{self.address}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for host in self.hosts:
                _ip("netns", "add", host.name)
                _ip("link", "add", host.plug_name, "type", "veth", "peer", "name", "eth0", "netns", host.name)
                _ip("link", "set", host.plug_name, "master", self._bridge)
                _ip("link", "set", host.plug_name, "up")
                _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
                _ip("-n", host.name, "link", "set", "eth0", "up")
                _ip("-n", host.name, "link", "set", "lo", "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for command in (
            *(("netns", "delete", host.name) for host in self.hosts),
            *(("link", "delete", host.plug_name) for host in self.hosts),
            ("link", "delete", self._bridge),
        ):
            # What was not made, or went with its namespace, is not there to be removed.
            subprocess.run(["ip", *command], check=False, capture_output=True, timeout=30)
