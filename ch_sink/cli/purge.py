"""``ch_sink purge``: deleted rows leave the disk, or all rows of one key."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ch_sink.cli.options import (
    AsJson,
    ConfigFiles,
    Only,
    Overrides,
    expecting_a_ledger,
    key_of,
    load_all,
    one_stream,
)
from ch_sink.cli.output import Output
from ch_sink.errors import ChSinkError, ConfigError

if TYPE_CHECKING:
    from ch_sink.config import Config


def purge(
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
    from ch_sink.model.counts import counted
    from ch_sink.trust.purge import purge_stream

    out = Output(as_json=as_json)
    streams = load_all(out, configs, overrides, only)
    if key:
        [chosen] = one_stream(streams, configs[0])
        _erase(out, chosen, key, apply=apply, live=live)
        return
    if live:
        raise ConfigError("--live needs --key", hint="Omit it, or name the key with --key.")
    documents: list[dict[str, Any]] = []
    refused = False
    for config in streams:
        if config.purge_after is None:
            raise ConfigError(
                f"stream {config.stream_name!r} has no purge_after",
                hint="Set how old deleted rows must be: `purge_after: 30d` in the file, or --set purge_after=30d.",
            )
        try:
            with expecting_a_ledger(config):
                done = purge_stream(config, apply=apply, say=_say(out))
        except ChSinkError as error:
            out.progress_done()
            if as_json:
                documents.append({"stream": config.stream_name, "refused": error.message})
            out.error(error, debug=False)
            refused = True
            continue
        out.progress_done()
        documents.append(done.as_json())
        verb = "removed" if apply else "would remove"
        more = "" if apply or not done.rows else "; add --apply to remove"
        out.say(f"{done.stream}: {verb} {counted(done.rows, 'row')} of {done.table}{more}")
        if done.note:
            out.say(f"  {done.note}")
    out.document({"streams": documents})
    if refused:
        raise typer.Exit(1)


def _erase(out: Output, config: "Config", key: str, *, apply: bool, live: bool) -> None:
    from ch_sink.trust.erase import erased
    from ch_sink.trust.own_tables import own_tables
    from ch_sink.trust.wiring import subject_of

    given = key_of(key)
    if live and config.rollups:
        raise ConfigError(
            "--live would leave the row's values in its rollups",
            hint="Delete the row in the source, and purge the key once the stream has applied that.",
        )
    with expecting_a_ledger(config):
        subject = subject_of(config)
        own = own_tables(config, subject.client)
        done = erased(subject, own, given, apply=apply, live=live, say=_say(out))
    out.progress_done()
    out.table(("table", "removed" if apply else "rows"), list(done.rows.items()))
    for line in done.remains:
        out.say(line)
    if not apply and any(done.rows.values()):
        out.say("nothing was removed; add --apply to do it")
    out.document(done.as_json())


def _say(out: Output) -> Callable[[str], None]:
    return lambda text: out.progress(text) if out.interactive else None
