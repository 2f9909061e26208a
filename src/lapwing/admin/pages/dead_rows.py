"""The columns and rows of the page of dead letters, from the answers of nsqd: pure."""

from datetime import datetime
from typing import Any, Final

from lapwing.admin.links import PageLinks
from lapwing.admin.pages.message_rows import body_of, shortened, shown_body
from lapwing.admin.pages.table_rows import Columns, Label, TableColumn, linked
from lapwing.client.cluster import DeadTopic, Json
from lapwing.client.format import count, several, utc_time

_TONES: Final = {"attempts": "warn", "rejected": "bad", "expired": "", "overflow": "warn"}
_STATES: Final = {"running": "info", "done": "good", "cancelled": "", "failed": "bad"}
_KINDS: Final = {"channel": "redrive to the channel", "topic": "publish again", "nowhere": "purge"}


def seconds_of(time: Any) -> float:
    """Return the Unix seconds of an RFC 3339 time; 0 when there is none."""
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return 0.0


def reason_labels(reason: Any) -> list[Label]:
    """Return why a message was given up, as a label."""
    return [[str(reason), _TONES.get(str(reason), ""), ""]] if reason else []


# ---- topics, and what is done with their letters ----


def _state_label(task: Json, about: str = "") -> Label:
    progress = f"{count(task['redriven'])} done, {count(task['left'])} left"
    return [str(task["state"]), _STATES.get(task["state"], ""), f"{about}{progress}"]


def topic_columns(links: PageLinks) -> Columns:
    """Return the columns of dead-letter topics."""

    def redrives(topic: DeadTopic) -> list[Label]:
        return [_state_label(task, f"{node}: ") for node, task in topic.tasks.items()]

    return (
        TableColumn(
            "topic", "Dead-letter topic", "link", wide=True, cell=lambda each: linked(each.name, links.dead(each.name))
        ),
        TableColumn("letters", "Letters", title="Not redriven or purged yet"),
        TableColumn("nodes", "Nodes", title="nsqds that have the topic", cell=lambda each: len(each.by_node)),
        TableColumn("redrive", "Redrive", "labels", cell=redrives),
    )


def _wanted(task: Json) -> str:
    return ", ".join(f"{key}={value}" for key, value in task["filter"].items()) or "all letters"


def _problems(task: Json) -> str:
    skipped = "; ".join(f"{count(number)} skipped: {reason}" for reason, number in task["skipped"].items())
    return "; ".join(text for text in (str(task["error"] or ""), skipped) if text)


_LEFT_THERE: Final = "Their topic or channel is gone: they stay dead letters"
TASK_COLUMNS: Final = (  # of the last redrive or purge of each node
    TableColumn("node", "Node", "text"),
    TableColumn("kind", "What", "text", cell=lambda task: _KINDS.get(task["to"], str(task["to"]))),
    TableColumn("state", "State", "labels", cell=lambda task: [_state_label(task)]),
    TableColumn("done", "Done", cell="redriven"),
    TableColumn("skipped", "Skipped", title=_LEFT_THERE, cell=lambda task: sum(task["skipped"].values())),
    TableColumn(
        "left",
        "Left",
        title="Letters that it has not looked at yet",
        cell=lambda task: task["left"] if task["state"] == "running" else None,
    ),
    TableColumn("rate", "Rate", "text", cell=lambda task: task["rate"] or "no limit"),
    TableColumn("filter", "Filter", "code", cell=_wanted),
    TableColumn("started", "Started", "stamp", "In UTC", cell=lambda task: seconds_of(task["started"])),
    TableColumn("error", "Error", "text", wide=True, cell=_problems),
)


# ---- letters ----


GROUP_COLUMNS: Final = (
    TableColumn("channel", "Channel", "text", cell=lambda group: f"{group['topic']}/{group['channel']}"),
    TableColumn("reason", "Reason", "labels", cell=lambda group: reason_labels(group["reason"])),
    TableColumn("error", "Error", "code", wide=True, cell=lambda group: group["error"] or "no error was given"),
    TableColumn("letters", "Letters"),
    TableColumn("first", "First", "stamp", "Given up first, in UTC", cell=lambda group: seconds_of(group["first"])),
    TableColumn("last", "Last", "stamp", "Given up last, in UTC", cell=lambda group: seconds_of(group["last"])),
)


def letter_key(letter: Json) -> str:
    """Return the key of the row of a letter."""
    return f"{letter['in']}|{letter['sequence']}"


def letter_columns(text: str = "") -> Columns:
    """Return the columns of letters; of a body that contains `text` that part is shown."""
    return (
        TableColumn("at", "Given up", "stamp", "In UTC", cell=lambda letter: seconds_of(letter["at"])),
        TableColumn("channel", "Channel", "text", cell=_place),
        TableColumn("reason", "Reason", "labels", cell=lambda letter: reason_labels(letter["reason"])),
        TableColumn("error", "Error", "code", cell=lambda letter: first_line(letter["error"])),
        TableColumn("body", "Body", "code", cell=lambda letter: shown_body(body_of(letter), text)),
    )


def _place(letter: Json) -> str:
    return f"{letter['topic'] or '?'}/{letter['channel'] or '?'}"


def first_line(error: Any) -> str:
    """Return the part of an error that a table shows."""
    return str(error or "").partition("\n")[0][:240]


def letter_message(letter: Json) -> Json:
    """Return a letter for the message view: its facts, its error beside its body."""
    died = int(letter.get("count") or 1)
    facts = [
        ["Channel", _place(letter)],
        ["Reason", letter["reason"] or "unknown"],
        ["Failures", letter["failures"]],
        ["Deliveries", letter["deliveries"]],
        ["Given up", shown_time(letter["at"])],
        ["First failed", shown_time(letter["first_failed"])],
        ["Published", shown_time(letter["published"])],
        ["Last held by", letter["consumer"]],
        ["Died here", several(died, "time") if died > 1 else None],
        ["Id", letter["id"]],
        ["Sequence", letter["sequence"]],
        ["Node", letter["in"]],
    ]
    return with_facts(letter, facts)


def with_facts(message: Json, facts: list[list[Any]]) -> Json:
    """Return a message for the message view, with those facts that are known."""
    shown = {key: message[key] for key in ("body", "body_base64", "headers") if message.get(key) is not None}
    shown["facts"] = [[name, str(value)] for name, value in facts if value not in (None, "")]
    shown["error"] = message["error"] or ""
    return shortened(shown)


def shown_time(text: Any) -> str | None:
    """Return an RFC 3339 time as the pages show it; None when there is none."""
    seconds = seconds_of(text)
    return f"{utc_time(seconds)} UTC" if seconds else None
