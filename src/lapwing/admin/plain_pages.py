"""Pages without a script: the frame of the login, and the answer to a path that does not exist."""

from html import escape
from typing import Final

from lapwing.net.answers import HTML, Answer

_FRAME: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} · nsqadmin</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="stylesheet" href="{base}/static/lapwing.css"><link rel="icon" href="{base}/static/favicon.svg"></head>
<body class="lw-login"><main>{content}</main></body></html>
"""


def plain_page(base: str, title: str, content: str, *, status: int = 200) -> Answer:
    """Return a page; `content` is markup whose text has been escaped."""
    page = _FRAME.format(title=escape(title), base=escape(base), content=content)
    return Answer(status, page.encode(), HTML, (("Cache-Control", "no-store"),), nsq=False)


def not_found(base: str, path: str) -> Answer:
    """Return the page for a path that does not exist, with links to those that do."""
    links = (("/", "Overview"), ("/topics", "Topics"), ("/messages", "Messages"), ("/nodes", "Nodes"))
    listed = "".join(f'<li><a href="{escape(base + href)}">{name}</a></li>' for href, name in links)
    shown = f"<code>{escape(path[:200])}</code>"
    return plain_page(
        base, "Not found", f"<h1>Not found</h1><p>nsqadmin has no page {shown}.</p><ul>{listed}</ul>", status=404
    )
