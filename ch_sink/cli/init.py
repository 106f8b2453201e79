"""The commands before the first run: ``init`` creates tables from what topics hold, ``check`` tests each stream."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, load_all, load_jobs, watch_topics
from ch_sink.cli.output import Output
from ch_sink.errors import BrokerUnavailable, ChSinkError, ClickHouseError, ConfigError, StreamsFailed
from ch_sink.model.counts import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ch_sink.clickhouse import Client
    from ch_sink.config import Config
    from ch_sink.discovery.init_plan import InitPlan
    from ch_sink.discovery.look import Sampled
    from ch_sink.table.checks import Finding


_AT_ONCE = 8
"""Topics that are looked into, and streams that are checked, at the same time: most of it is waiting for servers."""


def _printed(text: "Callable[[], None]") -> "Callable[[bool], None]":
    """A callback for an option that prints something and ends the command."""

    def chosen(wanted: bool) -> None:
        if wanted:
            text()
            raise typer.Exit

    return chosen


def _example() -> None:
    from ch_sink.config.schema import EXAMPLE

    Output().sql(EXAMPLE)


def _json_schema() -> None:
    from ch_sink.config.schema import json_schema

    Output(as_json=True).document(json_schema())


def init(
    configs: ConfigFiles,
    apply: Annotated[bool, typer.Option("--apply", help="Execute the statements instead of printing them.")] = False,
    only: Only = None,
    overrides: Overrides = None,
    example: Annotated[
        bool,
        typer.Option(
            "--example",
            help="Print a commented configuration file; needs no CONFIG.",
            is_eager=True,
            callback=_printed(_example),
        ),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--json-schema",
            help="Print the JSON Schema of configuration files, for editors; needs no CONFIG.",
            is_eager=True,
            callback=_printed(_json_schema),
        ),
    ] = False,
) -> None:
    """Print the statements that create the table of each topic. Nothing is created without --apply.

    The columns come from the topic's schemas and events. The statements also create a view of the current rows and the
    tables in which ch_sink keeps its own state. A table that exists gets the columns it lacks and loses none, so init
    can be repeated.
    """
    out = Output()
    streams = load_all(out, configs, overrides, only, strict=True, whole=True)
    jobs = load_jobs(configs, overrides)
    _run(out, streams, apply=apply, found=watch_topics(jobs, lambda: jobs, only).finds)


def make_tables(out: Output, config: "Config", *, quiet: bool = False) -> None:
    """Do what ``init --apply`` does. ``quiet``: leave out the list of created objects."""
    _run(out, [config], apply=True, quiet=quiet)


def _run(
    out: Output,
    configs: "list[Config]",
    *,
    apply: bool,
    quiet: bool = False,
    found: "Callable[[Config], bool]" = lambda _: False,
) -> None:
    """Plan every stream before the first statement runs.

    ``found``: whether a stream's topic was found by a pattern. A topic without change events is then skipped. So is
    a table that the server does not make, where there are others.

    Raises ChSinkError; after the other streams are done, if one was left out.
    """
    from ch_sink.table.ddl import script

    several = len(configs) > 1
    planned: list[tuple[Config, _Looked, InitPlan]] = []
    failed: dict[str, ChSinkError] = {}
    with ThreadPoolExecutor(max(1, min(_AT_ONCE, len(configs)))) as pool:
        looks = [(config, pool.submit(_look, config)) for config in configs]
        for config, look in looks:
            try:
                looked = look.result()
                planned.append((config, looked, _plan(out, config, looked, apply=apply, several=several)))
            except ChSinkError as error:
                if isinstance(error, (ClickHouseError, ConfigError, BrokerUnavailable)) or not found(config):
                    raise error.about(config.stream_name) if several else error from None
                failed[config.stream_name] = error.of_one_topic(config.kafka.topic)
    if apply:
        failed |= _apply(out, planned, quiet=quiet)
    else:
        # Streams of one database share the sink's own tables.
        out.sql(script(list(dict.fromkeys(statement for *_, plan in planned for statement in plan.statements))))
        if out.interactive:
            out.note("nothing was changed; add --apply to run these statements")
    if len(failed) == 1:
        [(stream, only)] = failed.items()
        raise only.about(stream) if several else only
    if failed:
        raise StreamsFailed(failed)


@dataclass(frozen=True, slots=True)
class _Looked:
    """The sample of a stream's topic, and its server, or why the server cannot be reached."""

    seen: "Sampled"
    client: "Client | None"
    trouble: ClickHouseError | None


def _apply(
    out: Output, planned: "Sequence[tuple[Config, _Looked, InitPlan]]", *, quiet: bool
) -> "dict[str, ChSinkError]":
    """Run the plans, anew planned where an earlier one was for the same table; returns the streams left out, and why.

    Raises ChSinkError: a server does not answer.
    """
    from ch_sink.discovery.init_plan import plan_init
    from ch_sink.table.ddl import Statement

    failed: dict[str, ChSinkError] = {}
    done: set[tuple[str, Statement]] = set()
    tables: set[tuple[str, str, str]] = set()
    altered: set[tuple[str, str, str]] = set()
    for config, looked, plan in planned:
        client, server = looked.client, config.clickhouse.url
        assert client is not None
        table = server, config.clickhouse.database, config.clickhouse.table
        try:
            if table in tables:
                plan = plan_init(config, looked.seen, client)
            tables.add(table)
            left = tuple(s for s in plan.statements if (server, s) not in done)
            if any(statement.kind == "alter" for statement in left):
                altered.add(table)
            with _held(out, config, client) if table in altered else nullcontext():
                apply_plan(out, client, replace(plan, statements=left), quiet=quiet)
            done |= {(server, s) for s in left}
        except ChSinkError as error:
            if error.temporary:
                raise
            failed[config.stream_name] = error
    return failed


def _held(out: Output, config: "Config", client: "Client") -> AbstractContextManager[object]:
    """The stream is paused until the context ends: the job opens it again then, and fills the columns that it finds."""
    from ch_sink.clickhouse.state_table import NO_TABLE
    from ch_sink.discovery.wiring import ledger_of, states_of
    from ch_sink.stream.standing import held, works

    states = states_of(config, client.settings)
    try:
        if not works(states, config.stream_name):
            return nullcontext()
    except ClickHouseError as error:
        if error.code not in NO_TABLE:
            raise
        return nullcontext()  # no job has begun
    return held(ledger_of(config, client), states, "init", say=out.note)


def _look(config: "Config") -> _Looked:
    from ch_sink.clickhouse import server_facts
    from ch_sink.discovery.look import look_into
    from ch_sink.discovery.stream_key import recorded_key
    from ch_sink.discovery.wiring import client_of, topic_offsets
    from ch_sink.types.column import WIDE_YEARS

    client, trouble = None, None
    try:
        client = client_of(config)
    except ClickHouseError as error:
        trouble = error
    # The range of years that the server's dates hold decides column types.
    years = server_facts(client).years if client is not None else WIDE_YEARS
    with topic_offsets(config) as offsets:
        topic = offsets.state(config.kafka.topic)
    recorded = recorded_key(config, client, topic.topic_id) if client is not None else ()
    return _Looked(look_into(config, topic, years, recorded), client, trouble)


def _plan(out: Output, config: "Config", looked: _Looked, *, apply: bool, several: bool) -> "InitPlan":
    """The plan of a stream. Without ``apply`` there may be no server."""
    trouble = looked.trouble
    if trouble is not None and not apply:
        out.warn(f"{trouble}; the statements assume that the table does not exist yet")
    place = f"{config.clickhouse.database}.{config.clickhouse.table}: " if several else ""
    plan = plan_one(out, config, looked.seen, looked.client, place=place)
    if trouble is not None and apply:
        raise trouble
    return plan


def plan_one(
    out: Output,
    config: "Config",
    seen: "Sampled",
    client: "Client | None",
    *,
    place: str = "",
) -> "InitPlan":
    """The plan of one stream, and what the reader should know about it. ``place`` is in front of each line of that.

    Raises ChSinkError.
    """
    from ch_sink.discovery.init_plan import plan_init

    plan = plan_init(config, seen, client)
    for note in plan.notes:
        out.note(place + note)
    for finding in plan.findings:
        out.warn(place + finding.detail)
        for line in (finding.remedy or "").splitlines():
            out.warn(f"  {line}")
    return plan


def apply_plan(out: Output, client: "Client", plan: "InitPlan", *, quiet: bool = False) -> None:
    """Run the statements. Objects that are already up to date are reported as unchanged."""
    from ch_sink.clickhouse import run_statement

    if not quiet and not any(statement.kind == "alter" or statement.makes(plan.table) for statement in plan.statements):
        out.say(f"{'unchanged':<10} table {plan.table}")
    for statement in plan.statements:
        outcome = run_statement(client, statement)
        if not quiet:
            out.say(f"{outcome:<10} {statement.title}")


Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show passed checks too; of a single stream they always are.")
]


def check(
    configs: ConfigFiles,
    only: Only = None,
    overrides: Overrides = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Test every precondition of each stream; exit code 1 if one fails."""
    out = Output(as_json=as_json)
    streams = load_all(out, configs, overrides, only, strict=True)
    java = java_finding()  # once: each look starts a JVM
    if len(streams) == 1:
        documents = [_shown(out, streams[0], _findings(streams[0], java), every=True)]
    else:
        documents = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for settings, found in zip(streams, pool.map(lambda one: list(_findings(one, java)), streams), strict=True):
                documents.append(_shown(out, settings, found, every=verbose))
        failed = sum(not document["ok"] for document in documents)
        warned = sum(document["ok"] and _count(document, "warn") > 0 for document in documents)
        passed = len(documents) - failed - warned
        out.say()
        out.say(f"{counted(len(documents), 'stream')}: {failed} failed, {warned} with warnings, {passed} ok")
    ok = all(document["ok"] for document in documents)
    out.document(documents[0] if len(documents) == 1 else {"ok": ok, "streams": documents})
    if not ok:
        raise typer.Exit(1)


def _findings(settings: "Config", java: "Finding") -> "Iterator[Finding]":
    """One by one: some wait for a server that does not answer."""
    from ch_sink.discovery.findings import findings
    from ch_sink.table.checks import Finding

    yield Finding("ok", "configuration", f"stream {settings.stream_name}")
    yield java
    yield from findings(settings)


def _shown(out: Output, settings: "Config", findings: "Iterable[Finding]", *, every: bool) -> dict[str, Any]:
    """Print a stream's findings, ``every`` or those that are not well; returns its document."""
    found: list[Finding] = []
    named = False
    for finding in findings:
        found.append(finding)
        if every or finding.level != "ok":
            if not named and not every:
                out.say(f"{settings.stream_name}:")
            named = True
            out.finding(finding.level, finding.title, finding.detail, finding.remedy)
    document = _document(settings.stream_name, found)
    if every:
        failed, warned, passed = (_count(document, level) for level in ("fail", "warn", "ok"))
        out.say(f"{settings.stream_name}: {failed} failed, {counted(warned, 'warning')}, {passed} ok")
        out.say()
    return document


def _count(document: Mapping[str, Any], level: str) -> int:
    return sum(finding["level"] == level for finding in document["findings"])


def _document(stream: str, found: "Sequence[Finding]") -> dict[str, Any]:
    return {
        "stream": stream,
        "ok": all(f.level != "fail" for f in found),
        "findings": [{"level": f.level, "title": f.title, "detail": f.detail, "remedy": f.remedy} for f in found],
    }


def java_finding() -> "Finding":
    """Whether Spark finds its Java. Starts each candidate to learn its version."""
    from ch_sink.spark.installed import MINIMUM, find_java
    from ch_sink.table.checks import Finding

    if (java := find_java()) is not None:
        return Finding("ok", "java", str(java))
    missing = f"no Java {MINIMUM} or newer was found, and Spark needs one"
    return Finding("fail", "java", missing, "Install one, or set JAVA_HOME.")
