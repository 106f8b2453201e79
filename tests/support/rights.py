"""A proxy in front of ClickHouse that refuses inserts into some tables, as a server does that lacks the grant."""

import socket
from contextlib import suppress
from urllib.parse import unquote_plus

from tests.support.proxy import FaultyProxy

__all__ = ["RightsProxy"]


class RightsProxy(FaultyProxy):
    """``denied``: texts of which an insert statement has one if it is refused."""

    def __init__(self, url: str) -> None:
        self.denied: set[str] = set()
        super().__init__(url)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            request = self._request(client)
            head = unquote_plus(request[:4000].decode("latin-1"))
            if "INSERT" in head and any(text in head for text in self.denied):
                why = b"Code: 497. DB::Exception: sink: Not enough privileges. (ACCESS_DENIED)"
                lines = b"HTTP/1.1 403 Forbidden\r\nX-ClickHouse-Exception-Code: 497\r\nConnection: close\r\n"
                client.sendall(lines + b"Content-Length: %d\r\n\r\n" % len(why) + why)
                return
            with socket.create_connection(self._target) as server:
                server.sendall(request)
                while piece := server.recv(1 << 16):
                    client.sendall(piece)
