"""What the keys of a `rabbitmq.conf` add up to: their values, and settings that several keys make together.

`rabbitmq_keys` has a row for each key; a row that needs others to be understood is a method here, and `finish` adds up
what they have seen. Values raise ValueError, with text that follows the key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Final

FRAME_MAX_BYTES: Final = 1 << 27
CHANNEL_MAX: Final = 65535
HTTP_PORT: Final = 15672
HTTPS_PORT: Final = 15671
METRICS_PORT: Final = 15692
OWN_LIMITS: Final = "the admin API has limits of its own, and OpenSSL chooses"
MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL")
HANDSHAKE_MAX_S: Final = 3600.0
LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warning": "warning",
    **dict.fromkeys(("error", "critical", "alert", "emergency", "none"), "error"),
}
_SIZE: Final = re.compile(r"([0-9]{1,18})(?:([kmgtp])(i?b)?)?", re.IGNORECASE)


def boolean(value: str) -> bool:
    if value not in {"true", "false", "on", "off"}:
        raise ValueError(f"must be true or false, not {value!r}")
    return value in {"true", "on"}


def number(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", value):
        raise ValueError(f"must be a whole number, not {value!r}")
    return int(value)


def share(value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,18})?", value):
        raise ValueError(f"must be a number such as 0.6, not {value!r}")
    return float(value)


def size_bytes(value: str) -> int:
    """rabbit: `k`, `KiB` are 1024 bytes, `kB` 1000; likewise the others. Raises: ValueError."""
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ValueError(f"must be a number of bytes such as 2GB or 512MiB, not {value!r}")
    size = int(found[1])
    for _ in range(" kmgtp".index((found[2] or " ").lower())):
        size *= 1000 if (found[3] or "").lower() == "b" else 1024
    return size


def frame_size(value: str) -> int:
    """rabbit: here `kb`, `mb`, `gb` are powers of 1024, and 0 is no limit."""
    found = re.fullmatch(r"([0-9]{1,12})(kb|mb|gb)?", value, re.IGNORECASE)
    if found is None:
        raise ValueError(f"must be a number of bytes, not {value!r}")
    return int(found[1]) << {"": 0, "kb": 10, "mb": 20, "gb": 30}[(found[2] or "").lower()] or FRAME_MAX_BYTES


def handshake_s(value: str) -> float:
    return HANDSHAKE_MAX_S if value == "infinity" else number(value) / 1000


def minutes_s(value: str) -> float:
    return number(value) * 60.0


def verify(value: str) -> bool:
    if value not in {"verify_peer", "verify_none"}:
        raise ValueError(f"must be verify_peer or verify_none, not {value!r}")
    return value == "verify_peer"


def chain_depth(value: str) -> int:
    """rabbit: up to 255. OpenSSL looks at 100 certificates at most."""
    depth = number(value)
    if not 0 <= depth <= 255:
        raise ValueError(f"must be 0 to 255, not {value!r}")
    return min(depth, 100)


# `management.listener.*` without its first words -> setting below `http`, "" for none; how its value is read
OLD_LISTENER: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "port": ("port", number),
    "ip": ("host", str),
    "ssl": ("", boolean),
    "ssl_opts.cacertfile": ("tls.ca", str),
    "ssl_opts.certfile": ("tls.certificate", str),
    "ssl_opts.keyfile": ("tls.key", str),
    "ssl_opts.verify": ("tls.verify_peer", verify),
    "ssl_opts.fail_if_no_peer_cert": ("tls.fail_if_no_peer_certificate", boolean),
    "ssl_opts.depth": ("tls.depth", chain_depth),
}


class Translation:
    """What the keys seen so far add up to. values, sources, notes, problems: as `rabbitmq_conf.Found` has them."""

    def __init__(self) -> None:
        self.values: dict[str, object] = {}
        self.sources: dict[str, str] = {}
        self.notes: list[str] = []
        self.problems: list[str] = []
        self._listeners: dict[str, list[tuple[str, int, str]]] = {"tcp": [], "ssl": []}
        self._off: dict[str, str] = {}  # protocol -> where it is said
        self._loopback: dict[str, bool] = {}
        self._loopback_place = ""
        self._tags: list[str] | None = None
        self._tags_place = ""
        self._log: dict[str, tuple[str, str]] = {}
        self._versions: dict[str, list[str]] = {}  # by the key's first word
        self._versions_place: dict[str, str] = {}
        self._ciphers: dict[str, tuple[list[str], str]] = {}  # by section, and where the last one is said
        self._mechanisms: list[str] = []
        self._mechanisms_place = ""
        self._admin: dict[str, str] = {}  # listeners of the admin API that have keys -> the first place
        self._old_listener: dict[str, tuple[str, str]] = {}
        self._metrics_place = ""

    def set(self, name: str, value: object, place: str) -> None:
        """A setting's value. place: `FILE:LINE: KEY`."""
        self.values[name], self.sources[name] = value, f"file {place}"

    # -- keys that make something together -----------------------------------------------------------------------------

    def listener(self, words: Sequence[str], value: str, place: str) -> None:
        """`listeners.tcp.$name`, `listeners.ssl.$name`: a port, or ADDRESS:PORT."""
        if value.startswith(("unix:", "local:")):
            raise ValueError(f"cannot be {value}: amqpd listens for AMQP on addresses of TCP alone")
        host, _, port = value.rpartition(":")
        if not port.isascii() or not port.isdecimal():
            raise ValueError(f"must be a port or ADDRESS:PORT, not {value!r}")
        self._listeners[words[1]].append((host.strip("[]"), int(port), place))

    def no_listener(self, words: Sequence[str], value: str, place: str) -> None:
        if value != "none":
            raise ValueError(f"must be none, not {value!r}")
        self._off[words[1]] = place

    def loopback_user(self, words: Sequence[str], value: str, place: str) -> None:
        self._loopback[words[1]] = boolean(value)
        self._loopback_place = place

    def no_loopback_users(self, _words: Sequence[str], value: str, place: str) -> None:
        if value != "none":
            raise ValueError(f"must be none, not {value!r}")
        self._loopback, self._loopback_place = {"": False}, place

    def user_tag(self, words: Sequence[str], value: str, place: str) -> None:
        self._tags, self._tags_place = self._tags or [], place
        if boolean(value):
            self._tags.append(words[1])

    def log_key(self, words: Sequence[str], value: str, place: str) -> None:
        """`log.console`, `log.file.level` and the like: `finish` knows which of them count."""
        key = ".".join(words[1:])
        if key.endswith("level") and value not in LEVELS:
            raise ValueError(f"must be one of {', '.join(LEVELS)}, not {value!r}")
        if key.endswith("formatter") and value not in {"plaintext", "json"}:
            raise ValueError(f"must be plaintext or json, not {value!r}")
        self._log[key] = value, place

    def tls_version(self, words: Sequence[str], value: str, place: str) -> None:
        self._versions.setdefault(words[0], []).append(value)
        self._versions_place[words[0]] = place

    def cipher(self, words: Sequence[str], value: str, place: str) -> None:
        """`ssl_options.ciphers.$name` and those of the admin API's listeners, in the order of the lines."""
        section = "amqp.tls" if words[0] == "ssl_options" else "http.tls" if words[1] == "ssl" else "listener"
        names = self._ciphers[section][0] if section in self._ciphers else []
        self._ciphers[section] = [*names, value], place
        if section == "http.tls":
            self.admin_listener(words, value, place)

    def mechanism(self, _words: Sequence[str], value: str, place: str) -> None:
        """`auth_mechanisms.$n`, in the order of the lines."""
        if value not in MECHANISMS:
            raise ValueError(f"cannot be {value}: amqpd knows {', '.join(MECHANISMS)}")
        self._mechanisms.append(value)
        self._mechanisms_place = place

    def password_hashing(self, _words: Sequence[str], value: str, place: str) -> None:
        if value == "rabbit_password_hashing_md5":
            self.notes.append(f"{place} changes nothing: MD5 is verified, but no new hash is made with it")
        elif value in {"rabbit_password_hashing_sha256", "rabbit_password_hashing_sha512"}:
            self.set("auth.password_hashing", value, place)
        else:
            raise ValueError(f"must be rabbit_password_hashing_sha256 or ..._sha512, not {value!r}")

    def admin_listener(self, words: Sequence[str], _value: str, place: str) -> None:
        """`management.tcp.*`, `management.ssl.*`: there is such a listener."""
        self._admin.setdefault(words[1], place)

    def admin_unused(self, words: Sequence[str], value: str, place: str) -> None:
        """Likewise, by a key that changes nothing else."""
        self.admin_listener(words, value, place)
        self.notes.append(f"{place} changes nothing: {OWN_LIMITS}")

    def old_admin_listener(self, words: Sequence[str], value: str, place: str) -> None:
        """`management.listener.*`: one listener, with TLS or without."""
        key = ".".join(words[2:])
        OLD_LISTENER[key][1](value)  # as it raises ValueError, not later
        self._old_listener[key] = value, place

    def metrics(self, _words: Sequence[str], _value: str, place: str) -> None:
        """`prometheus.*`, or its plugin: metrics have a listener of their own."""
        self._metrics_place = self._metrics_place or place

    def metrics_unused(self, words: Sequence[str], value: str, place: str) -> None:
        """Likewise, by a key that changes nothing else."""
        self.metrics(words, value, place)
        self.notes.append(f"{place} changes nothing: {OWN_LIMITS}")

    def finish(self) -> None:
        """After the last key."""
        self._finish_listeners("tcp", "amqp.port")
        self._finish_listeners("ssl", "amqp.tls.port")
        if self._loopback_place:
            users = [user for user, only in self._loopback.items() if only]
            self.set("amqp.loopback_users", users, self._loopback_place)
        if self._tags is not None:
            self.set("default.tags", self._tags, self._tags_place)
        for section, versions in self._versions.items():
            place = self._versions_place[section]
            if "tlsv1.2" not in versions:
                self.problems.append(f"{place}: amqpd talks TLS 1.2 and 1.3, and cannot leave out 1.2")
            elif sorted(versions) != ["tlsv1.2", "tlsv1.3"]:
                self.notes.append(f"{place}: amqpd talks TLS 1.2 and 1.3, always")
        if self._mechanisms:
            self.set("auth.mechanisms", self._mechanisms, self._mechanisms_place)
        self._finish_admin()
        if self._metrics_place and "metrics.port" not in self.values:
            self.set("metrics.port", METRICS_PORT, self._metrics_place)
        self._finish_log()

    def _finish_listeners(self, protocol: str, setting: str) -> None:
        listeners = self._listeners[protocol]
        if protocol in self._off:
            self.set(setting, "off", self._off[protocol])
            return
        if not listeners:
            return
        place = listeners[-1][2]
        if len({port for _, port, _ in listeners}) > 1:
            self.problems.append(f"{place}: amqpd listens on one port for each protocol, and there are others above")
            return
        self.set(setting, listeners[0][1], place)
        addresses = dict.fromkeys(host for host, _, _ in listeners)
        hosts = "" if "" in addresses else ",".join(addresses)
        if not hosts and "amqp.host" not in self.values:
            return
        if self.values.setdefault("amqp.host", hosts) != hosts:
            self.problems.append(f"{place}: amqpd listens on the same addresses with and without TLS")
            return
        self.sources["amqp.host"] = f"file {place}"

    def _finish_admin(self) -> None:
        """rabbit: with `management.ssl` alone there is no plain HTTP, and `management.listener` is either."""
        secure = self._old_listener.get("ssl", ("false", ""))[0] == "true"
        old_ciphers = self._ciphers.pop("listener", None)
        if secure and old_ciphers is not None:
            self._ciphers["http.tls"] = old_ciphers
        for section, (names, last) in self._ciphers.items():
            self.set(f"{section}.ciphers", names, last)
        for key, (value, place) in self._old_listener.items():
            setting, convert = OLD_LISTENER[key]
            self._admin.setdefault("ssl" if secure else "tcp", place)
            if setting.startswith("tls."):
                setting = setting if secure else ""
            elif setting and secure:
                setting = f"tls.{setting}"
            if setting:
                self.set(f"http.{setting}", convert(value), place)
        if secure:
            self.values.setdefault("http.tls.port", HTTP_PORT)
        if "ssl" not in self._admin:
            return
        place = self._admin["ssl"]
        if "http.tls.port" not in self.values:
            self.set("http.tls.port", HTTPS_PORT, place)
        self.sources.setdefault("http.tls.port", f"file {place}")
        if "tcp" not in self._admin:
            self.set("http.port", "off", place)

    def _finish_log(self) -> None:
        """One place, as amqpd has it: the file if there is one, else standard error."""
        file, place = self._log.get("file", ("false", ""))
        kind = "console"
        if file != "false":
            kind = "file"
            folder = self._log.get("dir", ("", ""))[0]
            self.set("log.file", str(PurePosixPath(folder) / file), place)
            if self._log.get("console", ("false", ""))[0] == "true":
                self.notes.append(f"{self._log['console'][1]}: amqpd logs to one place, the file")
        elif self._log.get("console", ("true", ""))[0] == "false":
            self.notes.append(f"{self._log['console'][1]}: without a file the log goes to standard error")
        for key, setting in (("level", "log.level"), ("formatter", "log.format")):
            for name in (f"{kind}.{key}", f"default.{key}"):
                if name in self._log:
                    value, place = self._log[name]
                    self.set(setting, LEVELS.get(value, "json" if value == "json" else "text"), place)
                    break
