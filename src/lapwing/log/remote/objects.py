"""A remote log in an object store: S3 and what is like it, Google Cloud Storage, Azure."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from lapwing.errors import ConfigError, RemoteFailed

_ERRORS: Final = (BaseError, OSError, ValueError)  # what obstore raises
_TIMEOUT: Final = timedelta(seconds=60)  # of a request, which may be a slice on a slow line; the caller tries again
_CONNECT: Final = timedelta(seconds=5)


class ObjectStore:
    """A bucket, and a prefix in it. Keys and endpoints come from the environment, as for the store's own programs."""

    def __init__(self, url: str) -> None:
        """Raises `ConfigError`."""
        parts = urlsplit(url)
        self.place = url
        if not parts.netloc or parts.query or parts.fragment or parts.password:
            expected = f"expected {parts.scheme}://BUCKET/PREFIX; keys come from the environment"
            raise ConfigError(f"{parts.scheme}://{parts.hostname or ''}: {expected}")
        try:
            self._store = obstore.store.from_url(
                url,
                # an endpoint without TLS is used if somebody names one
                client_options={"timeout": _TIMEOUT, "connect_timeout": _CONNECT, "allow_http": True},
                retry_config={"max_retries": 1, "retry_timeout": _TIMEOUT},
            )
        except _ERRORS as error:
            raise ConfigError(f"{url}: {_line(error)}") from error

    def create(self, name: str, *data: bytes) -> bool:
        """Create an object by a conditional put (`If-None-Match: *`).

        A store answers 409 also while another put of that name is under way, so False may be wrong.
        """
        with self._failing(name):
            try:
                obstore.put(self._store, name, b"".join(data), mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def read(self, name: str) -> bytes | None:
        """Return an object."""
        with self._failing(name):
            try:
                return bytes(obstore.get(self._store, name).bytes())
            except FileNotFoundError:
                return None

    def find(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Yield objects, a thousand to a request."""
        with self._failing(prefix):
            found = [
                (one["path"], one["size"])
                for page in obstore.list(self._store, prefix, offset=after or None)
                for one in page
            ]
        yield from sorted(each for each in found if each[0] > after)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects."""
        with self._failing(names[0] if names else ""):
            for at in range(0, len(names), 1000):
                obstore.delete(self._store, list(names[at : at + 1000]))

    def close(self) -> None:
        """Do nothing: obstore keeps connections for the process."""

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """Raise what obstore raises as `RemoteFailed`."""
        try:
            yield
        except _ERRORS as error:
            raise RemoteFailed(f"{self.place}: {name}: {_line(error)}") from error


def _line(error: Exception) -> str:
    """Return the first line of an error: obstore adds the whole answer and its own state below."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
