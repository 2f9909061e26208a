"""Pages without a script: the frame of the login, and the answer to a path that does not exist."""

from html import escape
from typing import Final

from lapwing.admin.page_table import menu
from lapwing.net.server.answers import HTML, Answer

_FRAME: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title} · nsqadmin</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<link rel="stylesheet" href="{base}/static/lapwing.css"><link rel="icon" href="{base}/static/favicon.svg"></head>
<body class="{kind}">{content}</body></html>
"""


def plain_page(base: str, title: str, content: str, *, status: int = 200) -> Answer:
    """Return a page; `content` is markup whose text has been escaped."""
    return _page(base, title, f"<main>{content}</main>", kind="lw-login", status=status)


def not_found(base: str, path: str) -> Answer:
    """Return the page for a path that does not exist, with the menu of those that do."""
    at = escape(base)
    links = "".join(
        f"<h2>{group}</h2>" + "".join(f'<a class="lw-item" href="{at}{page.path}">{page.name}</a>' for page in pages)
        for group, pages in menu().items()
    )
    brand = f'<a class="lw-brand" href="{at}/"><img src="{at}/static/favicon.svg" alt=""><span>nsqadmin</span></a>'
    text = f"<h1>Not found</h1><p>nsqadmin has no page <code>{escape(path[:200])}</code>.</p>"
    content = (
        f'<div class="lw-frame"><nav class="lw-nav" aria-label="Pages">{brand}{links}</nav>'
        f'<div class="lw-side"><main class="lw-main">{text}</main></div></div>'
    )
    return _page(base, "Not found", content, kind="lw-plain", status=404)


def _page(base: str, title: str, content: str, *, kind: str, status: int) -> Answer:
    page = _FRAME.format(title=escape(title), base=escape(base), kind=kind, content=content)
    return Answer(status, page.encode(), HTML, (("Cache-Control", "no-store"),), nsq=False)
