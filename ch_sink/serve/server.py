"""The page's server, in threads beside the job."""

import secrets
from collections.abc import Collection

from ch_sink.model.address import Address
from ch_sink.serve.data import PageData
from ch_sink.serve.listener import Listener
from ch_sink.serve.page import application

__all__ = ["PageServer"]


class PageServer(Listener):
    """Serves the page until it is closed. ``token`` is what the page asks of those who read or retry records."""

    def __init__(self, address: Address, data: PageData, token: str = "", hosts: Collection[str] = ()) -> None:
        """Port 0 takes a free one; without a token a fresh one is drawn. Raises ConfigError."""
        self.token = token or secrets.token_urlsafe(18)
        super().__init__(address, application(data, self.token, hosts), "the page")
