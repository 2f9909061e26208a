"""lapwing pipeline: run data pipelines on Spark, see how they are, and prove what they have written."""

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from lapwing.cli.administer import confirm
from lapwing.cli.commands import Argument, Group, Option
from lapwing.client.format import duration
from lapwing.errors import ConfigError, LapwingError
from lapwing.tools.terminal import Column, Terminal, table

if TYPE_CHECKING:
    from lapwing.spark.pipelines.run.command import RunCommand
    from lapwing.spark.pipelines.run.progress import PipelineProgress

app = Group(
    "pipeline",
    "Run data pipelines on Spark: archive, table, transform and replay.",
    example="lapwing pipeline run archive --nsqd 127.0.0.1:4151",
)

Names = Annotated[list[str], Argument(metavar="NAME|FILE...", help="Kinds of pipelines, or .yaml or .py files.",
                                       complete=lambda text: KINDS)]
Data = Annotated[Path, Option(help="Where pipelines keep checkpoints and status.")]
Nsqd = Annotated[list[str], Option("--nsqd", help="HTTP address of an nsqd, host:port.")]
Lookupd = Annotated[
    list[str], Option("--lookupd", help="HTTP address of an nsqlookupd, host:port.")
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
DATA = Path("lapwing-data/pipelines")
ARCHIVE = Path("lapwing-data/archive")
_STDERR = 2
KINDS = ("archive", "table", "transform", "replay")
MISSING = "Spark is not installed; pip install 'lapwing[spark]'"


@app.command(example="lapwing pipeline run archive --nsqd 127.0.0.1:4151 --set trigger=5s")
def run(
    names: Names,
    master: Annotated[str, Option(help="Where Spark runs: local[N], spark://host:7077, yarn ...")] = "local[*]",
    nsqd: Nsqd = [],  # noqa: B006
    lookupd: Lookupd = [],  # noqa: B006
    settings: Annotated[
        list[str], Option("--set", metavar="KEY=VALUE", help="A setting; NAME.KEY=VALUE for one of several.")
    ] = [],  # noqa: B006
    once: Annotated[bool, Option("--once", help="Do what there is to do now, then end.")] = False,
    checkpoint: Annotated[str, Option(help="Where to keep the checkpoint (default: below --data).")] = "",
    out: Annotated[str, Option(help="Where files go.")] = "",
    data: Data = DATA,
    conf: Annotated[list[str], Option(metavar="KEY=VALUE", help="A setting of Spark.")] = [],  # noqa: B006
    dry_run: Annotated[
        bool, Option("--dry-run", help="For table, transform and replay: only show what would be written.")
    ] = False,
) -> None:
    """Run pipelines until Ctrl-C, which stops them after their current batch; a later run continues there."""
    extra: dict[str, Any] = {}
    if nsqd or lookupd:
        extra.update({"nsqd": nsqd} if nsqd else {"lookupd": lookupd})
    if out:
        extra["out"] = out
    if dry_run:
        extra["dry_run"] = True
    with spark_needed():
        from lapwing.spark.pipelines.run.command import RunCommand
    _run(RunCommand(names, settings, extra, once, checkpoint, master, _pairs(conf)), data)


@app.command(example="lapwing pipeline resume archive --accept-loss")
def resume(
    name: Annotated[str, Argument(help="The pipeline.")],
    accept_loss: Annotated[
        bool, Option("--accept-loss", help="Continue although messages are gone; losses that come later stop it.")
    ] = False,
    once: Annotated[bool, Option("--once", help="Do what there is to do now, then end.")] = False,
    data: Data = DATA,
) -> None:
    """Run a pipeline again as it was last run, from where it is."""
    with spark_needed():
        from lapwing.spark.pipelines.run.command import remembered
    _run(remembered(data, name, once=once, accept_loss=accept_loss), data)


@contextmanager
def _waiting() -> Iterator[None]:
    """Show on stderr which brokers a start waits for."""
    lines, ours = logging.StreamHandler(), logging.getLogger("lapwing")
    ours.addHandler(lines)
    level = ours.level
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.setLevel(level)
        ours.removeHandler(lines)


def _run(command: "RunCommand", data: Path) -> None:
    """Run pipelines until they end; exit status 1 when one fails."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    from lapwing.spark.pipelines.run.runner import StoppedEarly

    with _waiting():
        preview = command.is_preview
        running = command.unchecked(data) if preview else command.running(data)
    _until_signalled(running.ask_to_stop)
    good = True
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("lapwing").setLevel(logging.INFO)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # the query that fails reports the same
    logging.getLogger().addFilter(lambda record: record.msg != "Exception while sending command.")  # py4j as well
    try:
        with busy(*STARTING):
            spark = running.session()
    except StoppedEarly:
        print("stopped before Spark was there; nothing was done", file=sys.stderr)
        return
    _until_signalled(running.ask_to_stop)  # again: Spark installs a handler of its own, which cancels batches
    try:
        if preview:
            for line in running.preview(spark):
                print(line)
            return
        with _display(bounded=command.is_bounded) as show:
            good = running.run(spark, show)
    finally:
        with suppress(OSError, Py4JError):  # Java may be gone: a signal to all processes ends it, too
            if spark is not None:
                spark.stop()
    for job in running.jobs:
        if job.progress.error:
            print(f"lapwing: {job.progress.name}: {job.progress.error}", file=sys.stderr)
    if not good:
        sys.exit(1)


@app.command("list", example="lapwing pipeline list")
def list_(data: Data = DATA, as_json: Json = False) -> None:
    """List the kinds of pipelines, and those that have run here."""
    from lapwing.spark.pipelines.run.home import homes
    from lapwing.spark.pipelines.settings.kind_settings import KINDS

    found = [home.status() for home in homes(data)]
    if as_json:
        kinds = {kind: (shape.__doc__ or "").strip() for kind, shape in KINDS.items()}
        print(json.dumps({"kinds": kinds, "pipelines": found}, indent=2))
        return
    print("kinds:")
    for kind, shape in KINDS.items():
        print(f"  {kind:<10} {(shape.__doc__ or '').strip()}")
    print("\nhere:" if found else f"\nnone has run with --data {data}")
    for status in found:
        print(f"  {status['name']:<20} {status.get('kind', ''):<10} {status.get('state', '')}")


@app.command(example="lapwing pipeline status archive")
def status(
    names: Annotated[list[str], Argument(help="Which ones; all when none is named.")] = [],  # noqa: B006
    data: Data = DATA,
    as_json: Json = False,
) -> None:
    """Show how the pipelines that ran here are doing; exit status 1 when one has failed, died or fallen silent."""
    from lapwing.spark.pipelines.run.home import PipelineHome, homes

    found = [PipelineHome(data / name).status() for name in names] or [home.status() for home in homes(data)]
    for each in found:
        if len(each) <= 2:
            known = ", ".join(home.path.name for home in homes(data)) or "none"
            raise ConfigError(f"no pipeline {each['name']} has run with --data {data}; there are: {known}")
    if as_json:
        print(json.dumps(found, indent=2))
    elif found:
        print("\n".join(_status_table(found, Terminal.of(sys.stdout), now=time.time())))
    else:
        print(f"no pipeline has run with --data {data}")
    if any(each.get("state") in ("failed", "dead", "silent") for each in found):
        sys.exit(1)


def _batch(status: dict[str, Any]) -> tuple[str, str]:
    """Return the number of the last batch and how long it took; nothing before the first one of a run."""
    number = int(status.get("batch_id", -1))
    return (str(number), duration(status.get("batch_ms", 0) / 1000)) if number >= 0 else ("", "")


def _status_table(found: list[dict[str, Any]], terminal: Terminal, *, now: float) -> list[str]:
    late = any(each.get("late") for each in found)
    columns = (
        Column("pipeline", left=True), Column("kind", left=True), Column("state", left=True), Column("pid"),
        Column("batch"), Column("took"), Column("ended"), Column("msg/s"), Column("lag"),
        *((Column("late"),) if late else ()), Column("note", left=True, note=True),
    )  # fmt: skip
    rows = []
    for each in found:
        ended, lag = int(each.get("batch_at_ms") or 0), each.get("lag")
        notes = [str(each.get("error") or ""), *(f"waits for {away}" for away in each.get("away") or ())]
        rows.append([
            each["name"], each.get("kind", ""), each.get("state", ""), str(each["pid"] or ""),
            *_batch(each),
            f"{duration(round(now - ended / 1000))} ago" if ended else "", f"{each.get('input_rate', 0):,.0f}",
            "?" if lag is None else f"{lag:,}", *((f"{each.get('late') or 0:,}",) if late else ()),
            "; ".join(note for note in notes if note),
        ])  # fmt: skip
    return table(columns, rows, terminal)


@app.command(example="lapwing pipeline stop archive")
def stop(
    names: Annotated[list[str], Argument(help="Which ones; pipelines of one `run` stop together.")],
    data: Data = DATA,
    timeout: Annotated[float, Option(min=0, duration=True, help="Wait this long for the current batch.")] = 120,
) -> None:
    """Stop running pipelines after their current batch."""
    from lapwing.spark.pipelines.run.home import PipelineHome

    for name in names:
        home = PipelineHome(data / name)
        if not home.path.is_dir():
            raise ConfigError(f"no pipeline {name} has run with --data {data}")
        pid = home.running()
        if pid is None:
            print(f"{name} is not running")
        elif home.stop(wait=timeout):
            print(f"{name} has stopped")
        else:
            raise LapwingError(f"{name} is still at its batch (process {pid}); it will stop when that is done")


@app.command(example="lapwing pipeline remove archive --yes")
def remove(
    name: Annotated[str, Argument(help="The pipeline; it must not be running.")],
    keep_channel: Annotated[bool, Option("--keep-channel", help="Leave its channel on the brokers.")] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    data: Data = DATA,
) -> None:
    """Delete a pipeline's checkpoint and status, and its channel on the brokers; the files it wrote are kept."""
    with spark_needed():
        from lapwing.spark.pipelines.run import upkeep
    confirm(f"This will delete the pipeline {name}, its checkpoint and its channel. Continue?", yes=yes)
    for line in upkeep.remove(data, name, keep_channel=keep_channel):
        print(line)


@app.command(example="lapwing pipeline reset orders --with-output --yes")
def reset(
    name: Annotated[str, Argument(help="The pipeline; it must not be running.")],
    with_output: Annotated[bool, Option("--with-output", help="Delete the files it has written, too.")] = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    data: Data = DATA,
) -> None:
    """Delete a pipeline's checkpoint: the next run starts over, at the place of the setting start."""
    with spark_needed():
        from lapwing.spark.pipelines.run import upkeep
    what = f"the checkpoint of {name}" + (" and its files" if with_output else "")
    confirm(f"This will delete {what}. Continue?", yes=yes)
    for line in upkeep.reset(data, name, with_output=with_output):
        print(line)


@app.command(example="lapwing pipeline compact lapwing-data/archive")
def compact(
    place: Annotated[Path, Argument(metavar="DIR", help="Directory of an archive or a table.")] = ARCHIVE,
) -> None:
    """Merge the small files of an archive or a table now, and delete those that it needs no more."""
    with spark_needed():
        from lapwing.spark.pipelines.run import upkeep
    print(f"{place}: {upkeep.compact_now(str(place)):,} files merged")


@app.command(example="lapwing pipeline init transform clean.yaml")
def init(
    kind: Annotated[str, Argument(help=f"The kind of pipeline: {', '.join(KINDS)}.")],
    file: Annotated[Path | None, Argument(help="File to write (default: KIND.yaml).")] = None,
    force: Annotated[bool, Option("--force", help="Overwrite a file that exists.")] = False,
) -> None:
    """Write a commented pipeline file to start from."""
    with spark_needed():
        from lapwing.spark.pipelines.settings.template import template
    text = template(kind)
    path = file or Path(f"{kind}.yaml")
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; --force overwrites it")
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    print(f"{path} written; `lapwing pipeline run {path}` runs it")


@app.command(example="lapwing pipeline verify lapwing-data/archive --nsqd 127.0.0.1:4151")
def verify(
    archive: Annotated[str, Argument(help="Directory of the archive, or its URL.")] = "lapwing-data/archive",
    topics: Annotated[list[str], Option("--topic", help="Only this topic.")] = [],  # noqa: B006
    sequences: Annotated[str, Option(help="Only these sequences, from..to (to excluded).")] = "",
    nsqd: Nsqd = [],  # noqa: B006
    lookupd: Lookupd = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Prove that every message is in an archive exactly once: reads all sequences; exit status 1 if not so."""
    with spark_needed():
        from lapwing.spark.pipelines.settings.values import BadSetting
        from lapwing.spark.pipelines.settings.values import sequences as parse
        from lapwing.spark.tables.verify import proof_json, proof_text, published
        from lapwing.spark.tables.verify import verify as prove
    try:
        span = parse(sequences) if sequences else None
    except BadSetting as error:
        raise ConfigError(f"--sequences: {error}") from error
    held = published(tuple(nsqd), tuple(lookupd)) if nsqd or lookupd else None
    proof = prove(archive, topics=topics, span=span, published=held)
    print(json.dumps(proof_json(proof), indent=2) if as_json else proof_text(proof))
    if not proof.sound:
        sys.exit(1)


@contextmanager
def spark_needed() -> Iterator[None]:
    """Name the package to install where pyspark or a part of it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("pyspark", "py4j", "pyarrow", "deltalake", "yaml", "rich"):
            raise ConfigError(f"{MISSING} ({error.name} is missing)") from error
        raise


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise ConfigError(f"--conf {key}: key=value expected")
    return {key: value for key, _, value in pairs}


def _until_signalled(stop: Callable[[], None]) -> None:
    def asked(number: int, _: Any) -> None:
        with suppress(OSError):  # past the streams: this may have come in the midst of a write to one of them
            os.write(_STDERR, b"\nstopping after the current batch; once more stops at once\n")
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, asked)


STARTING: Final = "starting Spark", "(10 s as a rule, longer the first time)"


@contextmanager
def busy(what: str, hint: str = "", *, only_on_terminal: bool = False) -> Iterator[None]:
    """Show what takes a while: a line with the seconds and the hint on a terminal, one line elsewhere."""
    if not sys.stderr.isatty():
        if not only_on_terminal:
            print(what, file=sys.stderr, flush=True)
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bars.add_task(f"{what} {hint}".rstrip(), total=None)
        yield


@contextmanager
def _display(*, bounded: bool) -> Iterator[Callable[["PipelineProgress"], None]]:
    """Progress on the terminal: bars there (how far, for a bounded run), a line now and then elsewhere."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (SpinnerColumn(), *((BarColumn(20),) if bounded else ()), TextColumn("{task.description}"))
    with Bars(*columns, console=Console(stderr=True), auto_refresh=False) as bars:
        tasks: dict[str, Any] = {}

        def show(progress: "PipelineProgress") -> None:
            if progress.name not in tasks:
                tasks[progress.name] = bars.add_task(progress.name, total=None)
            total = progress.total
            if total is None and bounded and progress.lag is not None:
                total = progress.rows_in + progress.lag
            bars.update(
                tasks[progress.name], description=progress.line(), completed=progress.rows_in, total=total or None
            )
            bars.refresh()

        yield show


def _lines() -> Callable[["PipelineProgress"], None]:
    """Print one line when the state changes, and every ten seconds while messages come."""
    shown: dict[str, tuple[str, int, int]] = {}

    def show(progress: "PipelineProgress") -> None:
        state, rows, at = shown.get(progress.name, ("", -1, 0))
        news = progress.rows_in != rows and progress.updated_ms - at >= 10_000
        if progress.state != state or news:
            shown[progress.name] = progress.state, progress.rows_in, progress.updated_ms
            print(progress.line(), file=sys.stderr, flush=True)

    return show
