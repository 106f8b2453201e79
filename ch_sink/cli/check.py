"""``ch_sink check``: every precondition of a stream, with the remedy for each that fails."""

import typer

from ch_sink.cli.options import AsJson, ConfigFile, Overrides
from ch_sink.cli.output import Output
from ch_sink.config import load

__all__ = ["check"]


def check(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check every precondition; exit code 1 if one fails."""
    from ch_sink.discovery.findings import findings

    out = Output(as_json=as_json)
    settings = load(config, overrides or ())
    found = list(findings(settings))
    for finding in found:
        out.finding(finding.level, finding.title, finding.detail, finding.remedy)
    failed = sum(f.level == "fail" for f in found)
    warned = sum(f.level == "warn" for f in found)
    out.say()
    out.say(f"{settings.stream_name}: {failed} failed, {warned} warnings, {len(found) - failed - warned} ok")
    out.document(
        {
            "stream": settings.stream_name,
            "ok": not failed,
            "findings": [{"level": f.level, "title": f.title, "detail": f.detail, "remedy": f.remedy} for f in found],
        }
    )
    if failed:
        raise typer.Exit(1)
