"""Dialogs that ask before a change. A change that cannot be undone needs the name typed. Enter submits a dialog."""

from collections.abc import Awaitable, Callable, Sequence

from lapwing.admin.actions import warning_of
from lapwing.admin.error_texts import error_text
from lapwing.admin.pages.elements import button, element, set_attributes
from lapwing.admin.pages.forms import form_dialog
from lapwing.admin.pages.frame import PageView
from lapwing.client.admin_results import Results
from lapwing.errors import LapwingError
from lapwing.names import valid

Doing = Callable[[], Awaitable[Results[None]]]


async def carry_out(view: PageView, doing: Doing, done: str) -> bool:
    """Carry a change out, show its outcome, and poll again; return whether any of it was done."""
    try:
        results = await doing()
    except LapwingError as error:
        view.notify(error_text(error), bad=True)
        return False
    warning = warning_of(results)
    found = [result for result in results if not result.error.endswith("_NOT_FOUND")]
    if warning and not results.missing and all(result.done for result in found):
        done, warning = f"{done}, where it was", ""  # a channel need not be on every node of its topic
    view.notify(warning or done, bad=bool(warning))
    view.admin.poller.soon()
    return True


def ask_act(
    view: PageView,
    action: str,
    topic: str,
    channel: str = "",
    node: str = "",
    *,
    then: Callable[[], None] | None = None,
) -> None:
    """Ask before a pause, unpause, empty, delete or tombstone of a topic or channel, on one node or on all."""
    actions = view.admin.actions
    what = f"channel {topic}/{channel}" if channel else f"topic {topic}"
    where = f" on {node}" if node else " on every node"
    words = {
        "pause": ("No message is delivered until it is unpaused. Nothing is lost: messages wait.", "Paused"),
        "unpause": ("Messages flow again.", "Unpaused"),
        "empty": ("Every waiting message is thrown away. This cannot be undone.", "Emptied"),
        "delete": (
            "Its messages are lost, and its consumers are disconnected."
            if channel
            else "All its channels and messages are lost, and consumers are disconnected.",
            "Deleted",
        ),
    }
    if action == "tombstone":
        title, done = f"Take {topic} away from {node}?", f"{topic} is gone from {node}"
        text = (
            "Discovery hides this node for the topic, then the topic is deleted there, with its channels and messages. "
            "Consumers stop connecting to it."
        )
    else:
        text, past = words[action]
        title, done = f"{action.capitalize()} {what}{where}?", f"{past} {what}{where}"

    async def doing() -> Results[None]:
        if action == "tombstone":
            return await actions.tombstone(view.visitor, topic, node, url=view.request.url)
        if action == "delete":
            return await actions.delete(view.visitor, topic, channel, node=node, url=view.request.url)
        return await actions.act(view.visitor, action, topic, channel, node=node, url=view.request.url)

    type_name = "" if action in ("pause", "unpause") else channel or topic
    with form_dialog(view, title) as form:
        element("p", text)
        if type_name:
            form.ask_name(type_name)

        async def go() -> None:
            form.close()
            if await carry_out(view, doing, done) and then is not None:
                then()

        (confirm,) = form.buttons((action.capitalize(), go, "kill" if type_name else "main"))
        if not type_name:
            set_attributes(confirm, autofocus=True)  # Enter presses it


def act_buttons(view: PageView, topic: str, channel: str = "", *, back: str) -> None:
    """Add the buttons that pause, unpause, empty and delete a topic or channel; a deletion leads to the page `back`."""
    kind = "channel" if channel else "topic"
    pause = button(f"Pause {kind}", lambda: ask_act(view, "pause", topic, channel), sign="pause")
    unpause = button(f"Unpause {kind}", lambda: ask_act(view, "unpause", topic, channel), sign="play_arrow")
    button("Empty queue", lambda: ask_act(view, "empty", topic, channel), tone="danger", sign="delete_sweep")
    button(
        f"Delete {kind}",
        lambda: ask_act(view, "delete", topic, channel, then=lambda: view.go(back)),
        tone="danger",
        sign="delete_outline",
    )

    def refresh() -> None:
        cluster_view = view.cluster_view
        found = cluster_view.channel(topic, channel) if channel else cluster_view.topics.get(topic)
        pause.set_visibility(found is None or not all(part["paused"] for part in found["nodes"]))
        unpause.set_visibility(found is not None and found["paused"])

    view.live(refresh)


def ask_create(view: PageView, *, topic: str = "", nodes: Sequence[str] = ()) -> None:
    """Ask for the name of a new topic or, with `topic`, of a new channel of it."""
    everywhere = (
        []
        if view.cluster_view.direct
        else [("", "all: known to discovery" if not topic else "all that have the topic")]
    )
    choices = [*everywhere, *((name, f"only {name}") for name in nodes)]
    with form_dialog(view, f"New channel of {topic}" if topic else "New topic") as form:
        element("p", "A topic is also created with its first message, a channel with its first consumer.")

        async def go() -> None:
            names = (topic or topic_field.value, channel_field.value)
            if not valid(names[0]) or (names[1] and not valid(names[1])) or (topic and not names[1]):
                raise ValueError("A name has 1 to 64 letters, digits, dots, dashes or underscores.")
            form.close()
            words = f"Created {'/'.join(name for name in names if name)}"
            create = view.admin.actions.create
            await carry_out(view, lambda: create(view.visitor, *names, node=where.value, url=view.request.url), words)

        topic_field = form.field("Topic", focus=not topic, value=topic)
        topic_field.set_visibility(not topic)
        channel_field = form.field("Channel" if topic else "Channel (may be empty)", focus=bool(topic))
        where = form.field("Where", kind="select", options=choices, value=choices[0][0] if choices else "")
        form.buttons(("Create", go, "main"))
