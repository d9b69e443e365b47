"""The architecture against the sources: imports, names, sizes, documentation, dangerous modules.

house/sources.py reads the sources of the repository, not the installed package. Every import counts, also one inside a
function or for type checkers only, unless a rule says otherwise.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from typing import ClassVar

import pytest
from names import opaque_names, shared_names
from sources import (
    BESIDE,
    MODULES_MAX,
    ROOT,
    Import,
    all_imports,
    circles,
    package_of,
    settings_read,
    sources,
    too_large,
    tree_of,
    within,
)

from amqpd.broker.vhost.policy_table import keys
from amqpd.config import rows
from amqpd.config.help import shown

SOCKETS = {"socket", "socketserver", "ssl", "uvloop", "aiohttp", "http"}
NETWORK = SOCKETS | {"asyncio", "selectors", "select", "urllib.request"}
LEAVES = {"amqpd.protocol.field_table", "amqpd.protocol.properties", "amqpd.protocol.methods", "amqpd.client_tls"}
"""Field tables, properties, methods: pure; TLS of clients: so the log tools, the sink and the command line may use them
too."""

LOG_READERS = {f"amqpd.storage.{name}" for name in ("log.record", "filesystem", "log_inspect")}
EVALUATORS = {"eval", "exec", "compile"}
DANGEROUS = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}

LAYERS = (
    ("amqpd.__main__", "amqpd.testing", "amqpd.dump"),
    ("amqpd.server",),
    ("amqpd.cluster",),
    ("amqpd.management",),
    ("amqpd.connection", "amqpd.kafka_server"),
    ("amqpd.protocol_server", "amqpd.listeners", "amqpd.process", "amqpd.logging_config"),
    ("amqpd.channel",),
    ("amqpd.broker.publish.publisher", "amqpd.broker.publish.fanout", "amqpd.broker.consume"),
    ("amqpd.broker.session",),
    ("amqpd.broker.broker",),
    ("amqpd.broker.queue_services",),
    ("amqpd.broker.audit", "amqpd.broker.jobs"),
    ("amqpd.broker.delayed",),
    ("amqpd.broker.publish",),
    ("amqpd.broker.vhost",),
    ("amqpd.broker.queue",),
    ("amqpd.broker.flow",),
    ("amqpd.broker",),
    ("amqpd.auth",),
    ("amqpd",),  # protocol, routing, storage, settings, errors
)
"""From top to bottom. The longest name that fits a module decides its layer."""


def is_ours(module: str) -> bool:
    return within(module, "amqpd")


def layer(module: str) -> int:
    """Return the number of a module's layer, 0 at the top. A module that is not named above is in the last layer."""
    named = [(len(name), place) for place, names in enumerate(LAYERS) for name in names if within(module, name)]
    return max(named)[1]


def listed(broken: Iterator[Import]) -> str:
    return "\n".join(str(one) for one in broken)


class TestImports:
    @pytest.mark.parametrize("package", ["amqpd.routing", "amqpd.storage"])
    def test_routing_and_storage_import_only_themselves(self, package: str) -> None:
        assert not listed(
            one
            for one in all_imports()
            if within(one.importer, package)
            and not within(one.importer, "amqpd.storage.spark")
            and ((is_ours(one.module) and not within(one.module, package)) or within(one.module, *NETWORK))
        )

    def test_the_export_imports_storage_and_the_pure_leaves(self) -> None:
        assert not listed(
            one
            for one in all_imports()
            if within(one.importer, "amqpd.storage.spark")
            and is_ours(one.module)
            and not (within(one.module, "amqpd.storage") or one.module in {*LEAVES, "amqpd"})
        )

    def test_the_server_imports_neither_export_nor_spark_nor_cli(self) -> None:
        assert not listed(
            one
            for one in all_imports()
            if not within(one.importer, "amqpd.storage.spark", "amqpd.cli")
            and within(one.module, "amqpd.storage.spark", "pyspark", "pyspark_amqp", "amqpd.cli")
        )

    def test_a_node_without_kafka_imports_nothing_of_it(self) -> None:
        assert not listed(
            one
            for one in all_imports()
            if within(one.module, "amqpd.cluster", "amqpd.kafka", "aiokafka", "kafka")
            and not within(one.importer, "amqpd.cluster", "amqpd.kafka")
            and not (within(one.importer, "amqpd.kafka_server") and within(one.module, "kafka"))
            and (one.importer, one.module) != ("amqpd.server", "amqpd.cluster.node")  # where `cluster.kafka` is set
        )

    def test_protocol_does_no_input_or_output(self) -> None:
        assert not listed(
            one
            for one in all_imports()
            if within(one.importer, "amqpd.protocol")
            and (
                within(one.module, *NETWORK, "os", "pathlib", "threading")
                or (is_ours(one.module) and not within(one.module, "amqpd.protocol", "amqpd.errors"))
            )
        )

    def test_only_connection_and_management_open_sockets(self) -> None:
        # server.py binds the listeners; testing.py is a program around the server. The export reads logs over HTTP and
        # publishes over AMQP, in processes of its own.
        allowed = ("amqpd.connection", "amqpd.management", "amqpd.server", "amqpd.testing", "amqpd.cli")
        allowed = (*allowed, "amqpd.listeners", "amqpd.process", "amqpd.tls", "amqpd.client_tls", "amqpd.storage.spark")
        allowed = (*allowed, "amqpd.cluster", "amqpd.kafka")
        assert not listed(
            one for one in all_imports() if within(one.module, *SOCKETS) and not within(one.importer, *allowed)
        )

    def test_the_command_line_is_a_client(self) -> None:
        allowed = LEAVES | LOG_READERS | {"amqpd", "amqpd._build"}
        job = ("amqpd.storage.spark", "amqpd.storage.acks.retained")  # which the command line starts
        assert not listed(
            one
            for one in all_imports()
            if within(one.importer, "amqpd.cli")
            and is_ours(one.module)
            and not within(one.module, "amqpd.cli")
            and one.module not in allowed
            and not (one.importer == "amqpd.cli.export" and within(one.module, *job))
        )

    def test_imports_run_downhill(self) -> None:
        """No module imports one of a layer above it; answers come back as values.

        Inside one package an import for types only may.
        """
        assert not listed(
            one
            for one in all_imports()
            if is_ours(one.module)
            and not within(one.importer, "amqpd.cli", "amqpd.storage.spark")
            and layer(one.module) < layer(one.importer)
            and not (one.typing_only and package_of(one.module) == package_of(one.importer))
        )

    def test_layers_name_modules_that_exist_once(self) -> None:
        names = [name for layer in LAYERS for name in layer]
        assert [name for name in names if name not in sources()] == []
        assert len(set(names)) == len(names)

    def test_a_module_is_in_the_layer_that_names_it_most_closely(self) -> None:
        assert layer("amqpd.server") < layer("amqpd.management.server") < layer("amqpd.connection.connection")
        assert layer("amqpd.broker.publish.publisher") < layer("amqpd.broker.broker")
        assert layer("amqpd.broker.broker") < layer("amqpd.broker.publish.router")
        assert {layer("amqpd." + name) for name in ("errors", "storage.storage")} == {len(LAYERS) - 1}

    def test_start_up_imports_nothing_heavy(self) -> None:
        """Every start loads what the settings and `--version` need."""

        def light(module: str) -> bool:
            return module in {"amqpd", "amqpd._build"} or within(module, "amqpd.config")

        assert not listed(
            one for one in all_imports() if light(one.importer) and is_ours(one.module) and not light(one.module)
        )


LARGE: dict[str, str] = {
    "amqpd.protocol.properties:scan_properties": "one pass over every message: several functions cost a quarter more",
}
"""At most six larger ones: `module`, `module:Class` or `module:function` -> the reason."""


API_TYPES = "amqpd.management.api_types"
"""Its classes have the names of the schemas in the API's description, so they may share a name with another class."""


class TestNames:
    trees: ClassVar = {module: tree_of(module) for module in sources()}

    def test_a_name_says_what_it_names(self) -> None:
        """tests/house/names.py lists the participles, adverbs and riddles that are no names."""
        assert list(opaque_names(self.trees)) == []

    def test_no_two_public_classes_share_a_name(self) -> None:
        trees = {module: tree for module, tree in self.trees.items() if module != API_TYPES}
        assert shared_names(trees) == {}


class TestShape:
    def test_no_modules_import_each_other_in_a_circle(self) -> None:
        """An import for types only may close a circle, inside one package."""
        when_running: dict[str, set[str]] = {module: set() for module in sources()}
        for_types = {module: set() for module in sources()}
        for one in all_imports():
            if one.module in for_types and one.module != one.importer:
                for_types[one.importer].add(one.module)
                if not one.typing_only:
                    when_running[one.importer].add(one.module)
        assert circles(when_running) == []
        assert [circle for circle in circles(for_types) if len({package_of(module) for module in circle}) > 1] == []

    def test_there_are_few_modules(self) -> None:
        assert len(sources()) <= MODULES_MAX

    def test_what_is_large_is_named_with_its_reason(self) -> None:
        found = {
            name: f"{name} has {what}"
            for module, path in sources().items()
            for name, what in too_large(module, path.read_text("utf-8"))
        }
        assert [text for name, text in found.items() if name not in LARGE] == []
        assert [name for name in LARGE if name not in found] == [], "no longer large: remove it from LARGE"
        assert len(LARGE) <= 6


class TestCompiledModules:
    with (ROOT / "pyproject.toml").open("rb") as _file:
        modules = tomllib.load(_file)["tool"]["amqpd"]["compiled-modules"]

    def test_the_list_names_modules_that_exist(self) -> None:
        assert [module for module in self.modules if module not in sources()] == []
        assert len(set(self.modules)) == len(self.modules)

    def test_they_know_no_event_loop(self) -> None:
        assert not listed(
            one
            for one in all_imports()
            if one.importer in self.modules and within(one.module, *NETWORK) and not one.typing_only
        )

    def test_no_built_extension_lies_beside_the_sources(self) -> None:
        """An extension would shadow later edits of the source."""
        assert [path for folder in ("amqpd", *BESIDE) for path in (ROOT / folder).rglob("*.so")] == []
        assert not (ROOT / "build").exists()


class TestDanger:
    def test_nothing_that_runs_data_as_code(self) -> None:
        assert not listed(one for one in all_imports() if within(one.module, *DANGEROUS))
        calls = [
            f"{module}:{node.lineno} calls {node.func.id}"
            for module in sources()
            for node in ast.walk(tree_of(module))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EVALUATORS
        ]
        assert calls == []


class TestDocumentation:
    def test_every_folder_has_a_readme(self) -> None:
        folders = {path.parent for path in sources().values()} | {ROOT, ROOT / "tests", ROOT / "interop"}
        assert sorted(str(path.relative_to(ROOT)) for path in folders if not (path / "README.md").is_file()) == []

    def test_every_module_has_a_docstring(self) -> None:
        written = [module for module, path in sources().items() if path.stat().st_size]
        assert [module for module in written if not ast.get_docstring(tree_of(module))] == []

    def test_the_settings_table_is_the_settings(self) -> None:
        """After a change of a setting: put this text between the two marks of amqpd/config/README.md."""
        table = ["| setting | type | default | meaning | a change |", "|---|---|---|---|---|"]
        for row in rows():
            change = "reloaded" if row.reloaded else "needs a restart"
            default = f"`{shown(row.default)}`" if shown(row.default) else ""
            also = f" Also `{row.environ_also}`." if row.environ_also else ""
            kind = row.kind.word.replace("|", " or ")
            table.append(f"| `{row.name}` | {kind} | {default} | {row.doc}{also} | {change} |")
        text = (ROOT / "amqpd" / "config" / "README.md").read_text("utf-8")
        documented = text.partition("<!-- settings -->\n")[2].partition("<!-- end of settings -->")[0]
        assert documented.splitlines() == table

    def test_every_setting_is_read(self) -> None:
        """`amqp.tls.port` is read as `...tls.port`, `data_dir` as `...settings.data_dir`, `compat` by `product`.

        A section may go by another name in the module that reads it: `amqp = settings.amqp`, or a parameter annotated
        with its class.
        """
        read = {
            reading
            for module in sources()
            if not within(module, "amqpd.config")
            for reading in settings_read(tree_of(module))
        }
        looked_for = {row.name: ".".join(["settings", *row.name.split(".")][-2:]) for row in rows()}
        looked_for["compat"] = "settings.product"
        assert [name for name, spelling in looked_for.items() if spelling not in read] == []


def test_every_key_of_policies_is_documented() -> None:
    """After a change of the keys: put this text between the two marks of docs/policies.md."""
    table = ["| key | argument | operator policies too | merged | meaning |", "|---|---|---|---|---|"]
    for key in keys().values():
        argument = f"`{key.argument}`" if key.argument else ""
        operator = "yes" if key.operator else ""
        rule = key.merge.replace("limit", "lowest that is a limit")
        merge = "" if key.meaning.startswith("ignored: ") else f"the {rule}"
        table.append(f"| `{key.name}` | {argument} | {operator} | {merge} | {key.meaning} |")
    manual = (ROOT / "docs" / "policies.md").read_text("utf-8")
    documented = manual.partition("<!-- keys -->\n")[2].partition("<!-- end of keys -->")[0]
    assert documented.splitlines() == table


def test_the_compatibility_page_is_what_its_command_makes() -> None:
    from interop.compare.page import whole

    again = "make compare, or python -m interop.compare --page, writes docs/compatibility.md anew"
    assert whole.PATH.read_text("utf-8") == whole.text(), again
