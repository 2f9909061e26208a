"""A pipeline as it was written down, in YAML, in Python or on the command line, becomes checked settings.

Every complaint names the place (`file:line`), the fault, and what to do instead.
"""

import dataclasses
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import yaml

from lapwing.errors import ConfigError
from lapwing.spark.failures import raised_in
from lapwing.spark.pipelines.settings.kind_settings import (
    ALL_TOPICS,
    DEFAULT_NSQD,
    KINDS,
    ArchiveSettings,
    PipelineSettings,
    ReplaySettings,
    StreamSettings,
    TableSettings,
    TransformSettings,
)
from lapwing.spark.pipelines.settings.values import BadSetting, Parse, meant

_VARIABLE: Final = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}")
_INSIDE: Final = re.compile(r" \(line (\d+), column \d+\)$")  # the place in an expression, as `analysis` writes it


@dataclass(frozen=True)
class PipelineSpec:
    """A pipeline: its settings, and the function of one that is written in Python."""

    settings: PipelineSettings
    function: Callable[[Any], Any] | None = None
    origin: str = ""  # the file it was read from
    lines: Mapping[str, int] = field(default_factory=dict)  # where in that file the values begin

    @property
    def name(self) -> str:
        return self.settings.name

    def located(self, complaint: str) -> str:
        """Return a complaint of the form `name: setting: what`, with the file's line in the place of the name."""
        what = complaint.removeprefix(f"{self.name}: ")
        if what == complaint or not self.origin:
            return complaint
        line = self.lines.get(what.partition(":")[0])
        if line is None:
            return f"{self.origin}: {what}"
        if inside := _INSIDE.search(what):
            return f"{self.origin}:{line + int(inside[1]) - 1}: {what[: inside.start()]}"
        return f"{self.origin}:{line}: {what}"


@dataclass
class _Given:
    """Settings as they were written, each with the place it stands at."""

    origin: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    function: Callable[[Any], Any] | None = None

    def put(self, key: str, value: Any, place: str) -> None:
        self.values[key] = value
        self.places[key] = place
        self.lines.pop(key, None)


def load(what: str, overrides: Iterable[str] = (), extra: Mapping[str, Any] | None = None) -> list[PipelineSpec]:
    """Return the pipelines that `what` names: a kind of pipeline, or a YAML or Python file with one or more.

    `overrides` are `key=value` or `name.key=value` of the command line; `extra` holds the values of its other flags.
    A key that the pipeline does not have is passed over in both: another one of the same command may have it.
    """
    return [_check(given, list(overrides), extra or {}) for given in _read(what)]


def unused(overrides: Iterable[str], specs: Iterable[PipelineSpec]) -> list[str]:
    """Return those overrides that none of the pipelines has taken."""
    return [text for text in overrides if not any(_applies(text, spec.settings) for spec in specs)]


def hint(override: str, specs: Iterable[PipelineSpec]) -> str:
    """Return what may have been meant by an override that no pipeline has taken."""
    known = sorted({key for spec in specs for key in keys(spec.settings.kind)})
    return f"has no such setting; {meant(_split(override)[1], known)}"


def keys(kind: str) -> list[str]:
    """Return the settings of a kind of pipeline."""
    return [each.name for each in dataclasses.fields(KINDS[kind])]


def facts(kind: str, key: str) -> Mapping[str, Any]:
    """Return what is known of a setting: `about`, `example`, `fixed`, and its `default`."""
    each = next(each for each in dataclasses.fields(KINDS[kind]) if each.name == key)
    missing = each.default is dataclasses.MISSING
    return {**each.metadata, "default": {} if missing else each.default}


def _read(what: str) -> list[_Given]:
    if what in KINDS:
        return [_Given("", {"kind": what, "name": what}, {"kind": "", "name": ""})]
    path = Path(what)
    if path.suffix not in (".yaml", ".yml", ".py"):
        hint = meant(what, KINDS, f"there are {', '.join(KINDS)}, and files ending in .yaml or .py")
        raise ConfigError(f"no pipeline is called {what}; {hint}")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; `lapwing pipeline init` writes one to start from")
    return _read_python(path) if path.suffix == ".py" else _read_yaml(path)


def _read_yaml(path: Path) -> list[_Given]:
    """Return the pipelines of a file: one, or several with `---` between them."""
    try:
        nodes = list(yaml.compose_all(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error}") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}{line}: not YAML: {_not_yaml(error)}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    nodes = [node for node in nodes if node is not None and node.value != ""]
    if not nodes:
        raise ConfigError(f"{path}: empty; `lapwing pipeline init` writes a file to start from")
    found = [_read_document(path, node) for node in nodes]
    for given in found:
        if "name" not in given.values:
            if len(found) > 1:
                raise ConfigError(f"{path}: a file with several pipelines needs a name for each")
            given.values["name"] = path.stem
    return found


def _read_document(path: Path, node: yaml.Node) -> _Given:
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: `key: value` lines expected")
    given = _Given(str(path))
    maker = yaml.SafeLoader("")
    expanded: set[int] = set()
    for key_node, value_node in node.value:
        place = f"{path}:{key_node.start_mark.line + 1}"
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if not isinstance(key, str):
            raise ConfigError(f"{place}: a key is a word")
        if key in given.values:
            raise ConfigError(f"{place}: {key} stands here twice, first at line {given.places[key].rpartition(':')[2]}")
        _expand(value_node, place, key, expanded)
        try:
            value = cast(Any, maker).construct_object(value_node, deep=True)
        except yaml.MarkedYAMLError as error:
            raise ConfigError(f"{place}: {key}: {_not_yaml(error)}") from error
        except (ValueError, OverflowError) as error:  # what looks like a date or a number, and is none
            raise ConfigError(f"{place}: {key}: {value_node.value!r}: {error}") from error
        if value is not None:  # `key:` alone is no value
            given.put(key, value, place)
            # a block of text begins below the mark that announces it
            given.lines[key] = value_node.start_mark.line + 1 + (getattr(value_node, "style", None) in ("|", ">"))
    return given


def _expand(node: yaml.Node, place: str, key: str, done: set[int]) -> None:
    """Put environment variables into the words of a value: `${NAME}`, `${NAME:-default}`; `$${` is a plain `${`.

    `done` has the nodes that were expanded: one that has an anchor stands in several places, perhaps in itself.
    """
    if id(node) in done:
        return
    done.add(id(node))

    def value_of(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        if name is None:
            return "${"
        value = os.environ.get(name, default)
        if value is None:
            default = f"${{{name}:-...}}"
            raise ConfigError(f"{place}: {key}: the environment variable {name} is not set; set it, or write {default}")
        return value

    if isinstance(node, yaml.ScalarNode):
        expanded = _VARIABLE.sub(value_of, node.value)
        if expanded != node.value:
            node.value = expanded
            if node.style is None:  # a bare word may have become a number
                node.tag = cast(Any, yaml.SafeLoader("")).resolve(yaml.ScalarNode, expanded, (True, False))
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _expand(each, place, key, done)
    elif isinstance(node, yaml.MappingNode):
        for _, each in node.value:
            _expand(each, place, key, done)


def _not_yaml(error: yaml.MarkedYAMLError) -> str:
    """Return what is wrong with a text, and where that began if it was further up."""
    problem = str(error.problem or error.context)
    if r"'\t'" in problem:
        return "a tab; YAML wants spaces there"
    begun, seen = error.context_mark, error.problem_mark
    if error.context and begun and seen and begun.line != seen.line:
        return f"{problem} {error.context} that begins at line {begun.line + 1}"
    return problem


class SessionNeeded(ConfigError):
    """A Python file that can only be run where Spark has a session, as for the type of a `@udf("double")`."""


def _read_python(path: Path) -> list[_Given]:
    """Run a Python file; return the pipelines that its `@pipeline` functions describe."""
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException

    from lapwing.spark.pipelines import python

    module_spec = importlib.util.spec_from_file_location(f"lapwing_pipeline_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module
    by_value: Callable[[Any], None] = cloudpickle.register_pickle_by_value
    by_value(module)  # workers cannot import it: its functions are sent to them
    python.defined.clear()
    try:
        module_spec.loader.exec_module(module)
    except ConfigError:
        raise
    except PySparkException as error:
        needed = error.getCondition() == "SESSION_OR_CONTEXT_NOT_EXISTS"
        raise (SessionNeeded if needed else ConfigError)(raised_in(error, str(path))) from error
    except Exception as error:
        raise ConfigError(raised_in(error, str(path))) from error
    if not python.defined:
        raise ConfigError(f"{path}: no function has @pipeline (from lapwing.spark.pipelines.python import pipeline)")
    found = []
    for function, values in python.defined:
        place = f"{path}:{function.__code__.co_firstlineno}"
        given = _Given(str(path), function=function)
        for key, value in {"kind": "transform", "name": function.__name__, **values}.items():
            given.put(key, value, place)
        found.append(given)
    return found


def _check(given: _Given, overrides: list[str], extra: Mapping[str, Any]) -> PipelineSpec:
    kind = given.values.pop("kind", None)
    if kind is None:
        raise ConfigError(f"{given.origin}: no kind; set kind: {', '.join(KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{_at(given, 'kind')}no kind of pipeline is called {kind}; {meant(str(kind), KINDS)}")
    known = keys(kind)
    for key in ("nsqd", "lookupd"):  # the same word as elsewhere for HTTP addresses
        if f"{key}_http" in given.values and key not in given.values:
            given.put(key, given.values.pop(f"{key}_http"), given.places[f"{key}_http"])
    for key in given.values:
        if key not in known:
            hint = meant(key, known, f"{kind} has: {', '.join(known)}")
            raise ConfigError(f"{_at(given, key)}unknown key {key}; {hint}")
    for key, value in extra.items():
        if key in known:
            given.put(key, value, "--" + key)
    for text in overrides:
        name, key, value = _split(text)
        if key in known and name in ("", given.values["name"], kind):
            given.put(key, value, f"--set {text}")
    values: dict[str, Any] = {}
    for key, value in given.values.items():
        parse = cast(Parse, facts(kind, key)["parse"])
        try:
            values[key] = parse(value)
        except BadSetting as error:
            raise ConfigError(f"{_at(given, key)}{key}: {error}") from error
    settings = KINDS[kind](**values)
    if not settings.nsqd and not settings.lookupd:
        settings = dataclasses.replace(settings, nsqd=DEFAULT_NSQD)
    if isinstance(settings, ArchiveSettings) and not settings.topics and not settings.pattern:
        settings = dataclasses.replace(settings, pattern=ALL_TOPICS)
    spec = PipelineSpec(settings, given.function, given.origin, given.lines)
    for problem in problems(spec):
        raise ConfigError(f"{given.origin or kind}: {problem}")
    return spec


def _split(text: str) -> tuple[str, str, str]:
    """(pipeline, key, value) of a `--set`."""
    left, equals, value = text.partition("=")
    if not equals or not left:
        raise ConfigError(f"--set {text}: key=value expected")
    name, _, key = left.rpartition(".")
    return name, key, value


def _applies(text: str, settings: PipelineSettings) -> bool:
    name, key, _ = _split(text)
    return key in keys(settings.kind) and name in ("", settings.name, settings.kind)


def _at(given: _Given, key: str) -> str:
    place = given.places.get(key) or given.origin
    return f"{place}: " if place else ""


def problems(spec: PipelineSpec) -> list[str]:
    """Return what is wrong with settings that are each right by themselves."""
    found: list[str] = []
    settings = spec.settings
    if settings.nsqd and settings.lookupd:
        found.append("nsqd and lookupd exclude each other")
    if isinstance(settings, StreamSettings) and bool(settings.topics) == bool(settings.pattern):
        found.append("exactly one of topics and pattern is needed: what should be read?")
    if isinstance(settings, TransformSettings) and bool(settings.sql) == (spec.function is not None):
        missing = "sql is missing: a query over the view `input`"
        found.append("a Python function takes no sql" if settings.sql else missing)
    if isinstance(settings, TableSettings):
        found += _problems_of_table(settings)
    if isinstance(settings, TransformSettings) and settings.reads(settings.to):
        found.append(f"to: {settings.to} is also read; the pipeline would feed itself")
    if isinstance(settings, ReplaySettings):
        if not settings.topics:
            found.append("topics is missing: what should be replayed?")
        if not settings.to and not settings.dry_run:
            found.append("to is missing: the topic to publish to (or dry_run: true)")
    return found


def _problems_of_table(settings: TableSettings) -> list[str]:
    found: list[str] = []
    if settings.store == "jdbc" and not settings.table:
        found.append("table is missing: the name of the table in the database")
    if settings.store == "jdbc" and not settings.url.startswith("jdbc:"):
        found.append("url is missing: the JDBC URL of the database, such as jdbc:postgresql://localhost/shop")
    if settings.key and settings.store != "jdbc":
        found.append("key is for store: jdbc; files get every message as a row of its own")
    if settings.format in ("text", "binary"):
        found.append(f"format: {settings.format} has no columns; json, csv, avro or protobuf has (or use an archive)")
    return found
