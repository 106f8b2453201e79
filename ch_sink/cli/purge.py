"""``ch_sink purge``: deleted rows leave the disk."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, expecting_a_ledger, load_all
from ch_sink.cli.output import Output
from ch_sink.errors import ChSinkError, ConfigError

__all__ = ["purge"]


def purge(
    configs: ConfigFiles,
    apply: Annotated[bool, typer.Option("--apply", help="Remove; without it, only count the rows.")] = False,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Remove rows from the disk that were deleted longer ago than ``purge_after``, where no older change can come.

    If that cannot be proved, the reason is shown and the exit code is 1. The stream may run meanwhile.
    """
    from ch_sink.model.address import counted
    from ch_sink.trust.purging import purge_stream

    out = Output(as_json=as_json)
    documents: list[dict[str, Any]] = []
    refused = False
    for config in load_all(out, configs, overrides, only):
        if config.purge_after is None:
            raise ConfigError(
                f"stream {config.stream_name!r} has no purge_after",
                hint="Say how old deleted rows must be: `purge_after: 30d` in the file, or --set purge_after=30d.",
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
        more = "" if apply or not done.rows else ": --apply"
        out.say(f"{done.stream}: {verb} {counted(done.rows, 'row')} of {done.table}{more}")
        if done.note:
            out.say(f"  {done.note}")
    out.document({"streams": documents})
    if refused:
        raise typer.Exit(1)


def _say(out: Output) -> Callable[[str], None]:
    return lambda text: out.progress(text) if out.interactive else None
