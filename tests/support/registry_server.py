"""A schema registry over HTTP, as Confluent's protocol has it: just what reading schemas needs."""

import base64
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class RegistryServer:
    """What the server holds and what it was asked. Schemas are as a registry gives them, references included."""

    ids: dict[int, Any]
    subjects: dict[tuple[str, int], Any] = field(default_factory=dict)
    user: str = ""
    """``name:password`` that is asked for."""
    failures: int = 0
    """So many requests are answered with status 503 first."""
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        self.asked.append(path)
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50001, "message": "the store is busy"}
        if self.user and authorization != "Basic " + base64.b64encode(self.user.encode()).decode():
            return 401, {"error_code": 401, "message": f"Unauthorized: {authorization}"}
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path.partition("?")[0]):
            held = self.ids.get(int(found[1]))
            return (200, held) if held else (404, {"error_code": 40403, "message": f"Schema {found[1]} not found"})
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path.partition("?")[0]):
            place = (found[1], int(found[2]))
            held = self.subjects.get(place)
            missing = {"error_code": 40402, "message": f"Version {place} not found"}
            return (200, {"subject": place[0], "version": place[1], "id": 1, **held}) if held else (404, missing)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def registry_server(ids: Mapping[int, Any], **choices: Any) -> Iterator[RegistryServer]:
    """A server on a port of its own, stopped at the end."""
    state = RegistryServer(dict(ids), **choices)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = state.answer(self.path, self.headers.get("Authorization", ""))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
