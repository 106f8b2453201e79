"""What a job does for a topic that it sees for the first time: create its table, as ``init --apply`` does."""

import logging
import re

from ch_sink.clickhouse import Client, run_statement, server_facts
from ch_sink.config import Config
from ch_sink.discovery.init_plan import plan_init
from ch_sink.discovery.job_topics import existing_tables
from ch_sink.discovery.look import look_into
from ch_sink.discovery.wiring import client_of, topic_offsets
from ch_sink.errors import ChSinkError, ClickHouseError

__all__ = ["create_tables", "lacks_tables"]

log = logging.getLogger("ch_sink")


def create_tables(config: Config) -> tuple[str, ...]:
    """Create the stream's table, view and the sink's own tables, unless they exist; what was created, in order.

    Raises ChSinkError: the topic is no change stream, the server refuses or a server does not answer.
    """
    client = client_of(config)
    if not lacks_tables(client, config):
        return ()
    with topic_offsets(config) as offsets:
        seen = look_into(config, offsets.state(config.kafka.topic), server_facts(client).years)
    try:
        plan = plan_init(config, seen, client)
    except ChSinkError as error:
        raise _cannot(config, error) from None
    try:
        made = [s.title for s in plan.statements if run_statement(client, s) != "unchanged"]
    except ClickHouseError as error:
        raise error if error.temporary else _refused(config, error) from None
    place = f"{config.clickhouse.database}.{config.clickhouse.table}"
    log.warning("%s: created %s", place, ", ".join(made), extra={"stream": config.stream_name})
    for note in plan.notes:
        log.warning("%s: %s", place, note, extra={"stream": config.stream_name})
    return tuple(made)


def lacks_tables(client: Client, config: Config) -> bool:
    """Whether the stream's table or one of the sink's own does not exist. Raises ClickHouseError."""
    own = config.tables
    names = {config.clickhouse.table, own.ledger, own.dead_letters, own.handover, own.pending}
    return bool(names - existing_tables(client, config.clickhouse.database, names))


def _refused(config: Config, error: ClickHouseError) -> ClickHouseError:
    """The error, with what to do about a table that the server does not make."""
    topic = config.kafka.topic
    return error.about(
        f"no table can be created for topic {topic}",
        hint=f"{error.hint or 'Correct the keys under `init` for this topic.'} Or make the table yourself, beginning "
        f"with what `ch_sink init CONFIG --only '{re.escape(topic)}'` prints.",
    )


def _cannot(config: Config, error: ChSinkError) -> ChSinkError:
    """The error, with what to do about a topic that no table can follow."""
    if isinstance(error, ClickHouseError):
        return error
    return type(error)(
        f"no table can be created for topic {config.kafka.topic}: {error.message}",
        hint=f"{error.hint or ''} If the topic is no change stream, leave it out: an exception under `tables:` with "
        f"`match: {config.kafka.topic}` and `skip: true`.".strip(),
    )
