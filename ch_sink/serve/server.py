"""Runs the page's application in a thread beside the job."""

import secrets
import socket
import threading

from ch_sink.errors import ConfigError
from ch_sink.model.address import Address
from ch_sink.serve.data import PageData

__all__ = ["PageServer"]


class PageServer:
    """Serves the page until it is closed. ``token`` is what `PageData.retry` asks of its callers."""

    def __init__(self, address: Address, data: PageData, token: str = "") -> None:
        """Port 0 takes a free one; without a token a fresh one is drawn. Raises ConfigError."""
        try:
            import uvicorn

            from ch_sink.serve.page import application
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the page needs the package {error.name}", hint="Install it: pip install 'ch-sink[ui]'."
            ) from error
        self.token = token or secrets.token_urlsafe(18)
        self._socket = _listen(address)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            application(data, self.token), log_level="critical", access_log=False, lifespan="off", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._thread.join(5)
        self._socket.close()


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address.host, address.port))
        found.listen(128)  # so that nobody is refused before the server has started
    except OSError as error:
        found.close()
        raise ConfigError(
            f"the page cannot listen on {address}: {error.strerror or error}",
            hint="Choose another address for --ui, or end the process that listens there.",
        ) from error
    return found
