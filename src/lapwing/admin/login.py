"""The built-in login and logout: one plain page without a script."""

from html import escape
from typing import Final
from urllib.parse import parse_qsl

from lapwing.admin.access import COOKIE, SESSION_SECONDS, AccessRules
from lapwing.admin.asgi import WebRequest, WebRoute, cookies_of
from lapwing.admin.plain_pages import plain_page
from lapwing.net.server.answers import Answer

_FORM: Final = """<h1>nsqadmin</h1>{problem}
<form method="post" action="{base}/login"><input type="hidden" name="next" value="{next}">
<label>User <input name="user" autocomplete="username" required autofocus></label>
<label>Password <input name="password" type="password" autocomplete="current-password" required></label>
<button type="submit">Sign in</button></form>"""


def login_routes(access: AccessRules, base: str) -> list[WebRoute]:
    """Return the routes of `/login` and `/logout`; none without a password file."""
    logins = access.logins
    if logins is None:
        return []

    async def show(request: WebRequest) -> Answer:
        return _form(base, request.query.get("next", ""))

    async def enter(request: WebRequest) -> Answer:
        form = dict(parse_qsl((await request.body()).decode("utf-8", "replace")))
        token = await logins.open(form.get("user", ""), form.get("password", ""), request.visitor.address)
        if token is None:
            wait = logins.must_wait(request.visitor.address)
            words = "Too many wrong passwords. Wait half a minute." if wait else "Wrong name or password."
            return _form(base, form.get("next", ""), problem=words, status=429 if wait else 401)
        secure = "; Secure" if request.url.startswith("https:") else ""
        cookie = f"{COOKIE}={token}; Path={base or '/'}; Max-Age={SESSION_SECONDS}; HttpOnly; SameSite=Strict{secure}"
        return _to(_local(form.get("next", ""), base), ("Set-Cookie", cookie))

    async def leave(request: WebRequest) -> Answer:
        logins.close(cookies_of(request.headers).get(COOKIE, ""))
        return _to(
            f"{base}/login", ("Set-Cookie", f"{COOKIE}=; Path={base or '/'}; Max-Age=0; HttpOnly; SameSite=Strict")
        )

    return [WebRoute("GET", "/login", show), WebRoute("POST", "/login", enter), WebRoute("POST", "/logout", leave)]


def _local(target: str, base: str) -> str:
    """Return the page to open after the login: always one below the base path of this site."""
    inside = target.startswith(f"{base}/") and not target.startswith("//") and "\\" not in target
    return target if inside and target.isascii() and target.isprintable() else base or "/"


def _form(base: str, target: str, *, problem: str = "", status: int = 200) -> Answer:
    shown = f'<p role="alert">{escape(problem)}</p>' if problem else ""
    form = _FORM.format(base=escape(base), next=escape(target), problem=shown)
    return plain_page(base, "Sign in", form, status=status)


def _to(location: str, *headers: tuple[str, str]) -> Answer:
    return Answer(303, headers=(("Location", location), *headers), nsq=False)
