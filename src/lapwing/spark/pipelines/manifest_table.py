"""A directory of Parquet files to which batches are added whole, each once.

Spark writes a batch's files into a folder that no reader looks into. Then one small JSON file, an entry of the
manifest, names the files, and that is the moment the batch counts. After it the files are moved to their
places; whoever opens the table next finishes a move that a crash has interrupted. A batch whose entry exists is not
written again. Merging small files goes the same way, and there the whole folder is exchanged in one step, so that who
lists it sees the old files or the new one. Whoever wants to be sure reads the files that `settled` names.

    topic=orders/date=2026-11-15/hour=10/00000012-0.parquet      what readers see
    _manifest/00000012.json                                      entry 12: what it added and removed
    _manifest/00000100.snapshot.json                             all that is there after entry 100
    _staging/                                                    files without an entry: as if they were not there
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.pipelines.files import Files, LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANIFEST: Final = "_manifest"
STAGING: Final = "_staging"
_SNAPSHOT: Final = ".snapshot.json"
_FOLD_AFTER: Final = 100  # entries after which a snapshot takes their place
_ATTEMPTS: Final = 5  # to read a manifest that is being written


class TableDamaged(LapwingError):
    """Files and manifest do not agree."""


@dataclass(slots=True)
class DataFile:
    """One file."""

    path: str
    rows: int
    bytes: int


@dataclass(slots=True)
class ManifestEntry:
    """One change of the table."""

    number: int
    kind: str  # "batch" or "merge"
    query: str = ""
    batch: int = -1
    until: dict[str, Any] = field(default_factory=dict)  # the source's offsets at the end of the batch
    added: list[tuple[str, DataFile]] = field(default_factory=list)  # where it was staged, and what it becomes
    removed: list[str] = field(default_factory=list)
    written_ms: int = 0
    scope: dict[str, Any] = field(default_factory=dict)  # the topics that the table is for: `topics` or `pattern`


@dataclass(slots=True)
class TableContents:
    """The contents of the table after an entry."""

    number: int = 0
    query: str = ""
    batch: int = -1
    until: dict[str, Any] = field(default_factory=dict)
    written_ms: int = 0
    parts: dict[str, DataFile] = field(default_factory=dict)
    ended: list[list[Any]] = field(default_factory=list)  # logs that are not read any more: [*log, sequence reached]
    scope: dict[str, Any] = field(default_factory=dict)
    began: list[list[Any]] = field(default_factory=list)  # [*log, sequence] of each log when a batch first had it

    def apply(self, entry: ManifestEntry) -> None:
        """Change this to what the table holds after the next entry."""
        self.number = entry.number
        for path in entry.removed:
            self.parts.pop(path, None)
        for _, part in entry.added:
            self.parts[part.path] = part
        if entry.kind == "batch":
            now = reached(entry.until)
            ended = [[*log, sequence] for log, sequence in reached(self.until).items() if log not in now]
            known = {tuple(each[:3]) for each in self.began}
            written = {topic_of(part.path) for _, part in entry.added}  # a new log may be read in its first batch
            self.began += [
                [*log, sequence] for log, sequence in now.items() if log not in known and log[0] not in written
            ]
            self.ended = [each for each in [*self.ended, *ended] if tuple(each[:3]) not in now]
            self.query, self.batch, self.until = entry.query, entry.batch, entry.until
            self.written_ms = entry.written_ms
            self.scope = entry.scope


Log = tuple[str, int, str]  # topic, node, identity of the log


def topic_of(path: str) -> str:
    """Return the topic in a file's path."""
    folder = next((part for part in path.split("/") if part.startswith("topic=")), "topic=")
    return unquote(folder.removeprefix("topic="))


def reached(until: dict[str, Any]) -> dict[Log, int]:
    """Return the sequence that the offsets of a batch have reached in each log."""
    return {
        (topic, int(node), place["log_id"]): int(place["sequence"])
        for topic, nodes in until.items()
        for node, place in nodes.items()
    }


class ManifestTable:
    """Such a directory; one that is not on this machine's disk needs Spark."""

    def __init__(self, files: Files, spark: "SparkSession | None" = None) -> None:
        self._files = files
        self._spark = spark
        self.contents = TableContents()

    @property
    def root(self) -> str:
        return self._files.root

    def open(self) -> None:
        """Keep others out, and finish what a crash has interrupted."""
        self._files.hold()
        self.contents, last = load(self._files)
        if last is not None:
            self._settle(last)
        self.tidy()

    def close(self) -> None:
        """Let others write here."""
        self._files.release()

    def has(self, query: str, batch: int) -> bool:
        """Return whether this batch of this query has been added."""
        return self.contents.query == query and batch <= self.contents.batch

    def check_has(self, query: str, batch: int, remedy: str) -> None:
        """Raise `ConfigError` where batches that a query has finished are not here; lets others in before."""
        there = self.contents.batch if self.contents.query in ("", query) else batch
        if there < batch:
            self.close()
            raise ConfigError(
                f"{self.root} has no batch after {there}, and its checkpoint has finished batch {batch}: messages in "
                f"between would be missing. Is the disk mounted, or were files moved? Bring them back, or {remedy}"
            )

    def add(
        self,
        query: str,
        batch: int,
        until: dict[str, Any],
        write: Callable[[str], None],
        scope: dict[str, Any] | None = None,
    ) -> int:
        """Add a batch, which `write` writes into the directory it is given; return how many rows it had."""
        number = self.contents.number + 1
        entry = ManifestEntry(number, "batch", query=query, batch=batch, until=until, scope=scope or {})
        self._stage(entry, write)
        return sum(part.rows for _, part in entry.added)

    def merge(self, paths: list[str], write: Callable[[str], None]) -> None:
        """Put what `write` writes in the place of some files of one folder; the rows must be the same."""
        folder = paths[0].rpartition("/")[0]
        before = sum(self.contents.parts[path].rows for path in paths)
        entry = ManifestEntry(self.contents.number + 1, "merge", removed=list(paths))
        self._stage(entry, write, folder=folder, rows=before)

    def _stage(
        self, entry: ManifestEntry, write: Callable[[str], None], folder: str = "", rows: int | None = None
    ) -> None:
        staging = f"{STAGING}/{entry.number:08d}"
        if entry.kind == "merge":
            self.tidy()
        self._files.delete(staging)
        write(f"{self._files.root}/{staging}")
        found = sorted((path, size) for path, size in self._files.walk(staging) if path.endswith(".parquet"))
        counted = _count_rows(self._files, [path for path, _ in found], self._spark)
        for index, (path, size) in enumerate(found):
            inside = path.removeprefix(f"{staging}/").rpartition("/")[0] or folder
            name = f"{entry.number:08d}-{index}.parquet"
            entry.added.append((path, DataFile(f"{inside}/{name}" if inside else name, counted[path], size)))
            self._files.sync(path)
        if rows is not None and rows != sum(part.rows for _, part in entry.added):
            raise TableDamaged(f"{self.root}: merging {len(entry.removed)} files of {folder} would change their rows")
        entry.written_ms = time.time_ns() // 1_000_000
        try:
            self._files.write(f"{MANIFEST}/{entry.number:08d}.json", _dump(asdict(entry)), new=True)
        except FileExistsError:
            raise TableDamaged(f"{self.root}: another pipeline writes here too; each needs its own place") from None
        self.contents.apply(entry)
        self._settle(entry)
        if entry.number % _FOLD_AFTER == 0:
            self._fold()

    def _settle(self, entry: ManifestEntry) -> None:
        """Bring the files to the places that the entry names; done again it changes nothing."""
        if entry.removed and self._exchanged(entry):
            return
        for staged, part in entry.added:
            if self._files.exists(staged):
                self._files.move(staged, part.path)
            elif part.path in self.contents.parts and not self._files.exists(part.path):
                raise TableDamaged(f"{self.root}: {part.path} is gone, which entry {entry.number} has added")
        for path in entry.removed:
            self._files.delete(path)
        self._files.delete(f"{STAGING}/{entry.number:08d}")

    def _exchanged(self, entry: ManifestEntry) -> bool:
        """Put merged files in the place of the old ones in one step, where all is in one folder and it can be done."""
        folders = {path.rpartition("/")[0] for path in (*entry.removed, *(part.path for _, part in entry.added))}
        if len(folders) != 1 or not all(self._files.exists(staged) for staged, _ in entry.added):
            return False
        added = {part.path.rpartition("/")[2]: staged for staged, part in entry.added}
        removed = {path.rpartition("/")[2] for path in entry.removed}
        draft = f"{STAGING}/{entry.number:08d}/_exchange"
        return self._files.exchange(folders.pop(), added, removed, draft)

    def tidy(self) -> None:
        """Delete what an exchange has left behind; until then who was listing the old folder still finds it whole."""
        self._files.delete(STAGING)

    def _fold(self) -> None:
        """Write one snapshot in the place of all entries up to here."""
        number = self.contents.number
        self._files.write(f"{MANIFEST}/{number:08d}{_SNAPSHOT}", _dump(asdict(self.contents)))
        for name in self._files.names(MANIFEST):
            digits = name[:8]
            if digits.isdigit() and name != f"{number:08d}{_SNAPSHOT}" and int(digits) <= number:
                self._files.delete(f"{MANIFEST}/{name}")


def load(files: Files) -> tuple[TableContents, ManifestEntry | None]:
    """Return the contents by the manifest, and its last entry (None when that went into a snapshot)."""
    return _read(files, settled=False)


def settled(files: Files) -> TableContents:
    """Return the same for readers: what is there, without an entry whose files are not in their places yet."""
    return _read(files, settled=True)[0]


def _read(files: Files, *, settled: bool) -> tuple[TableContents, ManifestEntry | None]:
    for attempt in range(_ATTEMPTS - 1):
        try:
            return _read_once(files, settled=settled)
        except (FileNotFoundError, TableDamaged):
            # a snapshot may just have taken the place of the entries that were there a moment ago
            time.sleep(0.02 * attempt)
    return _read_once(files, settled=settled)


def _read_once(files: Files, *, settled: bool) -> tuple[TableContents, ManifestEntry | None]:
    names = [name for name in files.names(MANIFEST) if name[:8].isdigit() and name.endswith(".json")]
    contents = TableContents()
    for name in names:
        if name.endswith(_SNAPSHOT):
            contents = _contents(_parse(files, name))
    last = None
    entries = sorted(name for name in names if not name.endswith(_SNAPSHOT))
    for name in entries:
        if int(name[:8]) <= contents.number:
            continue
        if int(name[:8]) != contents.number + 1:
            raise TableDamaged(f"{files.root}: entry {contents.number + 1} of the manifest is missing")
        last = _entry(_parse(files, name))
        if settled and name == entries[-1] and _is_moving(files, last):
            break
        contents.apply(last)
    return contents, last


def _is_moving(files: Files, entry: ManifestEntry) -> bool:
    """Return whether files of an entry still lie where they were staged."""
    return any(not files.exists(part.path) and files.exists(staged) for staged, part in entry.added)


def _count_rows(files: Files, paths: list[str], spark: "SparkSession | None") -> dict[str, int]:
    """Count rows by the footers of files on this machine's disk, and with Spark elsewhere."""
    if isinstance(files, LocalFiles):
        import pyarrow.parquet as parquet  # type: ignore[import-untyped]

        return {path: parquet.read_metadata(f"{files.root}/{path}").num_rows for path in paths}
    if not paths:
        return {}
    assert spark is not None
    rows = spark.read.parquet(*(f"{files.root}/{path}" for path in paths))
    counted = rows.selectExpr("_metadata.file_path as path").groupBy("path").count().collect()
    found = {unquote(row["path"]): row["count"] for row in counted}
    return {path: sum(n for full, n in found.items() if full.endswith(f"/{path}")) for path in paths}


def strays(files: Files, contents: TableContents) -> list[str]:
    """Parquet files that readers see and the manifest does not know."""
    return sorted(
        path
        for path, _ in files.walk("")
        if path.endswith(".parquet")
        and path not in contents.parts
        and not any(part.startswith(("_", ".")) for part in path.split("/"))
    )


def small(parts: Iterable[DataFile], below: int) -> dict[str, list[DataFile]]:
    """Files smaller than that, by their folder, oldest first."""
    found: dict[str, list[DataFile]] = {}
    for part in parts:
        if part.bytes < below:
            found.setdefault(part.path.rpartition("/")[0], []).append(part)
    return found


def _parse(files: Files, name: str) -> dict[str, Any]:
    try:
        value = json.loads(files.read(f"{MANIFEST}/{name}"))
    except ValueError as error:
        raise TableDamaged(f"{files.root}/{MANIFEST}/{name}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TableDamaged(f"{files.root}/{MANIFEST}/{name}: not an entry")
    return value


def _entry(value: dict[str, Any]) -> ManifestEntry:
    added = [(staged, DataFile(**part)) for staged, part in value.pop("added")]
    return ManifestEntry(added=added, **value)


def _contents(value: dict[str, Any]) -> TableContents:
    parts = {path: DataFile(**part) for path, part in value.pop("parts").items()}
    return TableContents(parts=parts, **value)


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
