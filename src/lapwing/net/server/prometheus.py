"""Prometheus' text format, in which the daemons show their metrics."""

from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def head(name: str, kind: str, text: str) -> str:
    """Return the lines that stand before the samples of a metric."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def line(name: str, labels: dict[str, str], number: float) -> str:
    return f"{name}{label_set(labels)} {number!r}\n"


def single(name: str, kind: str, text: str, number: float) -> str:
    """Return a metric of one sample without labels."""
    return head(name, kind, text) + line(name, {}, number)


def label_set(labels: dict[str, str]) -> str:
    """Return labels as they stand behind a name; nothing if there are none."""
    inside = ",".join(f'{key}="{escape(text)}"' for key, text in labels.items())
    return f"{{{inside}}}" if inside else ""


def escape(text: str) -> str:
    """Return `text` escaped for the value of a label."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
