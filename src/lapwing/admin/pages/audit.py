"""The page of the audit: all changes, who made them, and when."""

from typing import Any, Final

from nicegui import ui

from lapwing.admin.audit import PARTLY, AuditEntry, merged, read_nodes
from lapwing.admin.links import PageLinks
from lapwing.admin.pages.elements import Table, notice, panel, show_notice
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Columns, Row, TableColumn, linked, row_of

_EVERY: Final = 3.0  # seconds between two looks at the nodes


def draw(view: PageView) -> None:
    """Draw `/audit`."""
    file = view.admin.options.audit_file
    view.explain(
        "Changes that any program made over HTTP, from the audits of the nodes; and those of nsqadmin, "
        + (f"kept in {file}." if file else "kept in memory until it ends.")
    )
    trouble = notice("", "error")
    with panel():
        columns = _columns(view.links)
        table = Table("audit", "Changes", columns, order="at:down", empty="Nobody has changed anything yet.")

    answers: dict[str, Any] = {}
    failed: list[str] = []

    def refresh() -> None:
        audit = view.admin.actions.audit
        show_notice(trouble, "; ".join([audit.trouble, *failed] if audit.trouble else failed))
        entries = merged(audit.entries(), answers)
        table.show([row_of(columns, str(len(entries) - index), entry) for index, entry in enumerate(entries)])

    async def read() -> None:
        asked = await read_nodes(view.admin.cluster_client.http, view.lapwing_nodes())
        newest = asked.combined(lambda known: dict(known) if merged((), known) is not None else {})
        answers.clear()
        answers.update(newest)
        failed[:] = [f"the audit of {name} cannot be read: {failure}" for name, failure in asked.failures.items()]
        refresh()

    view.live(refresh)
    ui.timer(_EVERY, read)


def _columns(links: PageLinks) -> Columns:
    def what(entry: AuditEntry) -> Row:
        name = f"{entry.topic}/{entry.channel}" if entry.channel else entry.topic
        return linked(name, links.topic(entry.topic, entry.channel) if entry.topic else "")

    def detail(entry: AuditEntry) -> str:
        return "; ".join(text for text in (entry.detail, entry.outcome) if text)

    return (
        TableColumn("action", "Action", "text", cell=lambda entry: entry.action.replace("_", " ")),
        TableColumn("at", "When (UTC)", "time"),
        TableColumn("user", "Who", "text", cell=lambda entry: entry.user or "anybody"),
        TableColumn("address", "From", "text"),
        TableColumn("program", "With", "text", cell=lambda entry: entry.program or "nsqadmin"),
        TableColumn("what", "What", "link", wide=True, cell=what),
        TableColumn("node", "Node", "text"),
        TableColumn("outcome", "Outcome", "labels", cell=lambda entry: [_verdict(entry.outcome)]),
        TableColumn("detail", "Detail", "text", wide=True, cell=detail),
    )


def _verdict(outcome: str) -> list[str]:
    """Return the outcome as a label; the reason has a column of its own."""
    if not outcome:
        return ["done", "good", ""]
    if outcome.startswith("refused"):
        return ["refused", "bad", ""]
    # a daemon refused its part of the change
    return ["incomplete", "warn", ""] if outcome.startswith(PARTLY) else ["failed", "bad", ""]
