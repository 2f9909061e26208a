"""Bind a handler of an `App`: the annotation of its body decides how the body is decoded.

Other parameters are `message`, `producer` and `app`, by their annotation or their name.
"""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lapwing.client import bodies
from lapwing.client.message import Message, Reject, text_of
from lapwing.client.producer import Producer
from lapwing.client.workers import Handler
from lapwing.errors import ConfigError

if TYPE_CHECKING:
    from lapwing.client.app import App

_BODY: Final = "body"
_NAMES: Final = ("message", "producer", "app")


def bind(handler: Callable[..., Any], app: "App") -> Handler:
    """Return `handler` as a function of a message. Raises `ConfigError` for parameters that cannot be filled.

    A body that does not decode is rejected with the reason, so it becomes a dead letter where the channel keeps them.
    """
    roles, annotation = _roles(handler, type(app))
    if roles == ["message"]:
        return handler
    try:
        decode = bodies.decoder(annotation) if _BODY in roles else None
    except ConfigError as error:
        raise ConfigError(f"{_label(handler)}: {error}") from error
    return functools.update_wrapper(_call(handler, roles, decode, bodies.name_of(annotation), app), handler)


class BoundInProcess:
    """A handler that a worker process binds again: what `bind` returns cannot be sent there."""

    def __init__(self, handler: Callable[..., Any], app: "App") -> None:
        roles, _ = _roles(handler, type(app))
        if "producer" in roles or "app" in roles:
            raise ConfigError(f"{_label(handler)}: run is 'processes', where there is neither a producer nor an app")
        self._handler = handler
        self._bound: Handler = bind(handler, app)

    def __call__(self, message: Message) -> Any:
        return self._bound(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _bound_again, (self._handler,)


def _bound_again(handler: Callable[..., Any]) -> BoundInProcess:
    from lapwing.client.app import App

    return BoundInProcess(handler, App("127.0.0.1:4150"))  # which it never connects to


def _label(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__qualname__", repr(handler))


def _roles(handler: Callable[..., Any], app: type[Any]) -> tuple[list[str], Any]:
    """Return what each parameter is filled with, and the annotation of the body."""
    label = _label(handler)
    try:
        own = handler.func if isinstance(handler, functools.partial) else handler
        named = inspect.isfunction(inspect.unwrap(own)) or inspect.ismethod(own)
        hints = typing.get_type_hints(own if named else type(own).__call__)
        parameters = inspect.signature(handler).parameters.values()
    except (NameError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{label}: its annotations cannot be read: {error}") from error
    kinds = {Message: "message", Producer: "producer", app: "app"}
    roles: list[str] = []
    annotation: Any = None
    for parameter in parameters:
        name, hint = parameter.name, hints.get(parameter.name)
        role = kinds.get(hint) if isinstance(hint, type) else None
        if role is None and name in _NAMES and hint is None:
            role = name
        if role is None and (parameter.default is not parameter.empty or parameter.kind is parameter.VAR_POSITIONAL):
            break  # its defaults hold, for it and those behind it
        if role is None and (_BODY in roles or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD):
            raise ConfigError(f"{label}: parameter {name}: expected one body, and message, producer or app")
        if role is None:
            if hint is None:
                raise ConfigError(f"{label}: parameter {name} has no annotation, such as `{name}: bytes`")
            role, annotation = _BODY, hint
        roles.append(role)
    if not roles:
        raise ConfigError(f"{label}: expected a parameter for the body or the message")
    return roles, annotation


def _call(
    handler: Callable[..., Any], roles: list[str], decode: bodies.Decoder | None, wanted: str, app: "App"
) -> Handler:
    if decode is None and roles == [_BODY]:
        return lambda message: handler(message._row[3])
    if decode is None and roles == [_BODY, "message"]:
        return lambda message: handler(message._row[3], message)

    def decoded(message: Message) -> Any:
        if decode is None:
            return message._row[3]
        try:
            return decode(message._row[3])
        except Exception as error:  # whatever a decoder or a class of the program raises
            raise Reject(f"the body is no {wanted}", f"{type(error).__name__}: {text_of(error)}") from error

    if roles == [_BODY]:
        return lambda message: handler(decoded(message))
    if roles == [_BODY, "message"]:
        return lambda message: handler(decoded(message), message)
    fill: dict[str, Callable[[Message], Any]] = {
        _BODY: decoded,
        "message": lambda message: message,
        "producer": lambda message: app.producer,
        "app": lambda message: app,
    }
    filled = [fill[role] for role in roles]
    return lambda message: handler(*[each(message) for each in filled])
