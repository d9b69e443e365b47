"""The architecture rules checked in the sources: imports, names, sizes, documentation, dangerous modules.

house/sources.py reads the sources of the repository, not the installed package. Every import counts, also one inside
a function or for type checkers only, unless a rule says otherwise.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator

import pytest
from names import opaque_names, shared_names
from sources import (
    BESIDE,
    MODULES_MAX,
    ROOT,
    Import,
    all_imports,
    circles,
    nodes,
    package_of,
    settings_read,
    sources,
    too_large,
    tree_of,
    within,
)

from amqpd.broker.queue.arguments import ROWS as QUEUE_ROWS
from amqpd.broker.vhost.exchange import ROWS as EXCHANGE_ROWS
from amqpd.broker.vhost.policy_table import keys
from amqpd.config import rows
from amqpd.config.help import shown

SOCKETS = {"socket", "socketserver", "ssl", "uvloop", "aiohttp", "http"}
NETWORK = SOCKETS | {"asyncio", "selectors", "select", "urllib.request"}
LEAVES = {"amqpd.protocol.field_table", "amqpd.protocol.properties", "amqpd.protocol.methods", "amqpd.client_tls"}
"""Pure modules (field tables, properties, methods) and TLS of clients: the log tools, the sink and the command line
may import them, too.
"""

RECORD_CONVERTER = "amqpd.storage.log.foreign_record"
"""Makes messages of other programs' records, so it encodes properties as AMQP does."""

EXPORT = ("amqpd.storage.export", "amqpd.storage.spark")
"""Programs of their own beside the server, which read its logs."""

READ = ("amqpd", "amqpd.storage.export.queue_reader")
"""The import inside the function `amqpd.read`."""

LOG_READERS = {f"amqpd.storage.{name}" for name in ("log.record", "filesystem", "log_inspect")}
EVALUATORS = {"eval", "exec", "compile"}
DANGEROUS = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle"}

LAYERS = (
    ("amqpd.__main__", "amqpd.ephemeral", "amqpd.testing", "amqpd.dump"),
    ("amqpd.server",),
    ("amqpd.cluster",),
    ("amqpd.management",),
    ("amqpd.connection", "amqpd.kafka_server"),
    ("amqpd.protocol_server", "amqpd.listeners", "amqpd.process", "amqpd.logging_config"),
    ("amqpd.channel",),
    ("amqpd.broker.publish.publisher", "amqpd.broker.publish.fanout", "amqpd.broker.consume"),
    ("amqpd.broker.session",),
    ("amqpd.broker.broker",),
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
"""From top to bottom. The longest prefix of a module's name decides its layer."""


def is_ours(module: str) -> bool:
    return within(module, "amqpd")


def layer(module: str) -> int:
    """Return the number of a module's layer, 0 at the top. A module without an entry is in the last layer."""
    named = [(len(name), place) for place, names in enumerate(LAYERS) for name in names if within(module, name)]
    return max(named)[1]


def lines(broken: Iterator[Import]) -> str:
    return "\n".join(str(each) for each in broken)


class TestImports:
    @pytest.mark.parametrize("package", ["amqpd.routing", "amqpd.storage"])
    def test_routing_and_storage_import_only_themselves(self, package: str) -> None:
        assert not lines(
            each
            for each in all_imports()
            if within(each.importer, package)
            and not within(each.importer, *EXPORT)
            and ((is_ours(each.module) and not within(each.module, package)) or within(each.module, *NETWORK))
            and not (each.importer == RECORD_CONVERTER and each.module in LEAVES)
        )

    def test_export_imports_only_storage_and_pure_modules(self) -> None:
        assert not lines(
            each
            for each in all_imports()
            if within(each.importer, *EXPORT)
            and is_ours(each.module)
            and not (within(each.module, "amqpd.storage") or each.module in {*LEAVES, "amqpd"})
        )

    def test_export_without_spark_does_not_import_spark(self) -> None:
        assert not lines(
            each
            for each in all_imports()
            if within(each.importer, "amqpd.storage.export")
            and within(each.module, "amqpd.storage.spark", "pyspark", "py4j")
        )

    def test_server_imports_neither_export_nor_spark_nor_cli(self) -> None:
        assert not lines(
            each
            for each in all_imports()
            if not within(each.importer, *EXPORT, "amqpd.cli")
            and within(each.module, *EXPORT, "pyspark", "pyspark_amqp", "amqpd.cli")
            and (each.importer, each.module) != READ
        )

    def test_node_without_kafka_imports_no_kafka_module(self) -> None:
        assert not lines(
            each
            for each in all_imports()
            if within(each.module, "amqpd.cluster", "amqpd.kafka", "aiokafka", "kafka")
            and not within(each.importer, "amqpd.cluster", "amqpd.kafka")
            and not (within(each.importer, "amqpd.kafka_server") and within(each.module, "kafka"))
            and (each.importer, each.module) != ("amqpd.server", "amqpd.cluster.node")  # used if `cluster.kafka` is set
        )

    def test_protocol_does_no_input_or_output(self) -> None:
        assert not lines(
            each
            for each in all_imports()
            if within(each.importer, "amqpd.protocol")
            and (
                within(each.module, *NETWORK, "os", "pathlib", "threading")
                or (is_ours(each.module) and not within(each.module, "amqpd.protocol", "amqpd.errors"))
            )
        )

    def test_only_connection_and_management_open_sockets(self) -> None:
        # server.py binds the listeners; testing has programs around the server. The export, in its own processes,
        # reads logs over HTTP and publishes over AMQP.
        allowed = ("amqpd.connection", "amqpd.management", "amqpd.server", "amqpd.testing", "amqpd.cli")
        allowed = (*allowed, "amqpd.listeners", "amqpd.process", "amqpd.tls", "amqpd.client_tls", *EXPORT)
        allowed = (*allowed, "amqpd.cluster", "amqpd.kafka", "amqpd.kafka_server", "amqpd.protocol_server")
        assert not lines(
            each for each in all_imports() if within(each.module, *SOCKETS) and not within(each.importer, *allowed)
        )

    def test_command_line_imports_only_client_modules(self) -> None:
        allowed = LEAVES | LOG_READERS | {"amqpd", "amqpd._build"}
        job = (*EXPORT, "amqpd.storage.acks.retained")  # which the command line starts
        assert not lines(
            each
            for each in all_imports()
            if within(each.importer, "amqpd.cli")
            and is_ours(each.module)
            and not within(each.module, "amqpd.cli")
            and each.module not in allowed
            and not (
                each.importer
                in {f"amqpd.cli.{name}" for name in ("export", "export_compaction", "message_import", "sql")}
                and within(each.module, *job)
            )
        )

    def test_imports_run_downwards(self) -> None:
        """No module imports one of a layer above it, except for types inside one package."""
        assert not lines(
            each
            for each in all_imports()
            if is_ours(each.module)
            and not within(each.importer, "amqpd.cli", *EXPORT)
            and layer(each.module) < layer(each.importer)
            and not (each.typing_only and package_of(each.module) == package_of(each.importer))
        )

    def test_layers_list_existing_modules_once(self) -> None:
        names = [name for layer in LAYERS for name in layer]
        assert [name for name in names if name not in sources()] == []
        assert len(set(names)) == len(names)

    def test_longest_prefix_decides_layer(self) -> None:
        assert layer("amqpd.server") < layer("amqpd.management.server") < layer("amqpd.connection.connection")
        assert layer("amqpd.broker.publish.publisher") < layer("amqpd.broker.broker")
        assert layer("amqpd.broker.broker") < layer("amqpd.broker.publish.router")
        assert {layer("amqpd." + name) for name in ("errors", "storage.storage")} == {len(LAYERS) - 1}

    def test_settings_import_only_light_modules(self) -> None:
        """Every start loads the modules that settings and `--version` need."""

        def light(module: str) -> bool:
            return module in {"amqpd", "amqpd._build"} or within(module, "amqpd.config")

        assert not lines(
            each
            for each in all_imports()
            if light(each.importer)
            and is_ours(each.module)
            and not light(each.module)
            and (each.importer, each.module) != READ
        )


LARGE: dict[str, str] = {
    "amqpd.protocol.properties:scan_properties": "one pass over every message: several functions cost a quarter more",
}
"""At most six larger items: `module`, `module:Class` or `module:function` -> the reason."""


API_TYPES = "amqpd.management.api_types"
"""Its classes have the names of the schemas in the API description, so they may share a name with another class."""


class TestNames:
    def test_names_are_nouns_of_the_field(self) -> None:
        """tests/house/names.py lists the participles and adverbs that are not allowed as names."""
        assert list(opaque_names({module: tree_of(module) for module in sources()})) == []

    def test_no_two_public_classes_share_a_name(self) -> None:
        assert shared_names({module: tree_of(module) for module in sources() if module != API_TYPES}) == {}


class TestSizesAndCycles:
    def test_no_import_cycles(self) -> None:
        """An import for types only may close a cycle inside one package."""
        when_running: dict[str, set[str]] = {module: set() for module in sources()}
        for_types = {module: set() for module in sources()}
        for each in all_imports():
            if each.module in for_types and each.module != each.importer:
                for_types[each.importer].add(each.module)
                if not each.typing_only:
                    when_running[each.importer].add(each.module)
        assert circles(when_running) == []
        assert [circle for circle in circles(for_types) if len({package_of(module) for module in circle}) > 1] == []

    def test_number_of_modules_is_limited(self) -> None:
        assert len(sources()) <= MODULES_MAX

    def test_large_modules_are_listed_with_a_reason(self) -> None:
        large_items = {
            name: f"{name} has {size}"
            for module, path in sources().items()
            for name, size in too_large(module, path.read_text("utf-8").count("\n"), tree_of(module))
        }
        assert [text for name, text in large_items.items() if name not in LARGE] == []
        assert [name for name in LARGE if name not in large_items] == [], "not large: remove it from LARGE"
        assert len(LARGE) <= 6


class TestCompiledModules:
    with (ROOT / "pyproject.toml").open("rb") as _file:
        modules = tomllib.load(_file)["tool"]["amqpd"]["compiled-modules"]

    def test_compiled_modules_exist(self) -> None:
        assert [module for module in self.modules if module not in sources()] == []
        assert len(set(self.modules)) == len(self.modules)

    def test_compiled_modules_do_not_import_event_loop(self) -> None:
        assert not lines(
            one
            for one in all_imports()
            if one.importer in self.modules and within(one.module, *NETWORK) and not one.typing_only
        )

    def test_except_clauses_of_different_types_have_different_names(self) -> None:
        """mypyc gives a name one type per function, and raises TypeError when another exception is caught."""
        found = []
        for module in self.modules:
            for function in nodes(tree_of(module)):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    types: dict[str, set[str]] = {}
                    for node in ast.walk(function):
                        if isinstance(node, ast.ExceptHandler) and node.name and node.type is not None:
                            types.setdefault(node.name, set()).add(ast.unparse(node.type))
                    found += [f"{module}.{function.name}: {name}" for name, all_of in types.items() if len(all_of) > 1]
        assert found == []

    def test_no_built_extension_beside_the_sources(self) -> None:
        """An extension would hide later edits of the source."""
        assert [path for folder in ("amqpd", *BESIDE) for path in (ROOT / folder).rglob("*.so")] == []
        assert not (ROOT / "build").exists()


class TestDanger:
    def test_no_module_executes_data_as_code(self) -> None:
        assert not lines(one for one in all_imports() if within(one.module, *DANGEROUS))
        calls = [
            f"{module}:{node.lineno} calls {node.func.id}"
            for module in sources()
            for node in nodes(tree_of(module))
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

    def test_settings_table_of_readme_is_current(self) -> None:
        """After a change of a setting, put this table between the two marks of amqpd/config/README.md."""
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
        """`amqp.tls.port` is read as `...tls.port`, `data_dir` as `...settings.data_dir`, `compat` as `product`.

        A module may give a section another name: `amqp = settings.amqp`, or a parameter annotated with its class.
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


def test_policy_keys_table_is_current() -> None:
    """After a change of the keys, put this table between the two marks of docs/policies.md."""
    table = ["| key | argument | operator policies too | merged | meaning |", "|---|---|---|---|---|"]
    rows = {row.policy: row for row in (*QUEUE_ROWS.values(), *EXCHANGE_ROWS.values()) if row.policy is not None}
    for key in keys().values():
        argument = f"`{rows[key].name}`" if key in rows else ""
        meaning = rows[key].meaning if key in rows else key.meaning
        operator = "yes" if key.operator else ""
        rule = key.merge.replace("limit", "lowest that is a limit")
        merge = "" if meaning.startswith("ignored: ") else f"the {rule}"
        table.append(f"| `{key.name}` | {argument} | {operator} | {merge} | {meaning} |")
    manual = (ROOT / "docs" / "policies.md").read_text("utf-8")
    documented = manual.partition("<!-- keys -->\n")[2].partition("<!-- end of keys -->")[0]
    assert documented.splitlines() == table


def test_compatibility_page_is_current() -> None:
    from interop.compare.page import whole

    hint = "make compare, or python -m interop.compare --page, writes docs/compatibility.md anew"
    assert whole.PATH.read_text("utf-8") == whole.text(), hint
