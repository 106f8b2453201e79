"""A server on a free port of 127.0.0.1, which stands in for a database: connections, and what happens in between."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["StandIn", "exactly"]


class StandIn:
    """Listens until it is closed. `listen` comes first; ``serve`` answers one connection until that ends."""

    then: Callable[[], object] | None
    """What happens, once, after rows were sent."""

    def listen(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._following: threading.Thread | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._socket.close()
        if self._following is not None:
            self._following.join()

    def serve(self, client: socket.socket) -> None:
        raise NotImplementedError

    def follow(self) -> None:
        """Let what is to happen once begin."""
        if self.then is not None:
            self._following, self.then = threading.Thread(target=self.then), None
            self._following.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError, EOFError):
            self.serve(client)


def exactly(client: socket.socket, count: int) -> bytes:
    """So many bytes. Raises EOFError if the connection ends before."""
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
