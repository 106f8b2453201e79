"""Sampled values by column, for topics whose events do not declare their types."""

from collections.abc import Mapping, Sequence

import msgspec

from ch_sink.discovery.sample_rows import row_events
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.ports import SchemaRegistry

__all__ = ["Literals", "sampled_literals"]

Literals = Mapping[str, Sequence[bytes]]
"""Column → JSON texts of its values, without nulls."""
_MOST = 200
"""Values kept of each column."""


class _Images(msgspec.Struct, gc=False):
    after: dict[str, msgspec.Raw] | None = None


_decoder = msgspec.json.Decoder(_Images)


def sampled_literals(
    chunks: Sequence[Records], policy: Policy, registry: SchemaRegistry | None = None
) -> dict[str, list[bytes]]:
    """The newest non-null values of each column."""
    found: dict[str, dict[bytes, None]] = {}
    for _, payload in reversed(row_events(chunks, policy, registry)[0]):
        try:
            image = _decoder.decode(payload).after or {}
        except (msgspec.DecodeError, ValueError, RecursionError):
            continue
        for name, raw in image.items():
            values = found.setdefault(name, {})
            if len(values) < _MOST and (text := bytes(raw)) != b"null":
                values[text] = None
    return {name: list(values) for name, values in found.items()}
