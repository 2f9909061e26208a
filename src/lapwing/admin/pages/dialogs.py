"""Dialogs that ask before a change. A change that cannot be undone needs the name typed. Enter submits a dialog."""

from collections.abc import Awaitable, Callable, Sequence

from lapwing.admin.error_texts import error_text
from lapwing.admin.pages.elements import Dialog, Field, button, element, set_attributes, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.client.cluster_changes import Outcome
from lapwing.errors import LapwingError
from lapwing.names import valid

Doing = Callable[[], Awaitable[Outcome]]


async def carry_out(view: PageView, doing: Doing, done: str) -> bool:
    """Carry a change out, show its outcome, and poll again; return whether any of it was done."""
    try:
        outcome = await doing()
    except LapwingError as error:
        view.notify(error_text(error), bad=True)
        return False
    if outcome.message and all("_NOT_FOUND" in line for errors in outcome.trouble for line in errors):
        done += ", where it was"  # a channel need not be on every node of its topic
        outcome.trouble.clear()
    view.notify(outcome.message or done, bad=bool(outcome.message))
    view.admin.poller.soon()
    return True


def ask(
    view: PageView,
    title: str,
    text: str,
    doing: Doing,
    *,
    yes: str,
    done: str,
    type_name: str = "",
    then: Callable[[], None] | None = None,
) -> None:
    """Ask before `doing`; with `type_name` the user has to type that name first."""
    with view.client.content:
        dialog = Dialog(title)
    with dialog, element("div", None, "lw-dialog"):
        element("h2", title)
        element("p", text)

        async def go() -> None:
            if type_name and field.value != type_name:
                set_text(problem, f"Type {type_name} to confirm.")
                return
            dialog.close()
            if await carry_out(view, doing, done) and then is not None:
                then()

        def typed(value: str) -> None:
            set_attributes(confirm, disabled=value != type_name)

        if type_name:
            field = Field(f"Type the name to confirm: {type_name}", focus=True, on_change=typed, on_enter=go)
        problem = element("p", "", role="alert")
        with element("div", None, "lw-buttons"):
            button("Cancel", dialog.close)
            confirm = button(yes, go, tone="kill" if type_name else "main")
            if type_name:
                set_attributes(confirm, disabled=True)
            else:
                set_attributes(confirm, autofocus=True)  # Enter presses it
    dialog.on("hide", lambda: dialog.delete(), args=[])
    dialog.open()


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
    name = channel or topic
    if action == "tombstone":
        ask(
            view,
            f"Take {topic} away from {node}?",
            "Discovery hides this node for the topic, then the topic is deleted there, with its channels and messages. "
            "Consumers stop connecting to it.",
            lambda: actions.tombstone(view.visitor, topic, node, url=view.url),
            yes="Tombstone",
            done=f"{topic} is gone from {node}",
            type_name=topic,
            then=then,
        )
        return
    if action == "delete":
        lost = (
            "Its messages are lost, and its consumers are disconnected."
            if channel
            else "All its channels and messages are lost, and consumers are disconnected."
        )
        ask(
            view,
            f"Delete {what}{where}?",
            lost,
            lambda: actions.delete(view.visitor, topic, channel, node=node, url=view.url),
            yes="Delete",
            done=f"Deleted {what}{where}",
            type_name=name,
            then=then,
        )
        return
    words = {
        "pause": "No message is delivered until it is unpaused. Nothing is lost: messages wait.",
        "unpause": "Messages flow again.",
        "empty": "Every waiting message is thrown away. This cannot be undone.",
    }
    past = {"pause": "Paused", "unpause": "Unpaused", "empty": "Emptied"}
    ask(
        view,
        f"{action.capitalize()} {what}{where}?",
        words[action],
        lambda: actions.act(view.visitor, action, topic, channel, node=node, url=view.url),
        yes=action.capitalize(),
        done=f"{past[action]} {what}{where}",
        type_name=name if action == "empty" else "",
        then=then,
    )


def ask_create(view: PageView, *, topic: str = "", nodes: Sequence[str] = ()) -> None:
    """Ask for the name of a new topic or, with `topic`, of a new channel of it."""
    title = f"New channel of {topic}" if topic else "New topic"
    with view.client.content:
        dialog = Dialog(title)
    everywhere = (
        []
        if view.cluster_view.direct
        else [("", "all: known to discovery" if not topic else "all that have the topic")]
    )
    choices = [*everywhere, *((name, f"only {name}") for name in nodes)]
    with dialog, element("div", None, "lw-dialog"):
        element("h2", title)
        element("p", "A topic is also created with its first message, a channel with its first consumer.")

        async def go() -> None:
            names = (topic or topic_field.value, channel_field.value)
            if not valid(names[0]) or (names[1] and not valid(names[1])) or (topic and not names[1]):
                set_text(problem, "A name has 1 to 64 letters, digits, dots, dashes or underscores.")
                return
            dialog.close()
            words = f"Created {'/'.join(name for name in names if name)}"
            create = view.admin.actions.create
            await carry_out(view, lambda: create(view.visitor, *names, node=where.value, url=view.url), words)

        topic_field = Field("Topic", focus=not topic, value=topic, on_enter=go)
        topic_field.set_visibility(not topic)
        channel_field = Field("Channel" if topic else "Channel (may be empty)", focus=bool(topic), on_enter=go)
        where = Field("Where", kind="select", options=choices, value=choices[0][0] if choices else "", on_enter=go)
        problem = element("p", "", role="alert")
        with element("div", None, "lw-buttons"):
            button("Cancel", dialog.close)
            button("Create", go, tone="main")
    dialog.on("hide", lambda: dialog.delete(), args=[])
    dialog.open()
