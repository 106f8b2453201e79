"""``ch_sink init``: the table, its current-state view and the sink's own tables, from what the topic holds."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.options import ConfigFile, Overrides
from ch_sink.cli.output import Output
from ch_sink.config import Config, load
from ch_sink.errors import ChSinkError, ClickHouseError, ConfigError, TableNotFound

if TYPE_CHECKING:
    from ch_sink.clickhouse import Client
    from ch_sink.table.ddl import Statement

__all__ = ["init", "make_tables"]


def init(
    config: ConfigFile,
    engine: Annotated[
        str | None,
        typer.Option(help="replacing, sign-replacing, collapsing, versioned-collapsing or append.", show_default=False),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Carry the statements out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print them only; the default.")] = False,
    row_policy: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE", help="Hide deleted rows of the table itself from this role. May be repeated."),
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the statements to a file.")] = None,
    overrides: Overrides = None,
) -> None:
    """Make the table for a topic, or bring an existing one up to it. May be repeated."""
    if apply and dry_run:
        raise ConfigError("--apply and --dry-run exclude each other", hint="Leave one of them out.")
    out = Output()
    settings = load(config, overrides or ())
    _init(out, settings, engine, apply, tuple(row_policy or ()), output)


def make_tables(out: Output, config: Config, *, quiet: bool = False) -> None:
    """What ``init --apply`` does; ``quiet`` leaves out the list of what was made."""
    _init(out, config, None, True, (), None, quiet=quiet)


def _init(
    out: Output,
    config: Config,
    engine: str | None,
    apply: bool,
    roles: tuple[str, ...],
    output: Path | None,
    *,
    quiet: bool = False,
) -> None:
    from ch_sink.clickhouse import detect, execute, server_facts
    from ch_sink.discovery.wiring import ledger_of, sample, table_spec, topic_offsets
    from ch_sink.table.ddl import init_statements, script
    from ch_sink.table.evolve import existing_statements
    from ch_sink.table.spec import EngineChoice
    from ch_sink.types.column import WIDE_YEARS

    spec = table_spec(config, engine=engine, roles=roles)
    client, trouble = _connect(config)
    # What the server's dates hold decides over column types.
    years = server_facts(client).years if client is not None else WIDE_YEARS
    with topic_offsets(config) as offsets:
        seen = sample(config, offsets.state(config.kafka.topic), years)
    if seen.schema is None:
        raise ChSinkError(
            f"the table's columns cannot be told: {seen.why}",
            hint="Run init again once the topic holds change events, or make the table by hand.",
        )
    unkeyed = not seen.schema.key and not config.key_columns
    if unkeyed and engine is None and "engine" not in config.init.model_fields_set:
        out.note("the topic has no keys: the table keeps every change, and the view repeats each row as often as it is")
        spec = replace(spec, engine=EngineChoice.APPEND)
    existing = None
    if trouble is not None:
        if apply:
            raise trouble
        out.warn(f"{trouble}; the statements are those for a table that does not exist yet")
    if client is not None:
        spec = replace(spec, nullable_tuple=_has_nullable_tuple(client))
        with suppress(TableNotFound):
            existing = detect(client, config.clickhouse.database, config.clickhouse.table, config.policy())
    statements: list[Statement]
    if existing is not None:
        if engine is not None and existing.engine.family is not spec.engine.family:
            out.warn(f"{existing.qualified} is a {existing.engine.name}; --engine does not change an existing table")
        statements = existing_statements(existing, seen.schema, spec)
    else:
        statements = init_statements(seen.schema, spec)
    if output is not None:
        _write(output, script(statements))
        out.note(f"wrote {len(statements)} statements to {output}")
    elif not apply:
        out.sql(script(statements))
    if apply and client is not None:
        for statement in statements:
            execute(client, [statement.sql])
            if not quiet:
                out.say(f"done  {statement.title}")
        if ledger_of(config, client).upgrade() and not quiet:
            out.say("done  ledger of an earlier version upgraded")
        if spec.row_policy_roles:
            _warn_about_policies(out, client, config)


def _connect(config: Config) -> "tuple[Client | None, ClickHouseError | None]":
    """The client, or why there is none."""
    from ch_sink.discovery.wiring import client_of

    try:
        return client_of(config), None
    except ClickHouseError as error:
        return None, error


def _has_nullable_tuple(client: "Client") -> bool:
    try:
        client.rows("SELECT CAST(NULL AS Nullable(Tuple(a UInt8))) AS probe", doing="ask for Nullable(Tuple)")
    except ClickHouseError:
        return False
    return True


def _warn_about_policies(out: Output, client: "Client", config: Config) -> None:
    from ch_sink.clickhouse import server_facts

    facts = server_facts(client)
    if not facts.apply_row_policy_after_final:
        out.warn(
            f"this server ({facts.version}) applies row policies before FINAL: readers of the table under FINAL would "
            f"see deleted rows again; let them read {config.clickhouse.table}_current"
        )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="Choose another file.") from None
