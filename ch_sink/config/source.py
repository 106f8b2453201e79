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
    "sqlserver": ("sqlserver", 1433),
    "mssql": ("sqlserver", 1433),
    "mongodb": ("mongodb", 27017),
    "mongodb+srv": ("mongodb", 27017),
}
"""Scheme → kind of database, default port."""


class SourceSection(Section):
    """The database that the connector reads. Streams run without it."""

    url: str
    """``postgresql://host:port/database``, ``mysql://…``, ``mariadb://…``, ``sqlserver://…`` or ``mongodb://…``.

    MongoDB's connection strings may name several hosts, and have options.
    """
    username: str = ""
    password: SecretStr = SecretStr("")
    table: str = ""
    """The table, as ``schema.table`` or, on MySQL and MongoDB, ``database.table``; may be a template.

    Else the one whose events are applied, or the topic's last two parts.
    """

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
            several = parts.scheme.startswith("mongodb") and "," in parts.netloc
            sound = parts.scheme in SOURCE_KINDS and (several or (bool(parts.hostname) and (parts.port or 1) > 0))
        except ValueError:
            sound = False
        if not sound:
            raise ValueError(
                "must be the address of a database, such as postgresql://host:5432/shop or mysql://host/shop"
            )
        if "password=" in parts.query.lower():
            raise ValueError("must not have a password among its options, since it may be shown")
        return url
