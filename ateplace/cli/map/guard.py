"""Who may talk to the map.

- Only GET and HEAD: the map changes nothing.
- Host: an address that the map listens on, `localhost` or an IP address, never another name. A page of another site
  can make its own name point here (DNS rebinding), but cannot change the name that the browser sends.
- Origin and Sec-Fetch-Site: only the map's own pages.
- Away from loopback a token: once in the address that is printed, from then on in a cookie that only this map's own
  pages send; `Authorization: Bearer` for programs.

Every answer tells the browser to run nothing but the map's own files, and to load nothing from anywhere else.
"""

import hmac
import ipaddress
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Guard:
    """`names`: host names that are ours besides localhost; `token` empty: none is needed."""

    def __init__(self, app: ASGIApp, names: Iterable[str], token: str, port: int) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)}
        self._token = token
        self._cookie = f"ateplace-map-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(scope["method"], Headers(scope=scope)) or self._login(scope)
        await (answer or self._app)(scope, receive, sending)

    def _refusal(self, method: str, headers: Headers) -> Response | None:
        if method not in {"GET", "HEAD"}:
            return PlainTextResponse("the map changes nothing: GET only\n", 405, {"allow": "GET, HEAD"})
        host = headers.get("host", "")
        if not self._ours(host):
            return PlainTextResponse("this is not a name of this map\n", 421)
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return PlainTextResponse("pages of other origins may not read the map\n", 403)
        if headers.get("sec-fetch-site") in {"cross-site", "same-site"} and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("pages of other sites may not read the map\n", 403)
        return None

    def _ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _login(self, scope: Scope) -> Response | None:
        """What is answered instead of a page; None when the token was shown, or none is needed."""
        if not self._token:
            return None
        headers = Headers(scope=scope)
        shown = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._right(shown):
            answer = RedirectResponse(scope["path"], 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict", path="/")
            return answer
        if self._right(headers.get("authorization", "").removeprefix("Bearer ")) or self._right(self._kept(headers)):
            return None
        return PlainTextResponse("open the address that `ateplace map` printed: it has the token\n", 401)

    def _kept(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return ""
        return found.value if found else ""

    def _right(self, shown: str) -> bool:
        return hmac.compare_digest(shown.encode(), self._token.encode())
