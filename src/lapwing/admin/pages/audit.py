"""The page of the audit: all changes, who made them, and when."""

from fastapi import Request
from nicegui import ui

from lapwing.admin.audit import AuditEntry
from lapwing.admin.pages.elements import Table, notice, panel, set_text
from lapwing.admin.pages.frame import PATIENCE, frame
from lapwing.admin.pages.table_rows import PageLinks, Row, TableColumn
from lapwing.admin.services import Admin

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


def install(admin: Admin) -> None:
    """`/audit`"""

    @ui.page("/audit", response_timeout=PATIENCE)
    async def page(request: Request) -> None:
        await admin.poller.fresh()
        above = (
            f"Kept in {admin.options.audit_file}."
            if admin.options.audit_file
            else "Kept in memory until nsqadmin ends; --audit-file keeps it for good."
        )
        with frame(admin, request, "Audit", "/audit", above=above) as view:
            trouble = notice("", "error")
            with panel():
                table = Table("audit", "Changes", COLUMNS, order="at:down", empty="Nobody has changed anything yet.")

            def refresh() -> None:
                audit = admin.actions.audit
                set_text(trouble, audit.trouble)
                trouble.set_visibility(bool(audit.trouble))
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
