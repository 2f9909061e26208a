"""The page of the audit: all changes, who made them, and when."""

from lapwing.admin.audit import AuditEntry
from lapwing.admin.pages.elements import Table, notice, panel, show_notice
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import PageLinks, Row, TableColumn

COLUMNS = (
    TableColumn("action", "Action", "text"),
    TableColumn("at", "When (UTC)", "time"),
    TableColumn("user", "Who", "text"),
    TableColumn("address", "From", "text"),
    TableColumn("what", "What", "link", wide=True),
    TableColumn("node", "Node", "text"),
    TableColumn("outcome", "Outcome", "labels"),
    TableColumn("detail", "Detail", "text", wide=True),
)


def draw(view: PageView) -> None:
    """Draw `/audit`."""
    file = view.admin.options.audit_file
    view.explain(f"Kept in {file}." if file else "Kept in memory until nsqadmin ends; --audit-file keeps it for good.")
    trouble = notice("", "error")
    with panel():
        table = Table("audit", "Changes", COLUMNS, order="at:down", empty="Nobody has changed anything yet.")

    def refresh() -> None:
        audit = view.admin.actions.audit
        show_notice(trouble, audit.trouble)
        entries = audit.entries()
        table.show([_row(entry, len(entries) - index, view.links) for index, entry in enumerate(entries)])

    view.live(refresh)


def _row(entry: AuditEntry, number: int, links: PageLinks) -> Row:
    what = f"{entry.topic}/{entry.channel}" if entry.channel else entry.topic
    return [
        str(number),
        entry.action.replace("_", " "),
        entry.at,
        entry.user or "anybody",
        entry.address,
        [what, links.topic(entry.topic, entry.channel), "", []] if entry.topic else ["", "", "", []],
        entry.node,
        [_verdict(entry.outcome)],
        "; ".join(text for text in (entry.detail, entry.outcome) if text),
    ]


def _verdict(outcome: str) -> list[str]:
    """Return the outcome as a label; the reason has a column of its own."""
    if not outcome:
        return ["done", "good", ""]
    if outcome.startswith("refused"):
        return ["refused", "bad", ""]
    # a daemon refused its part of the change
    return ["incomplete", "warn", ""] if outcome.startswith("WARNING: ") else ["failed", "bad", ""]
