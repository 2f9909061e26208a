"""A commented file for each kind of pipeline, made from what is known of its settings."""

import textwrap
from typing import Any, Final

from lapwing.errors import ConfigError
from lapwing.spark.pipelines.settings import spec
from lapwing.spark.pipelines.settings.kind_settings import DEFAULT_NSQD, KINDS
from lapwing.spark.pipelines.settings.values import meant

# settings that stand in the file as they are; all others are there as comments
_SAID: Final[dict[str, dict[str, str]]] = {
    "archive": {"topics": "[orders]"},
    "table": {
        "topics": "[orders]",
        "schema": "id bigint, at bigint, amount double, country string",
        "time": "timestamp_millis(at)",
        "partition": "day",
    },
    "transform": {
        "topics": "[orders]",
        "schema": "id bigint, amount double, country string",
        "sql": "|\n  select id, amount * 1.19 as gross, country\n  from input\n  where amount > 0",
        "to": "orders.gross",
    },
    "replay": {"topics": "[orders]", "to": "orders.again", "since": '"2026-01-01T00:00:00Z"'},
}


def template(kind: str) -> str:
    """Return the text of a file that runs as it stands."""
    if kind not in KINDS:
        raise ConfigError(f"no kind of pipeline is called {kind}; {meant(kind, KINDS)}")
    about = (KINDS[kind].__doc__ or "").strip()
    lines = [f"# {about}", "# Run it: lapwing pipeline run THIS_FILE", "", f"kind: {kind}", ""]
    said = {"nsqd": f"[{', '.join(DEFAULT_NSQD)}]", **_SAID[kind]}
    for key in spec.keys(kind):
        facts = spec.facts(kind, key)
        lines += [f"# {line}" for line in textwrap.wrap(_meaning(facts), 100)]
        if key in said:
            value = said[key]
            lines.append(f"{key}:{value}" if value.startswith("\n") else f"{key}: {value}")
        else:
            lines.append(f"# {key}: {_shown(facts)}".rstrip())
        lines.append("")
    return "\n".join(lines)


def _meaning(facts: Any) -> str:
    """Return what a setting is for, with the words it may be where these are few."""
    about: str = facts["about"]
    choices = getattr(facts["parse"], "choices", ())
    return f"{about.rstrip('.')}: {', '.join(choices[:-1])} or {choices[-1]}." if choices else about


def _shown(facts: Any) -> str:
    default = facts["default"]
    if facts["example"] and not default:
        return str(facts["example"])
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}s"
    if isinstance(default, tuple):
        return f"[{', '.join(default)}]"
    return "" if default is None or default == {} else str(default)
