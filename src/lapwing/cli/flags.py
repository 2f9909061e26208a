"""Read the settings of a program from flags, in Go's syntax, and from a TOML file."""

import sys
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from lapwing import kernel
from lapwing.cli.streams import open_closed
from lapwing.errors import ConfigError
from lapwing.names import NSQ_VERSION
from lapwing.net.options import Setting, by_key, settings
from lapwing.records import dataclass

Options = TypeVar("Options")


class FlagError(ConfigError):
    """An unknown flag or a bad value: usage, exit code 2."""


class HelpWanted(ConfigError):
    """The operator asked for help: usage, exit code 0."""


@dataclass(frozen=True, slots=True)
class Parsed(Generic[Options]):
    """The settings, and where each comes from."""

    options: Options
    by_flag: frozenset[str]  # names of the fields
    by_file: frozenset[str]
    rest: list[str]  # from the first argument that is no flag

    def given(self, name: str) -> bool:
        """Return whether the operator set this field."""
        return name in self.by_flag or name in self.by_file


def parse(options: type[Options], arguments: Sequence[str]) -> Parsed[Options]:
    """Return the options of `arguments` and of the config file that they name: flag over file over default.

    Raises `HelpWanted`, `FlagError`, or plain `ConfigError` for a file that cannot be used.
    """
    flagged, rest = parse_flags(options, arguments)
    path = flagged.get("config", "")
    filed = read_file(options, path) if path else {}
    made = options(**{**filed, **flagged})
    return Parsed(made, frozenset(flagged), frozenset(filed), rest)


def parse_flags(options: type[Any], arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return field values by name for the flags at the start of `arguments`, and the other arguments."""
    known = {setting.flag: setting for setting in settings(options)}
    values: dict[str, Any] = {}
    left = list(arguments)
    while left:
        argument = left[0]
        if len(argument) < 2 or argument[0] != "-":
            break
        left.pop(0)
        if argument == "--":
            break
        body = argument[2:] if argument.startswith("--") else argument[1:]
        if body[0] in "-=":
            raise FlagError(f"bad flag syntax: {argument}")
        name, equals, text = body.partition("=")
        setting = known.get(name)
        if setting is None:
            if name in ("h", "help"):
                raise HelpWanted("help requested")
            raise FlagError(f"flag provided but not defined: -{name}")
        if not equals:
            if setting.kind.boolean:
                text = "true"
            elif left:
                text = left.pop(0)
            else:
                raise FlagError(f"flag needs an argument: -{name}")
        value = _read_flag(setting, text)
        if setting.kind.repeatable:
            value = values.get(setting.name, ()) + value
            value = tuple(sorted(value, reverse=True)) if isinstance(value[0], float) else value
        values[setting.name] = value
    return values, left


def _read_flag(setting: Setting, text: str) -> Any:
    try:
        return setting.kind.from_flag(text)
    except ValueError as error:
        what = "boolean value" if setting.kind.boolean else "value"
        raise FlagError(f'invalid {what} "{text}" for flag -{setting.flag}: {error}') from error


def read_file(options: type[Any], path: str) -> dict[str, Any]:
    """Return the field values that the TOML file at `path` sets; unknown keys are ignored."""
    import tomllib

    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"failed to load config file {path} - {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"failed to load config file {path} - {error}") from error
    values = {}
    for key, setting in by_key(options).items():
        if key in content:
            try:
                values[setting.name] = setting.kind.from_file(content[key])
            except ValueError as error:
                text = f"failed to resolve option {key} = {content[key]!r} of config file {path} - {error}"
                raise ConfigError(text) from error
    return values


def usage(options: type[Any], program: str, example: str = "") -> str:
    """Return all flags with kinds, help and defaults, and an example."""
    lines = [f"Usage of {program}:"]
    for setting in sorted(settings(options), key=lambda setting: setting.flag):
        lines.append(f"  -{setting.flag} {setting.kind.name}".rstrip())
        default = setting.default(options)
        if setting.kind.name == "string" and setting.shown is None:
            default = f'"{default}"'
        more = " (may be given multiple times)" if setting.kind.repeatable else ""
        lines.append(f"    \t{setting.help}{more}" + (f" (default {default})" if default else ""))
    if example:
        lines += ["", "Example:", f"  {example}"]
    return "\n".join(lines) + "\n"


def read(
    options: type[Options], program: str, arguments: Sequence[str] | None = None, example: str = ""
) -> Parsed[Options]:
    """Parse for a `main`: errors go to stderr, and the program ends with the right exit code."""
    open_closed()
    try:
        return parse(options, sys.argv[1:] if arguments is None else arguments)
    except HelpWanted:
        sys.stderr.write(usage(options, program, example))
        raise SystemExit(0) from None
    except FlagError as error:
        sys.stderr.write(f"{error}\n{usage(options, program, example)}")
        raise SystemExit(2) from None
    except ConfigError as error:
        sys.stderr.write(f"{program}: {error}\n")
        raise SystemExit(1) from None


def version_text(program: str) -> str:
    """Return the output of `--version`; clients parse it."""
    twin = "compiled" if kernel.COMPILED else "pure"
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{program} v{NSQ_VERSION} (built w/python{python}-{twin})"


def table(options: type[Any]) -> str:
    """Return the settings as a Markdown table, for the documentation."""
    rows = ["| flag | config key | default | meaning |", "|---|---|---|---|"]
    for setting in settings(options):
        kind = f" {setting.kind.name}" if setting.kind.name else ""
        default = setting.default(options)
        key = f"`{setting.key}`" if setting.key else ""
        shown = f"`{default}`" if default and setting.shown is None else default
        meaning = setting.help.replace("|", "\\|") + (", repeatable" if setting.kind.repeatable else "")
        rows.append(f"| `--{setting.flag}`{kind} | {key} | {shown} | {meaning} |")
    return "\n".join(rows) + "\n"
