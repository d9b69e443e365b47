"""Apache Iceberg tables as targets, written by the package pyiceberg.

The files of a batch are Parquet files below the table's `data` directory. One commit adds them. It also sets the table
property `amqpd.export.<id>` to the batch's number, so a rerun does not add them twice. A property stays when old
snapshots expire. The snapshot's summary has the batch's number and offsets, too, for people.

The catalog is a SQLite file by default: `catalog.db` in the directory, or in the checkpoint if `--to` is an object
store. `iceberg://CATALOG/namespace.table` names a catalog of pyiceberg's own configuration.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from amqpd.storage.export.checkpoint import CheckpointError, Progress, move
from amqpd.storage.export.claims import WINDOW
from amqpd.storage.export.columns import TIMES
from amqpd.storage.export.engine import ExportEngine, ExportRows
from amqpd.storage.export.file_writer import REJECTED
from amqpd.storage.export.object_store import is_object_store
from amqpd.storage.export.payload_schema import ICEBERG_TIME, table_columns, table_payload
from amqpd.storage.export.shared_checkpoint import ExportLedger
from amqpd.storage.export.targets import Files, LocalFiles, TargetError, data_files

SCHEME: Final = "iceberg://"
_LOCAL: Final = re.compile(r"(?:file:(?://)?)?(/.*)")
COMMITS_MAX: Final = 8
REQUEST_TIMEOUT_S: Final = (10.0, 120.0)
"""Limits of a request to a REST catalog: for the connection, and for each wait for its answer."""
_UPLOAD_BYTES: Final = 8 << 20
"""An upload waits for the store after so many bytes, which bounds its memory."""


class TableFiles:
    """The files of a table: `publish` renames those of a local table, and uploads others by its `FileIO`.

    Data files are below `data`. The table has no part in those of rejected messages, which are below REJECTED: readers
    of tables and Spark's `remove_orphan_files` leave names with `_` alone.

    Attributes:
        table: pyiceberg's table.
    """

    table: Any = None

    def names(self) -> Iterator[str]:
        yield from ()  # the catalog knows which exports a table has

    def final(self, path: Path) -> str:
        below = path if path.parts[0] == REJECTED else f"data/{path}"
        return f"{self.table.location()}/{below}"

    def publish(self, moves: list[list[str]]) -> None:
        local = [[staged, found[1]] for staged, final in moves if (found := _LOCAL.fullmatch(final))]
        move(local)
        if local or not moves:
            return
        from pyiceberg.io import load_file_io

        # A buffer of pyarrow would not pass `flush` on, which waits for the store.
        io = load_file_io({**self.table.io.properties, "buffer-size": "0"}, self.table.location())
        for staged, final in moves:
            with open(staged, "rb") as file, io.new_output(final).create(overwrite=True) as output:
                while data := file.read(_UPLOAD_BYTES):
                    output.write(data)
                    output.flush()


def open_catalog(to: str, table: str, checkpoint: Path) -> tuple[Any, str, str | None]:
    """Return the catalog of `--to`, the table's name, and the location for a new table; None: the catalog chooses it.

    Raises: TargetError.
    """
    from pyiceberg.catalog import load_catalog
    from pyiceberg.catalog.sql import SqlCatalog

    with iceberg_errors(to):
        if to.startswith(SCHEME):
            name, _, table = to.removeprefix(SCHEME).partition("/")
            catalog = load_catalog(name)
            _limit_requests(catalog)
            return catalog, table, None
        if is_object_store(to):
            place, root = checkpoint.absolute(), to.rstrip("/")
        else:
            LocalFiles(Path(to))
            place = Path(to).absolute()
            root = f"file://{place}"
        # pyarrow reads credentials from the environment, but not these.
        given = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL"), "s3.region": os.environ.get("AWS_REGION")}
        known = {name: value for name, value in given.items() if value}
        made = SqlCatalog("amqpd", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=root, **known)
        return made, table, "/".join([root, *table.split(".")])


def _limit_requests(catalog: Any) -> None:
    """Give the requests of a REST catalog a time limit: pyiceberg has none, so a dead host would block the export."""
    session = getattr(catalog, "_session", None)
    if session is None:
        return  # clients of clouds have limits
    from requests.adapters import HTTPAdapter

    def limited(send: Any, *arguments: Any, **given: Any) -> Any:
        return send(*arguments, **{**given, "timeout": given.get("timeout") or REQUEST_TIMEOUT_S})

    for prefix in ("https://", "http://"):
        adapter = HTTPAdapter()
        adapter.send = partial(limited, adapter.send)
        session.mount(prefix, adapter)


class Iceberg(Files):
    """An Iceberg table. Columns that it does not have yet are added; readers see null in older rows.

    Args:
        to: A directory or object store for a table of the SQLite catalog, or `iceberg://CATALOG/namespace.table`.
        table: `namespace.table`, if `to` has none.
        partition_by: `date` and `hour` are transforms of `timestamp`; other values are columns.

    Attributes:
        keeps_columns: Iceberg computes a file's partition from the columns in it.

    Methods raise TargetError, OSError, CheckpointError.
    """

    keeps_columns = True

    def __init__(self, to: str, table: str, partition_by: list[str], name: str, ledger: ExportLedger) -> None:
        # An hour of Iceberg is an hour of one date, so `hour` includes `date`.
        columns = [each for each in partition_by if each not in TIMES]
        times = [] if len(columns) == len(partition_by) else ["hour"] if "hour" in partition_by else ["date"]
        self._transforms = [*times, *columns]
        self._files = TableFiles()
        super().__init__(self._files, "parquet", [*(TIMES if times == ["hour"] else times), *columns], name, ledger)
        self._key = f"amqpd.export.{ledger.id}"
        self._catalog, self._identifier, self._location = open_catalog(to, table, ledger.directory)
        if "." not in self._identifier.strip("."):
            self.close()
            raise TargetError(f"--table {self._identifier}: expected NAMESPACE.TABLE")
        try:
            with iceberg_errors(to):
                self._check_store()
        except TargetError:
            self.close()
            raise

    def _check_store(self) -> None:
        """List the table's place in an object store, so that a missing bucket ends the export before it reads anything.

        A catalog that does not tell where it will create the table is not checked.
        """
        from pyarrow.fs import FileSelector
        from pyiceberg.io import load_file_io
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if self._catalog.table_exists(self._identifier):
            table = self._catalog.load_table(self._identifier)
            place, io = table.location(), table.io
        else:
            place = self._location or str(self._catalog.properties.get("warehouse", ""))
            if not is_object_store(place):
                return
            io = load_file_io(self._catalog.properties, place)
        if not is_object_store(place) or not isinstance(io, PyArrowFileIO):
            return
        scheme, bucket, path = io.parse_location(place)
        with suppress(FileNotFoundError):  # nothing is there yet
            io.fs_by_scheme(scheme, bucket).get_file_info(FileSelector(path))

    def check_fresh(self) -> None:
        with iceberg_errors(self._identifier):
            if self._catalog.table_exists(self._identifier):
                self._check_owner(self._catalog.load_table(self._identifier))

    def _check_owner(self, table: Any) -> None:
        for key, value in table.properties.items():
            is_other = key.startswith("amqpd.export.") and not f"{key}.".startswith(f"{self._key}.")
            if is_other and json.loads(value)["name"] == self.name:
                raise TargetError(
                    f"the table {self._identifier} has batches of an export with another checkpoint, and all rows "
                    "would be there twice: use that --checkpoint, or another table"
                )

    def _property(self, progress: Progress) -> str:
        """Return the property with the number of the batch. Batches of a shared export end in any order."""
        return f"{self._key}.{progress.batch % WINDOW}" if self.ledger.is_shared else self._key

    def root(self, to: str) -> str:
        location = self._files.table.location() if self._files.table else to
        found = _LOCAL.fullmatch(location)
        return found[1] if found else str(location)

    def write(self, engine: ExportEngine, rows: ExportRows, progress: Progress, label: str) -> None:
        rows = replace(rows, payload=table_payload(rows.payload, ICEBERG_TIME))
        self._columns = table_columns(rows)
        super().write(engine, rows, progress, label)

    def _stage(self, staging: Path, files: list[Path], progress: Progress, label: str) -> None:
        if files:
            with iceberg_errors(self._identifier):
                self._files.table = self._prepared_table()
        super()._stage(staging, files, progress, label)

    def _share(self, moves: list[list[str]], attempt: str) -> list[list[str]]:
        with iceberg_errors(self._identifier):
            self._files.publish(moves)  # no reader sees a file before its commit
        return moves

    def _prepared_table(self) -> Any:
        from pyiceberg.exceptions import CommitFailedException

        for attempt in range(COMMITS_MAX):
            try:
                return self._prepared(self._columns)
            except CommitFailedException:  # another writer, or the request has been sent twice
                if attempt == COMMITS_MAX - 1:
                    raise
                _wait(attempt)

    def _prepared(self, columns: Any) -> Any:
        """Return the table with at least these columns. It is created if it does not exist."""
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

        known: dict[str, tuple[str, Any]] = {
            "date": ("timestamp", DayTransform()),
            "hour": ("timestamp", HourTransform()),
        }
        transforms = [known.get(each, (each, IdentityTransform())) for each in self._transforms]
        try:
            table = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            self._catalog.create_namespace_if_not_exists(self._identifier.rpartition(".")[0])
            try:
                creation = self._catalog.create_table_transaction(self._identifier, columns, self._location)
                with creation, creation.update_spec() as spec:
                    for column, transform in transforms:
                        spec.add_field(column, transform)
            except TableAlreadyExistsError:
                pass
            table = self._catalog.load_table(self._identifier)
        wanted = [f"{transform}({column})" for column, transform in transforms]
        schema = table.schema()
        found = [f"{each.transform}({schema.find_column_name(each.source_id)})" for each in table.spec().fields]
        if found != wanted:
            raise TargetError(
                f"the table {self._identifier} is partitioned by {', '.join(found) or '(nothing)'}, and the export by "
                f"{', '.join(wanted) or '(nothing)'}: give the same --partition-by, or another table"
            )
        with table.update_schema() as update:  # without a new column or field nothing is committed
            update.union_by_name(columns)
        return table

    def _publish(self, progress: Progress) -> None:
        from pyiceberg.exceptions import CommitFailedException

        if not progress.moves:
            return
        with iceberg_errors(self._identifier):
            for attempt in range(COMMITS_MAX):
                table = self._files.table = self._catalog.load_table(self._identifier)
                if self._is_in(table, progress):
                    return  # the files were in their place before this commit
                if not attempt and not self.ledger.is_shared:
                    super()._publish(progress)
                try:
                    self._commit(table, progress, progress.moves)
                    return
                except CommitFailedException:
                    # pyiceberg has repeated the commit, unless it has no files.
                    if data_files(progress.moves) or attempt == COMMITS_MAX - 1:
                        raise
                    _wait(attempt)

    def _is_in(self, table: Any, progress: Progress) -> bool:
        """Return whether the table has the batch, as its property says."""
        return bool(
            json.loads(table.properties.get(self._property(progress), '{"batch": 0}'))["batch"] >= progress.batch
        )

    def _commit(self, table: Any, progress: Progress, moves: list[list[str]]) -> None:
        """Add the files, unless another commit has come first: that may be the late commit of a killed run.

        If a commit is refused, pyiceberg reads the table again before it repeats the commit. It does not look at the
        property, so it would add all rows twice. Without a repetition it would delete the manifests of the commit. But
        this has succeeded if a proxy or a cloud's client has sent it twice, and returns the second answer.
        """
        repeated = {**table.metadata.properties, "commit.retry.num-retries": str(COMMITS_MAX)}
        table.metadata = table.metadata.model_copy(update={"properties": repeated})
        read = table.refresh

        def refresh() -> Any:
            found = read()
            if self._is_in(table, progress):
                raise _BatchPresent
            if self.ledger.is_first:  # another export may have begun at the same time
                self._check_owner(table)
            return found

        table.refresh = refresh
        with suppress(_BatchPresent), table.transaction() as transaction:
            done = json.dumps({"batch": progress.batch, "name": self.name})
            transaction.set_properties({self._property(progress): done})
            if files := [final for _, final in data_files(moves)]:
                transaction.add_files(
                    files,
                    {
                        "amqpd.export": self.ledger.id,
                        "amqpd.batch": str(progress.batch),
                        "amqpd.position": json.dumps(progress.position),
                    },
                    check_duplicate_files=False,  # the property has shown that these are new
                )

    def close(self) -> None:
        self._catalog.close()


def _wait(attempt: int) -> None:
    time.sleep(min(0.1 * 2**attempt, 2.0))


class _BatchPresent(Exception):
    """The table has the batch: the refused commit has succeeded before, or that of a killed run."""


@contextmanager
def iceberg_errors(what: str) -> Iterator[None]:
    """Raise errors of catalogs and of pyiceberg, which have many types, as TargetError."""
    try:
        yield
    except (TargetError, CheckpointError):
        raise
    except Exception as error:
        raise TargetError(f"Iceberg, {what}: {type(error).__name__}: {str(error) or 'no text'}") from error
