"""Settings without which an insert or a lookup means something else, and users whose profile does not let them change.

The driver leaves out a setting that the user may not change, with a line in the log. For most that is right; without
these, a token is not sent, a block is cut into several, a null key is never found, or rows stay hidden.
"""

from collections.abc import Mapping

from ch_sink.clickhouse.client import PINNED_EVERYWHERE, Client
from ch_sink.clickhouse.fenced_insert import SETTINGS
from ch_sink.clickhouse.plain_meaning import PLAIN_MEANING
from ch_sink.clickhouse.writer import PINNED
from ch_sink.errors import AccessDenied

__all__ = ["fixed_settings", "require_settings"]

_TOKEN = "insert_deduplication_token"
_REQUIRED: Mapping[str, str | int] = {
    **PLAIN_MEANING,
    **PINNED,
    **PINNED_EVERYWHERE,
    _TOKEN: "a token",
    "transform_null_in": 1,
    **{name: SETTINGS[name] for name in ("insert_null_as_default", "use_query_cache")},
}


def fixed_settings(client: Client) -> dict[str, str]:
    """The required settings that this user may not change and that have another value than they must; their values."""
    return {name: value for name in _REQUIRED if (value := client.fixed_at(name, _REQUIRED[name])) is not None}


def require_settings(client: Client) -> None:
    """Raises AccessDenied if the user may not change a setting that exactly-once inserts depend on."""
    fixed = fixed_settings(client)
    if fixed:
        name, value = next(iter(fixed.items()))
        wanted = "be set" if name == _TOKEN else f"be {_REQUIRED[name]}"
        raise AccessDenied(
            f"user {client.settings.username!r} may not change the ClickHouse setting {name}, which is "
            f"{value or 'empty'!r} and has to {wanted}: changes would be stored twice or lost",
            hint=f"Take the constraint on {', '.join(fixed)} out of the user's profile; readonly is to be 0 or 2.",
        )
