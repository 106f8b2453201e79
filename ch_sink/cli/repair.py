"""``ch_sink repair``: tables are made equal to their source."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ch_sink.cli.comparing import Against, EachStream, Examples, Parallel, Patience, Where, case_of, options_of, say_to
from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, key_of, load_all
from ch_sink.cli.output import Output
from ch_sink.errors import ConfigError

if TYPE_CHECKING:
    from ch_sink.trust.repair import Repaired


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
            with each.guard(config):
                subject, chosen = case_of(config, against, options, context.obj.check)
                if key:
                    chosen = replace(chosen, condition=condition_of(subject, key_of(key)))
                if apply:
                    renew_views(config)
                done = repaired(subject, chosen, apply=apply, say=say_to(out))
                out.progress_done()
                documents.append(done.as_json())
                ok = ok and done.all_repaired
                for line in [*lines(done.report), *_outcome(done)]:
                    out.say(line)
    each.expect_all()
    if not ok:
        raise typer.Exit(1)


def _outcome(done: "Repaired") -> list[str]:
    from ch_sink.model.counts import counted

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
