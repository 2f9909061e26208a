"""The engines of remote logs: stores of objects that are created once. `open_engine` returns that of a URL."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit

from lapwing.errors import ConfigError

SCHEMES: Final = "file:///FOLDER, s3://BUCKET/PREFIX, gs://, az:// or postgresql://HOST/DATABASE?table=NAME"
CLAIMS: Final = "claims"  # what the names of the first objects of a log begin with
_OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"})


class Engine(Protocol):
    """A store of named objects that are written once. Names are ASCII, with `/` between their parts.

    Every method raises `RemoteFailed` when the engine refuses or does not answer; then it may have done it or not.
    """

    place: str  # the URL, without a password

    def create(self, name: str, *data: bytes) -> bool:
        """Create an object of these bytes, unless there is one of that name; return whether it was created.

        An engine that does not know returns False, so that the caller reads what is there. True means that the object
        will be there whatever machine fails now.
        """

    def read(self, name: str) -> bytes | None:
        """Return an object; None when there is none."""

    def find(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Yield the name and the bytes of each object whose name begins with `prefix/`, in order, behind `after`.

        Whatever was created before the call is among them.
        """

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; no error when there are none."""

    def close(self) -> None:
        """Give connections back."""


def open_engine(url: str) -> Engine:
    """Return the engine of a URL. Raises `ConfigError` for one that cannot be used here."""
    scheme = urlsplit(url).scheme.lower()
    if scheme == "file":
        from lapwing.log.remote.folder import Folder

        return Folder.of_url(url)
    if scheme in ("postgresql", "postgres"):
        try:
            from lapwing.log.remote.postgresql import PostgreSql
        except ImportError as error:
            raise _not_installed(error, "in PostgreSQL") from error
        return PostgreSql(url)
    if scheme in _OBJECT_STORES:
        try:
            from lapwing.log.remote.objects import ObjectStore
        except ImportError as error:
            raise _not_installed(error, "in an object store") from error
        return ObjectStore(url)
    raise ConfigError(f"{url}: no place for a remote log: expected {SCHEMES}")


def _not_installed(error: ImportError, where: str) -> ConfigError:
    return ConfigError(f"a remote log {where} needs {error.name}: pip install 'lapwing[replicated]'")
