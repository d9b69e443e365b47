"""Compaction of the Parquet objects of an export in an object store.

A store cannot replace several objects in one step, so one object says which others are live: the manifest
`_compaction/<id of the export>.manifest`.

    {"number": 7, "hidden": ["date=2026-11-28/orders-...parquet", ...]}

All objects are live, except the hidden ones. Each group of objects is merged in these steps:

    1. the manifest hides the new object's name
    2. the new object is uploaded
    3. the manifest hides the old objects, and no longer the new one: the commit
    4. the old objects are deleted

The manifest is only replaced if it has not changed since it was read. A run begins with writing it again: a late
request of a killed process cannot replace it any more. Then the run deletes all hidden objects, which ends the work of
the killed process. Names stay hidden for a while after their objects are deleted, as an upload may arrive late, too.

`live_files` reads the manifests. A reader that only lists the bucket sees rows twice between steps 2 and 4.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

from amqpd.storage.export.file_compaction import (
    CompactionError,
    CompactionOptions,
    CompactionReport,
    FoundFile,
    Watch,
    by_schema,
    merge,
    merged_name,
    plan,
)
from amqpd.storage.export.object_store import ObjectStore, ObjectStoreError
from amqpd.storage.export.shared_checkpoint import known_export

FOLDER: Final = "_compaction"
SUFFIX: Final = ".manifest"
HIDDEN_MAX: Final = 2000
"""Names of deleted objects that stay in the manifest: the newest."""
LIST_ATTEMPTS: Final = 20


def live_files(to: str) -> list[str]:
    """Return the URLs of an export's live Parquet objects, each row once, also during a compaction.

    An object may be replaced and deleted before it is read. Then its reader gets an error, and should call again.

    Args:
        to: The URL of the export: `s3://bucket/prefix` and others of `object_store.SCHEMES`.

    Raises: ObjectStoreError, also if compactions change the manifests during each of 20 lists.
    Cost: a list of all objects, two of the manifests, and two requests for each of these.
    """
    store = ObjectStore(to)
    for attempt in range(LIST_ATTEMPTS):
        before = _manifests(store)
        names = list(store.names())
        if _manifests(store) == before:
            hidden = {name for content in before.values() for name in _parsed(content)[1]}
            return [
                f"{to.rstrip('/')}/{name}" for name in sorted(names) if name.endswith(".parquet") and name not in hidden
            ]
        time.sleep(0.1 * attempt)
    raise ObjectStoreError(f"--to {to}: compactions changed its objects during {LIST_ATTEMPTS} lists")


def _manifests(store: ObjectStore) -> dict[str, bytes]:
    found = [name for name, _ in store.sizes(FOLDER) if name.endswith(SUFFIX)]
    return {name: content[0] for name in found if (content := store.read(name)) is not None}


def _parsed(content: bytes) -> tuple[int, list[str]]:
    """Return the number and the hidden names of a manifest. Raises ObjectStoreError."""
    try:
        found = json.loads(content)
        return int(found["number"]), [str(name) for name in found["hidden"]]
    except (ValueError, TypeError, KeyError):
        raise ObjectStoreError(f"a manifest in {FOLDER}/ is damaged: an earlier version of it is needed") from None


class _Manifest:
    """The manifest of one export. Methods raise ObjectStoreError."""

    def __init__(self, store: ObjectStore, export: str) -> None:
        self._store = store
        self._name = f"{FOLDER}/{export}{SUFFIX}"
        found = store.read(self._name)
        self._version: str | None = None
        self._number = 0
        self.hidden: list[str] = []
        if found is not None:
            self._version = found[1]
            self._number, self.hidden = _parsed(found[0])
            self._save()

    def write(self, hide: list[str], show: str = "") -> None:
        """Hide objects and, in the same step, show another one.

        All objects that were hidden before must be deleted, except `show`: the oldest of these names are dropped.
        """
        shown = {show, *hide}
        kept = [name for name in self.hidden if name not in shown]
        self.hidden = [*kept[-HIDDEN_MAX:], *hide]
        self._save()

    def _save(self) -> None:
        self._number += 1
        content: dict[str, Any] = {"number": self._number, "hidden": self.hidden}
        version = self._store.replace(self._name, json.dumps(content, indent=1).encode(), self._version)
        if version is None:
            raise ObjectStoreError(f"--to {self._store.url}: another program has written {self._name} meanwhile")
        self._version = version


def compact_store(options: CompactionOptions, work: Path, watch: Watch) -> CompactionReport:
    """Merge small objects below `options.to`.

    Args:
        work: A directory for one group of files: twice `file_bytes`.

    Raises: CompactionError, CheckpointError, OSError.
    """
    store = ObjectStore(options.to)
    manifest = _Manifest(store, known_export(options.checkpoint).id)
    found = [FoundFile(name, size) for name, size in store.sizes()]
    present = {each.name for each in found}
    store.delete([name for name in manifest.hidden if name in present])
    hidden = set(manifest.hidden)
    export = known_export(options.checkpoint)  # after the list
    groups = plan([each for each in found if each.name not in hidden], export, options)
    report = CompactionReport(waiting=sum(map(len, groups)))
    watch.say(report)
    for group in groups:
        if watch.stopped():
            break
        _compact(store, manifest, work, group, report)
        watch.say(report)
    return report


def _compact(
    store: ObjectStore, manifest: _Manifest, work: Path, group: list[FoundFile], report: CompactionReport
) -> None:
    """Replace the objects of one group by merged ones."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    local = {each.name: work / f"{place}.source" for place, each in enumerate(group)}
    for each in group:
        store.download(each.name, local[each.name])
        if local[each.name].stat().st_size != each.size:
            raise CompactionError(f"{each.name}: another program has changed it. A rerun merges the others")
    report.waiting -= len(group)
    for files in by_schema(group, lambda each: local[each.name]):
        report.waiting += len(files)
        staged = work / merged_name(files)
        size = merge((local[each.name] for each in files), staged)
        name = "/".join(filter(None, (files[0].directory, staged.name)))
        manifest.write([name])
        store.publish([[str(staged), name]])
        old = [each.name for each in files]
        manifest.write(old, show=name)
        store.delete(old)
        report.add(files, 1, size)
    shutil.rmtree(work)
