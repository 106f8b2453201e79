"""By which key a stream reads its topic: as its ledger has recorded it, else as sampled records show it."""

from collections.abc import Sequence
from dataclasses import dataclass

from ch_sink.clickhouse import Client, detect
from ch_sink.config import Config
from ch_sink.decode.avro.columns import columns_of
from ch_sink.decode.chosen import goes_on_with
from ch_sink.decode.framing import Envelopes
from ch_sink.decode.key_layouts import fields_of
from ch_sink.discovery.connector_findings import Obstacle
from ch_sink.discovery.sample_rows import is_row
from ch_sink.discovery.wiring import ledger_of
from ch_sink.errors import ChSinkError, DecodeError
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.order import State
from ch_sink.ports import SchemaRegistry
from ch_sink.table.model import TargetTable


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The choice of the stream's key among those that records show."""

    recorded: tuple[str, ...] = ()
    """The key by which the stream has read the topic; empty if it is still to learn it."""
    latest: bool = False
    """A new stream leaves out what the topic holds (``start: latest``)."""

    def key_of(self, shown: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
        """The names of the key in the records (see `shown_keys`); empty if these show no two of them."""
        if self.recorded:
            return next((names for names in shown if _same(names, self.recorded)), self.recorded)
        return shown[-1] if len(shown) > 1 else ()


def recorded_key(config: Config, client: Client, topic_id: str, table: TargetTable | None = None) -> tuple[str, ...]:
    """The key by which the stream goes on reading the topic; empty if it is still to learn it, or cannot be asked.

    ``table``: the stream's, if it was detected before. Raises ChSinkError if the server does not answer.
    """
    try:
        policy, place = config.policy(), config.clickhouse
        table = table or detect(client, place.database, place.table, policy)
        totals = [t for t in ledger_of(config, client).totals() if t.topic_id == topic_id]
    except ChSinkError as error:  # the table or the ledger does not exist yet
        if error.temporary:
            raise
        return ()
    for one in sorted(totals, key=lambda one: one.finished, reverse=True):
        profile = State.from_json(one.state).profile
        if profile.key_source in ("row", "configuration") and goes_on_with(profile, table, policy):
            return () if profile.documents else profile.key_columns
    return ()


def shown_keys(parts: Sequence[Records], policy: Policy, registry: SchemaRegistry | None) -> list[tuple[str, ...]]:
    """The columns of the Kafka keys of rows, by the time of the last record that has each; none for single values.

    Raises RegistryError.
    """
    envelopes = Envelopes(registry)
    last: dict[frozenset[str], tuple[int, tuple[str, ...]]] = {}
    for part in parts:
        for key, value, time in zip(part.keys, part.values, part.timestamps.tolist(), strict=True):
            if key is None or value is None:
                continue
            try:
                names = tuple(name for name in fields_of(*envelopes.one(key)) if name not in policy.keys.ignored)
            except DecodeError:
                continue
            known = last.get(frozenset(names))
            if names and (known is None or known[0] <= time) and is_row(value, policy, envelopes):
                last.pop(frozenset(names), None)
                last[frozenset(names)] = time, names
    return [names for _, names in sorted(last.values(), key=lambda one: one[0])]


def key_obstacle(shown: Sequence[tuple[str, ...]], topic: str, policy: Policy, rule: KeyRule) -> Obstacle | None:
    """Why records of the stream do not have its key; None if all have it. ``shown``: see `shown_keys`."""
    configured, begun = policy.keys.columns, bool(rule.recorded)
    read = shown[-1:] if begun or rule.latest else shown
    wanted = configured or rule.recorded or next(iter(read), ())
    odd = next((names for names in read if not _same(names, wanted)), None)
    if odd is None:
        return None
    own, other = ", ".join(wanted), ", ".join(odd)
    reason = f"the key has the columns {other}, key_columns are {own}"
    if not configured:
        reason = f"the key has the columns {other}, earlier ones had {own}"
    chosen = configured and not begun and not _same(shown[-1], configured)
    return Obstacle("key", f"topic {topic}: {reason}", _LEAVE_OUT if chosen else _BEGIN_ANEW)


_LEAVE_OUT = "Leave key_columns out, or let the connector state that key (message.key.columns) in a new topic."
_BEGIN_ANEW = (
    "A topic must keep its key (message.key.columns). If it has changed for good, begin another table and another "
    "`stream` with start: latest, and take a new snapshot once it runs (docs/schema-changes.md)."
)


def _same(names: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a key has these columns, some perhaps under the names that Avro allows."""
    return {*columns_of(names, wanted).values()} == {*wanted}
