"""The commands that put tables right: ``repair`` by row, ``resync`` as a whole, ``purge`` of what was deleted."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ch_sink.cli.comparing import (
    Against,
    EachStream,
    Examples,
    Parallel,
    Patience,
    Where,
    case_of,
    options_of,
    say_to,
    truth_of,
)
from ch_sink.cli.options import (
    AsJson,
    ConfigFiles,
    Only,
    Overrides,
    key_of,
    load_all,
    one_stream,
)
from ch_sink.cli.output import Output
from ch_sink.errors import ConfigError
from ch_sink.model.counts import counted, grouped
from ch_sink.observe.logs import Step

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.trust.repair import Repaired
    from ch_sink.trust.resync import Resynced
    from ch_sink.wiring.process import Stop


def repair(
    context: typer.Context,
    configs: ConfigFiles,
    against: Against = "",
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the rows; without it, only show what would be written.")
    ] = False,
    examples: Examples = 10,
    where: Where = "",
    key: Annotated[
        str,
        typer.Option("--key", metavar="JSON", help="Repair this row only, such as '{\"id\": 7}'.", show_default=False),
    ] = "",
    patience: Patience = 30.0,
    parallel: Parallel = 0,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows that differ from the source, as `ch_sink verify` finds them.

    Every later change of a row wins over its repair. Without --apply nothing is written.
    """
    from ch_sink.cli.verify import record
    from ch_sink.trust.alone import alone
    from ch_sink.trust.key import condition_of
    from ch_sink.trust.repair import repaired
    from ch_sink.trust.report import lines
    from ch_sink.wiring.streams import renew_views

    out = Output(as_json=as_json)
    if key and where:
        raise ConfigError("--key and --where exclude each other", hint="Use one of them.")
    options = options_of(examples, "", where, "", patience, parallel)
    documents: list[dict[str, Any]] = []
    ok = True
    each = EachStream(out, load_all(out, configs, overrides, only))
    with out.documenting(context.obj, lambda: {"streams": [*documents, *each.documents()]}):
        for config in each.streams:
            with each.guard(config), alone(config, "repair", apply=apply) as still_alone:
                subject, chosen = case_of(config, against, options, context.obj.check)
                subject = replace(subject, still_alone=still_alone)
                if key:
                    chosen = replace(chosen, condition=condition_of(subject, key_of(key)))
                if apply:
                    renew_views(config)
                began = time.time()
                done = repaired(subject, chosen, apply=apply, say=say_to(out))
                out.progress_done()
                if apply and done.all_repaired and chosen.of_all_rows:
                    record(config, [done.corrected], began)
                documents.append(done.as_json())
                ok = ok and done.all_repaired
                for line in [*lines(done.report), *_outcome(done)]:
                    out.say(line)
    each.expect_all()
    if not ok:
        raise typer.Exit(1)


def _outcome(done: "Repaired") -> list[str]:
    said = []
    if done.rows:
        rows = counted(done.rows, "row")
        said = [f"  repaired {rows}"] if done.applied else [f"  would repair {rows}; add --apply to write"]
    outcomes = (
        (done.left, "still differ: the stream may have changed them in the meantime; verify again"),
        (done.too_new, "left alone: their versions are above everything that the stream has written"),
        (done.unremovable, "cannot be removed: the engine has no mark for deleted rows"),
        (
            done.unreadable,
            "left alone: not all of their columns can be read from the source; repair them --against topic",
        ),
    )
    return [*said, *(f"  {counted(number, 'row')} {text}" for number, text in outcomes if number)]


Apply = Annotated[bool, typer.Option("--apply", help="Fill the table; without it, only show what would be done.")]
Into = Annotated[
    str,
    typer.Option(
        "--into",
        metavar="TABLE",
        help="Fill this empty table instead, and leave the stream's table as it is.",
        show_default=False,
    ),
]


def resync(
    context: typer.Context,
    configs: ConfigFiles,
    against: Against = "",
    into: Into = "",
    apply: Apply = False,
    patience: Patience = 30.0,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Fill tables from the source or the topic, and swap them in, while the stream and readers continue.

    Nothing is written without --apply. A new table is filled beside the old one and takes its place in one step. Its
    engine, columns, order_by, partition_by and ttl are those of the file, so resync can also give a table another
    shape. Before the first run, it can load the rows that the source already has, in place of a connector's snapshot.
    """
    from ch_sink.trust.alone import alone
    from ch_sink.trust.resync import resynced
    from ch_sink.trust.wiring import refill_of
    from ch_sink.wiring.streams import renew_views

    out = Output(as_json=as_json)
    documents: list[dict[str, Any]] = []
    streams = load_all(out, configs, overrides, only)
    if into:
        streams = one_stream(streams, configs[0])
    each = EachStream(out, streams)
    with out.documenting(context.obj, lambda: {"streams": [*documents, *each.documents()]}):
        for config in each.streams:
            chosen = truth_of(config, against)
            with each.guard(config), alone(config, "resync", apply=apply) as still_alone:
                refill = refill_of(config, patience, context.obj.check, still_alone)
                done = resynced(
                    refill,
                    apply=apply,
                    against=chosen,
                    into=into,
                    say=lambda text: out.doing(text) if isinstance(text, Step) else out.note(text),
                )
                if apply and not into:
                    renew_views(config)
                documents.append(done.as_json())
                for line in _planned(done, chosen) if not apply else _done(done, into):
                    out.say(line)
    each.expect_all()
    if any(one["lacking"] for one in documents):
        raise typer.Exit(1)


def _planned(done: "Resynced", against: str) -> Iterator[str]:
    what = counted(done.rows, "row" if against == "source" else "offset")
    has = counted(done.before, "row")
    yield f"{done.table}: has {has}, would be filled from {what} of the {against}; add --apply to do it"
    if done.size:
        yield f"needs room for a second table; the present one takes {done.size / 2**20:,.1f} MiB"
    yield from (f"  {change}" for change in done.shape)


def _done(done: "Resynced", into: str) -> Iterator[str]:
    if into:
        yield f"{done.table}: {counted(done.rows, 'row')}"
    elif done.start:
        places = ", ".join(f"{offset} of partition {p}" for p, offset in sorted(done.start.items()))
        yield f"{done.table}: {counted(done.rows, 'row')}; the stream continues at offset {places}"
    else:
        yield (
            f"{done.table}: {counted(done.rows, 'row')}, {grouped(done.before)} before; "
            f"the stream paused for {done.paused:.1f} seconds"
        )
    yield from (f"  {change}" for change in done.shape)


def purge(
    context: typer.Context,
    configs: ConfigFiles,
    apply: Annotated[bool, typer.Option("--apply", help="Remove the rows; without it, only count them.")] = False,
    key: Annotated[
        str,
        typer.Option(
            "--key",
            metavar="JSON",
            help="Remove everything stored of one key, such as '{\"id\": 7}', whatever its age.",
            show_default=False,
        ),
    ] = "",
    live: Annotated[
        bool, typer.Option("--live", help="With --key: remove the row even if the source has not deleted it.")
    ] = False,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Remove from the disk the rows that were deleted longer ago than purge_after.

    A deleted row stays while an older change could still arrive. With --key, everything stored of one key is
    removed, and the result lists what the command cannot reach. Exit code 1 if refused.
    """
    from ch_sink.trust.purge import purge_stream

    out = Output(as_json=as_json)
    streams = load_all(out, configs, overrides, only)
    if key:
        [chosen] = one_stream(streams, configs[0])
        _erase(out, context.obj, chosen, key, apply=apply, live=live)
        return
    if live:
        raise ConfigError("--live needs --key", hint="Omit it, or name the key with --key.")
    if ageless := [config.stream_name for config in streams if config.purge_after is None]:
        raise ConfigError(
            f"stream {ageless[0]!r} has no purge_after",
            hint="Set how old deleted rows must be: `purge_after: 30d` in the file, or --set purge_after=30d.",
        )
    documents: list[dict[str, Any]] = []
    each = EachStream(out, streams)
    for config in streams:
        with each.guard(config):
            done = purge_stream(config, apply=apply, say=say_to(out))
            documents.append(done.as_json())
            verb = "removed" if apply else "would remove"
            more = "" if apply or not done.rows else "; add --apply to remove"
            out.say(f"{done.stream}: {verb} {counted(done.rows, 'row')} of {done.table}{more}")
            if done.note:
                out.say(f"  {done.note}")
    out.document({"streams": [*documents, *each.documents()]})
    each.expect_all()


def _erase(out: Output, stop: "Stop", config: "Config", key: str, *, apply: bool, live: bool) -> None:
    from ch_sink.trust.alone import alone
    from ch_sink.trust.one_key import erased
    from ch_sink.trust.own_tables import own_tables
    from ch_sink.trust.wiring import subject_of

    given = key_of(key)
    if live and config.rollups:
        raise ConfigError(
            "--live would leave the row's values in its rollups",
            hint="Delete the row in the source, and purge the key once the stream has applied that.",
        )
    with alone(config, "purge --key", apply=apply) as still_alone:
        subject = replace(subject_of(config, stop.check), still_alone=still_alone)
        done = erased(subject, own_tables(config, subject.client), given, apply=apply, live=live, say=say_to(out))
    out.progress_done()
    out.table(("table", "removed" if apply else "rows"), list(done.rows.items()))
    for line in done.remains:
        out.say(line)
    if not apply and any(done.rows.values()):
        out.say("nothing was removed; add --apply to do it")
    out.document(done.as_json())
