"""TLS in front of a plain TCP server, with or without certificates of its clients."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.certificates import Authority, Certificate

__all__ = ["tls_in_front"]


@contextmanager
def tls_in_front(port: int, server: Certificate, clients: Authority | None = None) -> Iterator[int]:
    """The port of a listener that passes what it decrypts to another port of this machine.

    ``clients``: a client has to show a certificate of this authority.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.both)
    if clients is not None:
        context.load_verify_locations(clients.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def serve(plain: socket.socket) -> None:
        with suppress(OSError, ssl.SSLError):
            inside = context.wrap_socket(plain, server_side=True)
            outside = socket.create_connection(("127.0.0.1", port))
            threading.Thread(target=pump, args=(inside, outside), daemon=True).start()
            pump(outside, inside)

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError, ssl.SSLError, ValueError):
            while data := source.recv(1 << 16):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.close()

    threading.Thread(target=accept, daemon=True).start()
    yield int(listener.getsockname()[1])
    listener.close()
