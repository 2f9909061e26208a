"""The columns and rows of the page of dead letters, from the answers of nsqd: pure."""

from datetime import datetime
from typing import Any, Final

from lapwing.admin.pages.message_rows import body_of, shortened, shown_body
from lapwing.admin.pages.table_rows import Label, Row, TableColumn
from lapwing.client.cluster import DeadTopic, Json
from lapwing.client.format import count, several, utc_time

TOPIC_COLUMNS: Final = (
    TableColumn("topic", "Dead-letter topic", "link", wide=True),
    TableColumn("letters", "Letters", title="Not redriven or purged yet"),
    TableColumn("nodes", "Nodes", title="nsqds that have the topic"),
    TableColumn("redrive", "Redrive", "labels"),
)
TASK_COLUMNS: Final = (
    TableColumn("node", "Node", "text"),
    TableColumn("kind", "What", "text"),
    TableColumn("state", "State", "labels"),
    TableColumn("done", "Done"),
    TableColumn("skipped", "Skipped", title="Their topic or channel is gone: they stay dead letters"),
    TableColumn("left", "Left", title="Letters that it has not looked at yet"),
    TableColumn("rate", "Rate", "text"),
    TableColumn("filter", "Filter", "code"),
    TableColumn("started", "Started", "stamp", "In UTC"),
    TableColumn("error", "Error", "text", wide=True),
)
GROUP_COLUMNS: Final = (
    TableColumn("channel", "Channel", "text"),
    TableColumn("reason", "Reason", "labels"),
    TableColumn("error", "Error", "code", wide=True),
    TableColumn("letters", "Letters"),
    TableColumn("first", "First", "stamp", "Given up first, in UTC"),
    TableColumn("last", "Last", "stamp", "Given up last, in UTC"),
)
LETTER_COLUMNS: Final = (
    TableColumn("at", "Given up", "stamp", "In UTC"),
    TableColumn("channel", "Channel", "text"),
    TableColumn("reason", "Reason", "labels"),
    TableColumn("error", "Error", "code"),
    TableColumn("body", "Body", "code"),
)
_TONES: Final = {"attempts": "warn", "rejected": "bad", "expired": "", "overflow": "warn"}
_STATES: Final = {"running": "info", "done": "good", "cancelled": "", "failed": "bad"}
_KINDS: Final = {"channel": "redrive to the channel", "topic": "publish again", "nowhere": "purge"}


def seconds_of(time: Any) -> float:
    """Return the Unix seconds of an RFC 3339 time; 0 when there is none."""
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except ValueError:
        return 0.0


def topic_row(topic: DeadTopic, href: str) -> Row:
    """Return the row of a dead-letter topic."""
    labels = [_state_label(task, f"{node}: ") for node, task in topic.tasks.items()]
    return [topic.name, [topic.name, href, "", []], topic.letters, len(topic.by_node), labels]


def _state_label(task: Json, about: str = "") -> Label:
    progress = f"{count(task['redriven'])} done, {count(task['left'])} left"
    return [str(task["state"]), _STATES.get(task["state"], ""), f"{about}{progress}"]


def task_row(node: str, task: Json) -> Row:
    """Return the row of the last redrive or purge of one node."""
    wanted = ", ".join(f"{key}={value}" for key, value in task["filter"].items()) or "all letters"
    skipped = sum(task["skipped"].values())
    why = "; ".join(f"{count(number)} skipped: {reason}" for reason, number in task["skipped"].items())
    return [
        node,
        node,
        _KINDS.get(task["to"], str(task["to"])),
        [_state_label(task)],
        task["redriven"],
        skipped,
        task["left"] if task["state"] == "running" else None,
        task["rate"] or "no limit",
        wanted,
        seconds_of(task["started"]),
        "; ".join(text for text in (str(task["error"] or ""), why) if text),
    ]


def group_row(key: str, group: Json) -> Row:
    """Return the row of one group of letters."""
    return [
        key,
        f"{group['topic']}/{group['channel']}",
        reason_labels(group["reason"]),
        group["error"] or "no error was given",
        group["letters"],
        seconds_of(group["first"]),
        seconds_of(group["last"]),
    ]


def reason_labels(reason: Any) -> list[Label]:
    """Return why a message was given up, as a label."""
    return [[str(reason), _TONES.get(str(reason), ""), ""]] if reason else []


def letter_row(letter: Json, text: str = "") -> Row:
    """Return the row of one letter."""
    return [
        f"{letter['in']}|{letter['sequence']}",
        seconds_of(letter["at"]),
        f"{letter['topic'] or '?'}/{letter['channel'] or '?'}",
        reason_labels(letter["reason"]),
        str(letter["error"] or "").partition("\n")[0][:240],
        shown_body(body_of(letter), text),
    ]


def letter_message(letter: Json) -> Json:
    """Return a letter for the message view: its facts, its error beside its body."""
    died = int(letter.get("count") or 1)
    facts = [
        ["Channel", f"{letter['topic'] or '?'}/{letter['channel'] or '?'}"],
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
