"""The page of settings and policies: what holds for a topic or channel, where it comes from, and how it is changed."""

import json
from dataclasses import dataclass
from typing import Any, Final

from lapwing.admin.actions import Action
from lapwing.admin.audit import in_words
from lapwing.admin.error_texts import error_text, refusals
from lapwing.admin.pages.elements import Field, Table, button, element, notice, panel
from lapwing.admin.pages.forms import form_dialog
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Label, Row, TableColumn
from lapwing.client.admin import Admin
from lapwing.client.admin_results import Policy, Results, Settings, settled
from lapwing.client.cluster import Json
from lapwing.errors import LapwingError
from lapwing.names import POLICY, own, valid_policy

SETTING_COLUMNS: Final = (
    TableColumn("name", "Setting", "text"),
    TableColumn("value", "Value", "code"),
    TableColumn("origin", "From", "labels"),
    TableColumn("help", "Meaning", "text", wide=True),
)
POLICY_COLUMNS: Final = (
    TableColumn("name", "Policy", "text"),
    TableColumn("topics", "Topics", "code"),
    TableColumn("channels", "Channels", "code"),
    TableColumn("priority", "Priority"),
    TableColumn("settings", "Settings", "code"),
    TableColumn("matches", "Matches now", "text"),
    TableColumn("nodes", "Nodes", "labels"),
    TableColumn("actions", "Actions", "actions"),
)


async def draw(view: PageView) -> None:
    """Draw `/settings`."""
    view.explain("A channel that sets nothing behaves as in NSQ. Settings are kept on each nsqd across restarts.")
    if not view.lapwing_nodes():
        notice("These nsqds are plain NSQ, which has no such settings, or do not answer.")
        return
    topic, channel = view.asked("topic"), view.asked("channel")
    _form(view, topic, channel)
    try:
        if topic:
            await _settings(view, topic, channel)
        await _policies(view)
    except LapwingError as error:
        notice(error_text(error), "error", role="alert")


def _form(view: PageView, topic: str, channel: str) -> None:
    topics = [name for name in view.cluster_view.topics if name == topic or not own(name)]
    found = view.cluster_view.topics.get(topic)
    channels = [each["channel_name"] for each in found["channels"]] if found else []
    with panel(), element("div", None, "lw-form lw-pad"):
        Field(
            "Topic",
            kind="select",
            options=[("", "choose a topic"), *((name, name) for name in topics)],
            value=topic,
            on_change=lambda name: view.go(view.links.settings(name)),
        )
        Field(
            "Channel",
            kind="select",
            options=[("", "the topic itself"), *((name, name) for name in channels)],
            value=channel,
            on_change=lambda name: view.go(view.links.settings(topic, name)),
        )


# ---- settings ----


@dataclass(frozen=True, slots=True)
class Held:
    """One setting on all nodes: its value and origin where they agree, and each node's where they do not."""

    name: str
    value: Any
    origin: str
    by_node: dict[str, tuple[Any, str]]

    @property
    def differs(self) -> bool:
        """Whether the nodes disagree."""
        return len({json.dumps(each) for each in self.by_node.values()}) > 1


def merged(results: Results[Settings]) -> list[Held]:
    """Join the settings of all nodes that answered, in the order of the first."""
    answers = {node: answer.settings for node, answer in results.answers.items()}
    found: list[Held] = []
    for name in next(iter(answers.values()), {}):
        by_node = {
            node: (settings[name].value, settings[name].source)
            for node, settings in answers.items()
            if name in settings
        }
        value, origin = next(iter(by_node.values()))
        found.append(Held(name, value, origin, by_node))
    return found


def shown_value(value: Any) -> str:
    """Return a value as one would write it."""
    return value if isinstance(value, str) else json.dumps(value)


def parse_value(text: str) -> Any:
    """Return the value that was written: JSON where it is JSON, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _setting_row(held: Held, help_text: str) -> Row:
    labels: list[Label] = [[held.origin, "" if held.origin == "default" else "info", ""]]
    if held.differs:
        each = "\n".join(f"{node}: {shown_value(value)} ({origin})" for node, (value, origin) in held.by_node.items())
        labels = [["nodes differ", "warn", each]]
    return [held.name, held.name, shown_value(held.value), labels, help_text]


async def _settings(view: PageView, topic: str, channel: str) -> None:
    brokers = view.admin.brokers
    results = await settled(brokers.settings(topic, channel))
    if not results.answers:
        reasons = "; ".join(refusals(results))
        notice(f"The settings of {topic} cannot be read: {reasons}.", "warning", role="alert")
        return
    described = await brokers.at(view.lapwing_nodes()).describe_settings()
    about = {each["name"]: each for each in described.get("channel" if channel else "topic") or ()}
    place = f"{topic}/{channel}" if channel else topic
    held = {each.name: each for each in merged(results)}
    may_change = view.visitor.may_change
    hint = "choose a row to change it" if may_change else ""
    with panel(f"Settings of {place}", hint):
        table = Table(
            "settings",
            f"Settings of {place}",
            SETTING_COLUMNS,
            on_pick=(lambda name: _ask_setting(view, topic, channel, held[name], about.get(name, {})))
            if may_change
            else None,
        )
    ordered = sorted(held.values(), key=lambda each: each.origin == "default")
    table.show([_setting_row(each, str(about.get(each.name, {}).get("help", ""))) for each in ordered])


def _ask_setting(view: PageView, topic: str, channel: str, held: Held, about: Json) -> None:
    place = f"{topic}/{channel}" if channel else topic
    with form_dialog(view, f"Set {held.name} of {place}") as form:
        element("p", str(about.get("help", "")))
        default = shown_value(about.get("default", ""))
        element("p", f"Now {shown_value(held.value) or 'empty'} (from {held.origin}). Default: {default or 'empty'}.")
        if about.get("kind") == "boolean":
            options = [("true", "true"), ("false", "false")]
            value = form.field("Value", kind="select", options=options, value=shown_value(held.value))
        else:
            value = form.field("Value", value=shown_value(held.value), focus=True)

        async def change(new: Any) -> None:
            changes = {held.name: new}
            await form.submit(
                Action("change_settings", topic, channel),
                f"{held.name}={in_words(new)}" if new is not None else f"{held.name} removed",
                lambda: view.admin.brokers.change_settings(topic, channel, **changes),
                f"Set {held.name} of {place}" if new is not None else f"Removed {held.name} of {place}",
                then=lambda: view.go(view.links.settings(topic, channel)),
            )

        form.buttons(
            ("Remove", lambda: change(None), "") if held.origin in ("channel", "topic") else None,
            ("Set", lambda: change(parse_value(value.value)), "main"),
        )


# ---- policies ----


def _policy_row(name: str, nodes: dict[str, Policy], all_nodes: int, *, may_change: bool) -> Row:
    policy = next(iter(nodes.values()))
    settings = ", ".join(f"{key}={shown_value(value)}" for key, value in policy.settings.items())
    same = len(set(map(_content, nodes.values()))) == 1
    where: list[Label] = [
        [f"{len(nodes)} of {all_nodes}", "" if same and len(nodes) == all_nodes else "warn", "\n".join(nodes)]
    ]
    if not same:
        where.append(["nodes differ", "warn", ""])
    topics = sum(each.matching_topics for each in nodes.values())
    channels = sum(each.matching_channels for each in nodes.values())
    matches = f"{channels} channels" if policy.channels else f"{topics} topics"
    actions = [["edit", "Change …", ""], ["delete", "Delete …", "danger"]] if may_change else []
    return [
        name,
        name,
        policy.topics,
        policy.channels or "",
        policy.priority,
        settings,
        matches,
        where,
        actions,
    ]


def _content(policy: Policy) -> str:
    return json.dumps([policy.topics, policy.channels, policy.priority, policy.settings], sort_keys=True)


async def _policies(view: PageView) -> None:
    nodes = view.lapwing_nodes()
    brokers = view.admin.brokers.at(nodes)
    found: dict[str, dict[str, Policy]] = {}
    results = await settled(brokers.policies())
    refused = refusals(results)
    for node, answer in results.answers.items():
        for policy in answer.policies:
            found.setdefault(policy.name, {})[node] = policy
    may_change = view.visitor.may_change

    def act(action: str, name: str) -> None:
        if action == "delete":
            _ask_remove_policy(view, name, brokers)
        else:
            _ask_policy(view, next(iter(found[name].values())), brokers)

    with panel("Policies", "settings for every topic or channel whose name matches; the highest priority wins"):
        if refused:
            notice(f"Not all policies can be read: {'; '.join(refused)}.", "warning")
        if may_change:
            with element("div", None, "lw-buttons lw-pad"):
                button("New policy", lambda: _ask_policy(view, None, brokers), tone="main", sign="add")
        table = Table("policies", "Policies", POLICY_COLUMNS, empty="There are no policies.", on_act=act)
    table.show([_policy_row(name, each, len(nodes), may_change=may_change) for name, each in found.items()])


def parse_pairs(text: str) -> Json:
    """Parse lines of `setting=value`. Raises `ValueError` with a sentence for the user."""
    found: Json = {}
    for line in text.splitlines():
        if line.strip():
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise ValueError(f"A setting looks like max_attempts=5, not {line.strip()!r}.")
            if name.strip() in found:
                raise ValueError(f"{name.strip()} is given twice: leave one out.")
            found[name.strip()] = parse_value(value.strip())
    return found


def parse_priority(text: str) -> int:
    """Parse the priority of a policy; empty means 0. Raises `ValueError` with a sentence for the user."""
    try:
        return int(text.strip() or 0)
    except ValueError:
        raise ValueError(f"The priority is a whole number, such as 10, not {text.strip()[:80]}.") from None


def _ask_policy(view: PageView, policy: Policy | None, brokers: Admin) -> None:
    name = policy.name if policy is not None else ""
    before = policy or Policy("", {}, document=None)
    with form_dialog(view, f"Change policy {name}" if name else "New policy") as form:
        element("p", "* matches any characters, ? one. Settings of topics need an empty channel pattern.")
        name_field = form.field("Name", value=name, focus=not name)
        name_field.set_visibility(not name)
        topics = form.field("Topics", value=before.topics, focus=bool(name))
        channels = form.field("Channels", value=before.channels or "")
        priority = form.field("Priority", value=str(before.priority), kind="number")
        lines = "\n".join(f"{key}={shown_value(value)}" for key, value in before.settings.items())
        settings = form.field("Settings, one setting=value a line", kind="textarea", value=lines)

        async def save() -> None:
            given, first = parse_pairs(settings.value), parse_priority(priority.value)
            where = {"topics": topics.value, "channels": channels.value}
            wanted = name or name_field.value.strip()
            if not valid_policy(wanted):
                raise ValueError(POLICY if wanted else "A policy needs a name.")
            await form.submit(
                Action("put_policy", ""),
                f"{wanted}: {in_words({**where, 'priority': first, 'settings': given})}",
                lambda: brokers.set_policy(wanted, given, **where, priority=first),
                f"Saved policy {wanted}",
                then=lambda: view.go(view.links.page("/settings")),
            )

        form.buttons(("Save", save, "main"))


def _ask_remove_policy(view: PageView, name: str, brokers: Admin) -> None:
    with form_dialog(view, f"Delete policy {name}?") as form:
        element("p", "Topics and channels that it holds for go back to other policies, or to their defaults.")

        async def remove() -> None:
            await form.submit(
                Action("remove_policy", ""),
                name,
                lambda: brokers.remove_policy(name),
                f"Deleted policy {name}",
                then=lambda: view.go(view.links.page("/settings")),
            )

        form.buttons(("Delete", remove, "kill"))
