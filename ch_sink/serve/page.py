"""The page of a running job: its streams with plots, dead letters with a retry behind a token, and what else is known.

Its data is at ``/api/streams``, in the form of ``ch_sink status --json``. The page needs nothing from the internet.
"""

import hmac
import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ch_sink.errors import ChSinkError, ConfigError
from ch_sink.serve.data import PageData

__all__ = ["application"]

_NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
_CONTENT = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


def application(data: PageData, token: str) -> Starlette:
    """The page's application. Everyone who reaches it may read.

    Whoever knows ``token`` may retry dead letters, and let the job read a topic to explain a row.
    """

    async def page(_: Request) -> Response:
        text = files("ch_sink.serve").joinpath("page.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers=_NO_STORE | {"content-security-policy": _CONTENT})

    async def streams(_: Request) -> Response:
        return await _answer(lambda: {"streams": list(data.streams())})

    async def dead_letters(request: Request) -> Response:
        stream = request.path_params["stream"]
        return await _answer(lambda: {"dead_letters": list(data.dead_letters(stream))})

    def refused(request: Request) -> Response | None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), token.encode()):
            return None
        return _problem(403, "the token is wrong", "The job prints it when it starts; see also --ui-token.")

    async def retry(request: Request) -> Response:
        stream = request.path_params["stream"]
        return refused(request) or await _answer(lambda: dict(data.retry(stream)))

    async def explain(request: Request) -> Response:
        if (problem := refused(request)) is not None:
            return problem
        stream, body = request.path_params["stream"], await request.body()
        return await _answer(lambda: dict(data.explain(stream, _key(body))))

    return Starlette(
        routes=[
            Route("/", page),
            Route("/api/streams", streams),
            Route("/api/explain/{stream:path}", explain, methods=["POST"]),
            Route("/api/dead-letters/{stream:path}/retry", retry, methods=["POST"]),
            Route("/api/dead-letters/{stream:path}", dead_letters),
        ]
    )


def _key(body: bytes) -> dict[str, Any]:
    """A key as JSON, numbers with as many digits as were written. Raises ConfigError."""
    try:
        made = json.loads(body, parse_float=str)
    except ValueError:
        made = None
    if not isinstance(made, dict) or not made:
        raise ConfigError("the key is no JSON object", hint="""Write it as {"id": 7}.""")
    return made


async def _answer(ask: Callable[[], dict[str, Any]]) -> Response:
    try:
        return JSONResponse(await run_in_threadpool(ask), headers=_NO_STORE)
    except LookupError as error:
        return _problem(404, str(error.args[0] if error.args else error), "")
    except ChSinkError as error:
        return _problem(409, str(error), error.hint or "")


def _problem(status: int, text: str, remedy: str) -> Response:
    return JSONResponse({"error": text, "next": remedy or None}, status_code=status, headers=_NO_STORE)
