"""The reader of the sources sees what the tests of the architecture check."""

from __future__ import annotations

import ast

from sources import BESIDE, circles, imports_in, settings_read, sources, too_large


class TestImports:
    def test_it_sees_every_form_of_import(self) -> None:
        text = """
import a.b, c
from typing import TYPE_CHECKING
from amqpd.storage.log import log, Storage
from . import near
from .near import thing
from ..broker import queue
if TYPE_CHECKING:
    from amqpd.channel.channel import Channel
else:
    import late
def f():
    import hidden
    importlib.import_module("by.name")
"""
        known = {"amqpd.storage.log.log", "amqpd.channel.near", "amqpd.broker.queue"}
        found = imports_in("amqpd.channel.basic", False, ast.parse(text), known)
        assert [one.module for one in found if not one.typing_only] == [
            "a.b", "c", "typing", "amqpd.storage.log.log", "amqpd.storage.log", "amqpd.channel.near",
            "amqpd.channel.near", "amqpd.broker.queue", "late", "hidden", "by.name",
        ]  # fmt: skip
        assert [one.module for one in found if one.typing_only] == ["amqpd.channel.channel"]

    def test_a_package_is_its_own_base(self) -> None:
        found = imports_in("amqpd.channel", True, ast.parse("from . import near\n"), {"amqpd.channel.near"})
        assert found[0].module == "amqpd.channel.near"

    def test_it_sees_every_package(self) -> None:
        packages = {".".join(module.split(".")[:2]) for module in sources()}
        names = ("protocol", "connection", "channel", "broker", "auth", "management", *BESIDE)
        assert packages >= {f"amqpd.{name}" for name in names}


class TestShape:
    def test_circles_are_seen(self) -> None:
        edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"f"}, "f": {"e"}}
        assert circles(edges) == [["e", "f"], ["a", "b", "c"]]

    def test_the_measure_sees_what_is_large(self) -> None:
        text = "class C:\n" + "".join(f"    def f{n}(self):\n        self.a{n}, b = 1, 2\n" for n in range(61))
        text += "    def g(self):\n" + "".join(f"        self.b{n}: int = 1\n" for n in range(80))
        assert dict(too_large("m", text.count("\n"), ast.parse(text))) == {"m:C": "80 attributes", "m:g": "81 lines"}
        assert ("m:C", "62 methods") in too_large("m", text.count("\n"), ast.parse(text))
        assert list(too_large("m", 1001, ast.parse(""))) == [("m", "1001 lines")]


class TestSettings:
    def test_the_reader_of_settings_sees_other_names(self) -> None:
        text = """
def f(self, limits: AmqpSettings):
    first = self.settings.default
    print(first.user, limits.port, self._settings.data_dir, settings.amqp.tls.key, elsewhere.password)
"""
        found = settings_read(ast.parse(text))
        assert {"default.user", "amqp.port", "settings.data_dir", "tls.key"} <= found
        assert not any(reading.endswith(".password") and reading.startswith("default") for reading in found)
