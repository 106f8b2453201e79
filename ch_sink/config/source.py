"""The section ``source``: the database that the connector reads, for commands that compare tables with it."""

from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr, field_validator, model_validator

from ch_sink.config.sections import Section, user_from_url

__all__ = ["SOURCE_KINDS", "SourceSection"]

SOURCE_KINDS = {
    "postgresql": ("postgresql", 5432),
    "postgres": ("postgresql", 5432),
    "mysql": ("mysql", 3306),
    "mariadb": ("mysql", 3306),
}
"""Scheme → kind of database, default port."""


class SourceSection(Section):
    """The database that the connector reads. Streams run without it."""

    url: str
    """``postgresql://host:port/database``, ``mysql://host:port/database`` or ``mariadb://…``."""
    username: str = ""
    password: SecretStr = SecretStr("")
    table: str = ""
    """The table, as ``schema.table`` or, on MySQL, ``database.table``; by default the last two parts of the topic."""

    @model_validator(mode="before")
    @classmethod
    def _user_from_url(cls, given: Any) -> Any:
        """A user and password in the URL move to their own keys, so that the URL can be shown."""
        return user_from_url(given)

    @field_validator("url")
    @classmethod
    def _known(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in SOURCE_KINDS and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            sound = False
        if not sound:
            raise ValueError(
                "must be the address of a database, such as postgresql://host:5432/shop or mysql://host/shop"
            )
        return url
