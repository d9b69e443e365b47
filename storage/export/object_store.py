"""Object stores as places of exported files: S3 and what speaks its protocol, Google Cloud Storage, Azure.

The package obstore does the requests. Each object appears whole or not at all. A small file is one request. A large one
is a multipart upload, which is completed after its last part. pyarrow's streams are not used here: they complete the
upload of a file that could not be written to its end.

Credentials, region and endpoint come from the environment, as each cloud names them. `AWS_PROFILE` needs boto3, which
reads `~/.aws` and signs in.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

SCHEMES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "az": "az", "abfs": "az", "abfss": "az"}
"""Schemes of URLs, and the cloud that each belongs to."""
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_KEY, or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET",
}
_METADATA_SERVICE: Final = "169.254.169.254"
"""The address that virtual machines get credentials from. It is asked if the environment has none."""
_ANSWER: Final = re.compile(r"<Code>(.*?)</Code>.*?<Message>(.*?)</Message>", re.DOTALL)
CLIENT: Final = {"allow_http": True, "connect_timeout": timedelta(seconds=5)}
"""Only an endpoint that the user names can be without TLS."""
RETRY: Final = {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}
RETRY_OF_CHECK: Final = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}
FILES_AT_ONCE: Final = 4
PARTS_AT_ONCE: Final = 4
PART_BYTES: Final = 5 << 20
"""Memory of uploads: FILES_AT_ONCE x PARTS_AT_ONCE x PART_BYTES, 80 MB."""


class ObjectStoreError(OSError):
    """The store refuses or does not answer; the text says why and what to do."""


def is_object_store(url: str) -> bool:
    """Return whether the URL has the scheme of an object store."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


class ObjectStore:
    """A bucket, or the objects of a bucket whose names begin with a prefix.

    Args:
        url: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or
            `abfs://container@account.dfs.core.windows.net/prefix`.

    Raises: ObjectStoreError, also if the bucket cannot be listed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.cloud = SCHEMES[url.partition("://")[0].lower()]
        if urlsplit(url).query:
            raise ObjectStoreError(f"--to {url}: options after ? are not read; set the environment's variables instead")
        with self._errors():
            self._store = self._open(RETRY)
            for _ in self._listed(self._open(RETRY_OF_CHECK)):
                break

    def _open(self, retry: dict[str, Any]) -> Any:
        from obstore.store import from_url

        given: dict[str, Any] = {"client_options": CLIENT, "retry_config": retry}
        if self.cloud == "s3" and os.environ.get("AWS_PROFILE"):
            try:
                from obstore.auth.boto3 import Boto3CredentialProvider
            except ImportError as error:
                raise ObjectStoreError("AWS_PROFILE needs the package boto3: pip install boto3") from error
            given["credential_provider"] = Boto3CredentialProvider()
        scheme, _, rest = self.url.partition("://")
        return from_url(f"{scheme.lower()}://{rest}", **given)

    def _listed(self, store: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
        for chunk in store.list(prefix or None):
            for each in chunk:
                yield each["path"], each["size"]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise the errors of obstore as ObjectStoreError."""
        from obstore.exceptions import BaseError

        try:
            yield
        except ObjectStoreError:
            raise
        except (BaseError, OSError) as error:
            text = str(error)
            answer = _ANSWER.search(text)
            if answer is not None:
                text = f"the store answers {answer[1]}: {answer[2]}"
            if _METADATA_SERVICE in text:
                text = f"no credentials found; set {_CREDENTIALS[self.cloud]}"
            text = text.splitlines()[0] if text else type(error).__name__
            raise ObjectStoreError(f"--to {self.url}: {text}") from error

    def names(self) -> Iterator[str]:
        """Yield the names of all objects, without the prefix. Cost: a request for each thousand."""
        return (name for name, _ in self.sizes())

    def sizes(self, folder: str = "") -> Iterator[tuple[str, int]]:
        """Yield the name and size in bytes of all objects, or of a folder's. Cost: a request for each thousand."""
        with self._errors():
            yield from self._listed(self._store, folder)

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return the content of a small object, and its version; None if it does not exist."""
        with self._errors(), suppress(FileNotFoundError):
            found = self._store.get(name)
            return bytes(found.bytes()), _version_of(found.meta)
        return None

    def replace(self, name: str, data: bytes, version: str | None) -> str | None:
        """Replace a small object if it has this version, or create it. Return its new version.

        Args:
            version: None: it must not exist.

        Returns: None if another program has written it meanwhile.
        Raises: ObjectStoreError, also if the store has no conditional writes.
        """
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._errors(), suppress(AlreadyExistsError, PreconditionError):
            result = self._store.put(name, data, mode="create" if version is None else json.loads(version))
            return _version_of(result)
        found = self.read(name)
        if found is not None and found[0] == data:
            return found[1]  # the answer to the first attempt was lost
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write a small object, whether it exists or not."""
        with self._errors():
            self._store.put(name, data)

    def copy(self, source: str, name: str) -> bool:
        """Copy an object in the store, and replace one with this name. Return False if `source` does not exist."""
        with self._errors(), suppress(FileNotFoundError):
            self._store.copy(source, name)
            return True
        return False

    def download(self, name: str, path: Path) -> None:
        """Copy an object to a new file. Raises ObjectStoreError, also if the object does not exist."""
        with self._errors(), path.open("wb") as file:
            for piece in self._store.get(name):
                file.write(piece)

    def delete(self, names: list[str]) -> None:
        """Delete objects. Those that do not exist are no error."""
        with self._errors():
            for name in names:
                with suppress(FileNotFoundError):
                    self._store.delete(name)

    def final(self, path: Path) -> str:
        return str(path)

    def publish(self, moves: list[list[str]]) -> None:
        """Upload files as objects of these names, and replace objects that have them already.

        Raises: ObjectStoreError. Then some of the objects may be there.
        """
        pool = ThreadPoolExecutor(FILES_AT_ONCE, "upload")
        try:
            for _ in pool.map(self._put, *zip(*moves, strict=True)) if moves else ():
                pass
        finally:
            pool.shutdown(cancel_futures=True)

    def _put(self, staged: str, name: str) -> None:
        with self._errors():
            self._store.put(name, Path(staged), chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)


def _version_of(found: Any) -> str:
    """Return an object's version: Google compares its number, the others its ETag."""
    return json.dumps({name: found[name] for name in ("e_tag", "version") if found[name] is not None})
