"""The page of a running job: its streams with plots, dead letters with a retry behind a token, and what else is known.

Its data is at ``/api/streams``, in the form of ``ch_sink status --json``. The page needs nothing from the internet.
"""

import hmac
import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.resources import files
from typing import Any, Protocol

from ch_sink.errors import ChSinkError
from ch_sink.serve.listener import Address, Answer, Listener, Request, names_this_host

_CONTENT = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("uplot.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uplot.js", "text/javascript; charset=utf-8"),
}
"""Paths of the page's own files, in ``web/``, and their types."""
_ABOUT_A_STREAM = re.compile(r"/api/(dead-letters|explain)/(.+)", re.DOTALL)
_RETRY = "/retry"


class PageData(Protocol):
    """The data of the page. Methods may block; each runs in its request's thread. They raise ChSinkError."""

    def streams(self) -> Sequence[Mapping[str, Any]]:
        """The streams as ``ch_sink status --json`` has them, with figures and history of this job."""
        ...

    def dead_letters(self, stream: str, *, whole: bool) -> Sequence[Mapping[str, Any]]:
        """The newest dead letters of a stream, the newest first; ``whole``: with their records."""
        ...

    def explain(self, stream: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        """The biography of one row, as ``ch_sink explain --json`` has it."""
        ...

    def retry(self, stream: str) -> Mapping[str, Any]:
        """Retry a stream's dead letters; what became of them."""
        ...


class PageServer(Listener):
    """Serves the page until it is closed. ``token`` is what the page asks of those who read or retry records."""

    def __init__(self, address: Address, data: PageData, token: str = "", hosts: Collection[str] = ()) -> None:
        """Port 0 takes a free one; without a token a fresh one is drawn. Raises ConfigError."""
        self.token = token or secrets.token_urlsafe(18)
        super().__init__(address, application(data, self.token, hosts), "the page")


def application(data: PageData, token: str, hosts: Collection[str] = ()) -> Callable[[Request], Answer]:
    """The page's application. Everyone who reaches it may read how the streams are.

    Whoever knows ``token`` may also read what records hold, retry dead letters, and let the job read a topic to explain
    a row. ``hosts``: names under which the page is reached besides those of this host.
    """

    def answer(request: Request) -> Answer:
        host = request.headers.get("host", "")
        if not names_this_host(host, hosts):
            return _problem(403, f"the page does not know the host {host!r}", "Name it: --ui-host.")
        trusted = _given(request, token)
        if request.method == "POST":
            return _posted(request, data) if trusted else _problem(403, "the token is wrong", _TOKEN)
        if (file := _FILES.get(request.path)) is not None:
            name, kind = file
            text = files("ch_sink.serve").joinpath("web", name).read_bytes()
            return Answer(200, text, kind, {"content-security-policy": _CONTENT})
        if request.path == "/api/streams":
            return _answer(lambda: {"streams": list(data.streams())})
        if (place := _ABOUT_A_STREAM.fullmatch(request.path)) is not None and place[1] == "dead-letters":
            return _answer(lambda: {"dead_letters": list(data.dead_letters(place[2], whole=trusted))})
        return _problem(404, f"nothing is served at {request.path}", "")

    return answer


_TOKEN = "The job prints it when it starts; see also --ui-token."


def _given(request: Request, token: str) -> bool:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    return hmac.compare_digest(given.encode(errors="replace"), token.encode())


def _posted(request: Request, data: PageData) -> Answer:
    place = _ABOUT_A_STREAM.fullmatch(request.path)
    if place is not None and place[1] == "explain":
        if (key := _key(request.body)) is None:
            return _problem(400, "the key is not a JSON object", """Write it as {"id": 7}.""")
        return _answer(lambda: data.explain(place[2], key))
    if place is not None and place[2].endswith(_RETRY):
        return _answer(lambda: data.retry(place[2].removesuffix(_RETRY)))
    return _problem(404, f"no action is served at {request.path}", "")


def _key(body: bytes) -> dict[str, Any] | None:
    """A key as JSON, numbers with as many digits as were written; None if it is anything else."""
    try:
        made = json.loads(body, parse_float=str)
    except ValueError:
        return None
    return made if isinstance(made, dict) and made else None


def _answer(ask: Callable[[], Mapping[str, Any]]) -> Answer:
    try:
        return _json(200, ask())
    except LookupError as error:
        return _problem(404, str(error.args[0] if error.args else error), "")
    except ChSinkError as error:
        return _problem(409, str(error), error.hint or "")


def _problem(status: int, text: str, remedy: str) -> Answer:
    return _json(status, {"error": text, "next": remedy or None})


def _json(status: int, document: Mapping[str, Any]) -> Answer:
    return Answer(status, json.dumps(document, ensure_ascii=False).encode(errors="replace"), "application/json")
