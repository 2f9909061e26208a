"""Commands from functions: the signature gives options and arguments, the docstring gives the help.

Typer and click would do this too, but take 0.3 s to import, which is more than most commands need.
"""

import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from lapwing import durations
from lapwing.errors import ConfigError

Completer = Callable[[str], Sequence[str]]

_KINDS: Final = {int: "INTEGER", float: "NUMBER", str: "TEXT", Path: "PATH"}
_USAGE_ERROR: Final = 2
_SECOND: Final = 1_000_000_000  # ns
_ALIASES: Final = {"ls": "list", "rm": "remove"}  # words of the shell that people type by habit


class UsageError(ConfigError):
    """The command line is wrong. The text names what is wrong and what is allowed."""


class ArgumentMissing(UsageError):
    """A value that has to be given is not there."""


class Option:
    """A value that a flag gives: `Annotated[int, Option("--count", "-n", min=1, help="...")] = 10`."""

    def __init__(
        self,
        *flags: str,
        help: str = "",
        metavar: str = "",
        env: str = "",
        min: float | None = None,
        max: float | None = None,
        choices: Sequence[str] = (),
        complete: Completer | None = None,
        duration: bool = False,
    ) -> None:
        """Without `flags` the parameter's name is the flag. A switch with an opposite is `--spark/--no-spark`.

        `env` is shown in the help; the command itself reads the variable. The value of a `duration` is written with a
        unit, and the function gets seconds.
        """
        self.flags = flags
        self.help = help
        self.metavar = metavar
        self.env = env
        self.min = min
        self.max = max
        self.choices = tuple(choices)
        self.complete = complete
        self.duration = duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A value that stands by itself."""

    help: str = ""
    metavar: str = ""
    choices: Sequence[str] = ()
    complete: Completer | None = None


@dataclass(frozen=True, slots=True)
class Param:
    """One option or argument of a command."""

    name: str
    kind: type  # of one value
    many: bool
    default: Any
    required: bool
    spec: Option | Argument
    on: tuple[str, ...] = ()  # flags
    off: tuple[str, ...] = ()  # flags of a switch's opposite

    @property
    def is_switch(self) -> bool:
        """Whether the option takes no value."""
        return self.kind is bool

    @property
    def is_duration(self) -> bool:
        """Whether the value is written with a unit, such as 30s."""
        return isinstance(self.spec, Option) and self.spec.duration

    @property
    def label(self) -> str:
        """The flag or the argument's name, for messages."""
        return self.on[0] if self.on else self.metavar

    @property
    def metavar(self) -> str:
        """The name of the value in the help."""
        if self.spec.metavar:
            return self.spec.metavar
        if isinstance(self.spec, Argument):
            return self.name.upper()
        return "|".join(self.spec.choices) or ("DURATION" if self.is_duration else _KINDS[self.kind])

    def convert(self, text: str) -> Any:
        """Return the value that `text` means. Raises `UsageError`."""
        if self.spec.choices and text not in self.spec.choices:
            raise UsageError(f"{self.label} {text}: expected {_listed(self.spec.choices)}")
        try:
            value = durations.parse(text) / _SECOND if self.is_duration else self.kind(text)
        except ValueError as error:
            if self.is_duration:
                raise UsageError(f"{self.label}: {error}") from error
            what = "a whole number" if self.kind is int else "a number"
            raise UsageError(f"{self.label} {text}: expected {what}") from error
        if isinstance(self.spec, Option) and self.kind in (int, float):
            if self.spec.min is not None and not value >= self.spec.min:
                raise UsageError(f"{self.label} {text}: expected {self.shown(self.spec.min)} or more")
            if self.spec.max is not None and not value <= self.spec.max:
                raise UsageError(f"{self.label} {text}: expected {self.shown(self.spec.max)} or less")
        return value

    def shown(self, number: Any) -> str:
        """Return a number as it is written on the command line."""
        if self.is_duration:
            return durations.show(round(number * _SECOND))
        return f"{number:g}" if isinstance(number, float) else f"{number}"


def _params(function: Callable[..., Any]) -> Iterator[tuple[str, type | None, Param]]:
    """Yield each option and argument, with the function's parameter and the dataclass that it is part of."""
    for name, parameter in signature(function).parameters.items():
        annotation = function.__annotations__[name]
        if is_dataclass(annotation):
            assert isinstance(annotation, type)
            for field in fields(annotation):
                yield name, annotation, _param(field.name, field.type, field.default)
        else:
            default = ... if parameter.default is Parameter.empty else parameter.default
            yield name, None, _param(name, annotation, default)


def _param(name: str, annotation: Any, default: Any) -> Param:
    assert get_origin(annotation) is Annotated, f"{name} needs an Option or Argument"
    declared, spec = get_args(annotation)[:2]
    if get_origin(declared) in (UnionType, Union):
        declared = next(each for each in get_args(declared) if each is not type(None))
    many = get_origin(declared) is list
    kind = get_args(declared)[0] if many else declared
    on: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    if isinstance(spec, Option):
        given = spec.flags or (f"--{name.replace('_', '-')}",)
        on = tuple(flag.partition("/")[0] for flag in given)
        off = tuple(flag.partition("/")[2] for flag in given if "/" in flag)
    return Param(name, kind, many, None if default is ... else default, default is ..., spec, on, off)


class Command:
    """A function that can be called from the command line."""

    def __init__(
        self, function: Callable[..., None], *, name: str, example: str, usage_error: int = _USAGE_ERROR
    ) -> None:
        """`usage_error` is the exit status for a wrong command line."""
        self.name = name
        self.example = example
        self.usage_error = usage_error
        self.help = cleandoc(function.__doc__ or "")
        self._function = function
        self._members = list(_params(function))
        self.params = [param for _, _, param in self._members]

    @property
    def options(self) -> list[Param]:
        """The parameters that have flags."""
        return [param for param in self.params if param.on]

    @property
    def arguments(self) -> list[Param]:
        """The parameters that stand by themselves."""
        return [param for param in self.params if not param.on]

    def run(self, path: str, words: Sequence[str]) -> None:
        """Call the function with the values of `words`. Raises `UsageError`; `--help` ends the program."""
        if _asks_for_help(words):
            print(self.help_text(path))
            sys.exit(0)
        values = self.parse(words)
        arguments: dict[str, Any] = {}
        for parameter, group, param in self._members:
            if group is None:
                arguments[parameter] = values[param.name]
            else:
                arguments.setdefault(parameter, (group, {}))[1][param.name] = values[param.name]
        self._function(
            **{name: each[0](**each[1]) if isinstance(each, tuple) else each for name, each in arguments.items()}
        )

    def parse(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the values of all parameters by name. Raises `UsageError`."""
        given: dict[str, list[Any]] = {}
        loose: list[str] = []
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                loose += left
                break
            if not word.startswith("-") or word == "-":
                loose.append(word)
                continue
            flag, text = _split_flag(word)
            param = self._param(flag)
            if param.is_switch:
                if text is not None:
                    raise UsageError(f"{flag} takes no value")
                given[param.name] = [flag in param.on]
                continue
            if text is None:
                if not left:
                    raise UsageError(f"{flag} needs a value: {flag} {param.metavar}")
                text = left.pop(0)
            given.setdefault(param.name, []).append(param.convert(text))
        self._place(loose, given)
        values = {param.name: param.default for param in self.params}
        many = {param.name for param in self.params if param.many}
        return values | {name: found if name in many else found[-1] for name, found in given.items()}

    def _param(self, flag: str) -> Param:
        if (param := self._known(flag)) is not None:
            return param
        known = [each for param in self.options for each in (*param.on, *param.off)]
        raise UsageError(f"there is no option {flag}{guess(flag, known)}")

    def _place(self, loose: list[str], given: dict[str, list[Any]]) -> None:
        arguments = self.arguments
        for position, param in enumerate(arguments):
            behind = sum(each.required for each in arguments[position + 1 :])
            count = max(0, len(loose) - behind) if param.many else min(1, len(loose))
            if count:
                given[param.name] = [param.convert(text) for text in loose[:count]]
                del loose[:count]
            elif param.required:
                raise ArgumentMissing(f"{param.metavar} is missing")
        if loose:
            raise UsageError(f"{loose[0]!r} is one argument too many")

    # ---- help ----

    def usage(self, path: str) -> str:
        """Return the first line of the help."""
        words = [f"Usage: {path}", *(["[OPTIONS]"] if self.options else [])]
        for param in self.arguments:
            text = param.metavar + ("..." if param.many and not param.metavar.endswith("...") else "")
            words.append(text if param.required else f"[{text}]")
        return " ".join(words)

    def rows(self) -> list[tuple[str, str]]:
        """Return each argument and option with what it means."""
        arguments = [(param.metavar, _described(param)) for param in self.arguments if param.spec.help]
        return [*arguments, *((_heading(param), _described(param)) for param in self.options)]

    def help_text(self, path: str, width: int | None = None) -> str:
        """Return the whole help."""
        width = width or terminal_width()
        parts = [self.usage(path), _wrapped(self.help, width)]
        if arguments := [(param.metavar, _described(param)) for param in self.arguments if param.spec.help]:
            parts.append("Arguments:\n" + columns(arguments, width))
        rows = [(_heading(param), _described(param)) for param in self.options]
        parts.append("Options:\n" + columns([*rows, ("--help", "Show this help.")], width))
        parts.append(f"Example: {self.example}")
        return "\n\n".join(parts)

    # ---- completion ----

    def complete(self, words: Sequence[str], incomplete: str) -> list[str]:
        """Return the words that `incomplete` may become, after `words`."""
        before = words[-1] if words else ""
        if before.startswith("-") and (param := self._known(before)) is not None and not param.is_switch:
            return _matching(_candidates(param, incomplete), incomplete)
        if incomplete.startswith("-"):
            flag, equals, text = incomplete.partition("=")
            if equals and (param := self._known(flag)) is not None:
                return [f"{flag}={found}" for found in _matching(_candidates(param, text), text)]
            flags = [each for param in self.options for each in (*param.on, *param.off) if each.startswith("--")]
            return _matching([*flags, "--help"], incomplete)
        loose = self._loose(words)
        arguments = self.arguments
        if not arguments:
            return []
        param = arguments[min(loose, len(arguments) - 1)]
        if loose >= len(arguments) and not param.many:
            return []
        return _matching(_candidates(param, incomplete), incomplete)

    def _known(self, flag: str) -> Param | None:
        return next((param for param in self.options if flag in param.on or flag in param.off), None)

    def _loose(self, words: Sequence[str]) -> int:
        """Count the arguments among `words`."""
        count, left = 0, list(words)
        while left:
            word = left.pop(0)
            if not word.startswith("-"):
                count += 1
            elif "=" not in word and (param := self._known(word)) is not None and not param.is_switch and left:
                left.pop(0)
        return count


class Group:
    """Several commands under one name."""

    def __init__(self, name: str, help: str, *, example: str) -> None:
        self.name = name
        self.help = cleandoc(help)
        self.example = example
        self.commands: dict[str, Command | Group] = {}

    def command(
        self, name: str = "", *, example: str, usage_error: int = _USAGE_ERROR
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register the decorated function as a command."""

        def register(function: Callable[..., None]) -> Callable[..., None]:
            made = Command(function, name=name or function.__name__, example=example, usage_error=usage_error)
            self.commands[made.name] = made
            return function

        return register

    def find(self, name: str) -> "Command | Group":
        """Return the command of that name. Raises `UsageError`."""
        if name.startswith("-"):
            raise UsageError(f"there is no option {name}")
        name = _ALIASES.get(name, name) if name not in self.commands else name
        if name not in self.commands:
            raise UsageError(f"there is no command {name!r}{guess(name, [known for known, _ in self.rows()])}")
        return self.commands[name]

    def run(self, path: str, words: Sequence[str]) -> None:
        """Run the command that the first word names."""
        if not words or words[0] in ("--help", "-h"):
            print(self.help_text(path))
            sys.exit(0 if words else _USAGE_ERROR)
        run(self.find(words[0]), f"{path} {words[0]}", words[1:])

    def rows(self) -> list[tuple[str, str]]:
        """Return each command's name and the first sentence of its help."""
        return [(name, _first_sentence(command.help)) for name, command in self.commands.items()]

    def help_text(self, path: str, width: int | None = None) -> str:
        """Return the whole help."""
        width = width or terminal_width()
        commands = "Commands:\n" + columns(self.rows(), width)
        parts = [f"Usage: {path} COMMAND ...", _wrapped(self.help, width), commands, f"Example: {self.example}"]
        return "\n\n".join(parts)

    def complete(self, words: Sequence[str], incomplete: str) -> list[str]:
        """Return the words that `incomplete` may become, after `words`."""
        if not words:
            names = [name for name, _ in self.rows()]
            return _matching(["--help"] if incomplete.startswith("-") else names, incomplete)
        try:
            return self.find(words[0]).complete(words[1:], incomplete)
        except UsageError:
            return []


def command(*, example: str, usage_error: int = _USAGE_ERROR) -> Callable[[Callable[..., None]], Command]:
    """Make a command of the decorated function."""
    return lambda function: Command(function, name=function.__name__, example=example, usage_error=usage_error)


def run(found: Command | Group, path: str, words: Sequence[str]) -> None:
    """Run a command; a wrong command line ends the program with a sentence and the command's usage."""
    try:
        found.run(path, words)
    except UsageError as error:
        if isinstance(found, Command) and found.usage_error != _USAGE_ERROR:
            print(f"UNKNOWN: {error}")
            sys.exit(found.usage_error)
        usage = found.usage(path) if isinstance(found, Command) else f"Usage: {path} COMMAND ..."
        text = str(error)
        print(f"{usage}\n{path}: {text}{'' if text.endswith('?') else ';'} `{path} --help` explains", file=sys.stderr)
        sys.exit(_USAGE_ERROR)


def _asks_for_help(words: Sequence[str]) -> bool:
    for word in words:
        if word == "--":
            return False
        if word in ("--help", "-h"):
            return True
    return False


def _split_flag(word: str) -> tuple[str, str | None]:
    if word.startswith("--"):
        flag, equals, text = word.partition("=")
        return flag, text if equals else None
    return word[:2], word[2:] or None


def guess(word: str, known: list[str]) -> str:
    """Return `; did you mean tail?` if a known word is like this one, else nothing."""
    from difflib import get_close_matches

    longer = [each for each in known if word != "-" and each.startswith(word)]
    close = longer if word.startswith("-") and longer else get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _candidates(param: Param, incomplete: str) -> Sequence[str]:
    if param.spec.choices:
        return param.spec.choices
    return param.spec.complete(incomplete) if param.spec.complete is not None else ()


def _matching(words: Sequence[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _heading(param: Param) -> str:
    flags = ", ".join(sorted(param.on, key=len))
    if param.is_switch:
        return flags + (f" / {param.off[0]}" if param.off else "")
    return f"{flags} {param.metavar}"


def _described(param: Param) -> str:
    spec, notes = param.spec, []
    if param.many and isinstance(spec, Option):
        notes.append("may be repeated")
    if isinstance(spec, Option):
        if spec.env:
            notes.append(f"environment: {spec.env}")
        if param.default not in (None, "", False, [], ()) and not param.many:
            shown = param.on[0] if param.default is True else param.shown(param.default)
            notes.append(f"default: {shown}")
    return spec.help + (f" [{'; '.join(notes)}]" if notes else "")


def _first_sentence(text: str) -> str:
    return " ".join(text.partition("\n\n")[0].split())


def terminal_width() -> int:
    from shutil import get_terminal_size

    return min(100, max(50, get_terminal_size((100, 24)).columns))


def _wrapped(text: str, width: int) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(textwrap.fill(paragraph, width, break_on_hyphens=False) for paragraph in paragraphs)


def columns(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Return names and texts in two columns."""
    room = min(max(len(name) for name, _ in rows), 34) + 4
    lines = []
    for name, text in rows:
        head = f"  {name}"
        body = textwrap.wrap(text, width - room, break_on_hyphens=False) or [""]
        if len(head) > room - 2:
            lines.append(head)
            head = ""
        lines += [f"{head:<{room}}{body[0]}".rstrip(), *(" " * room + line for line in body[1:])]
    return "\n".join(lines)


SCRIPTS: Final = {  # by shell: what teaches it to complete the words of the program
    "bash": """\
# lapwing completion bash > ~/.local/share/bash-completion/completions/lapwing
_lapwing_complete() {
    local IFS=$'\\n' word="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=($(lapwing __complete "${COMP_WORDS[@]:1:COMP_CWORD-1}" "$word" 2>/dev/null))
}
complete -o default -F _lapwing_complete lapwing
""",
    "zsh": """\
#compdef lapwing
# lapwing completion zsh > "${fpath[1]}/_lapwing"
_lapwing() {
    local -a found
    found=("${(@f)$(lapwing __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a found
}
compdef _lapwing lapwing
""",
    "fish": """\
# lapwing completion fish > ~/.config/fish/completions/lapwing.fish
complete -c lapwing -a '(lapwing __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}
