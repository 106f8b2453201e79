"""``ch_sink check``: every precondition of a stream, with the remedy for each that fails."""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import typer

from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, load_all
from ch_sink.cli.output import Output

if TYPE_CHECKING:
    from ch_sink.table.checks import Finding

__all__ = ["check"]


def check(configs: ConfigFiles, only: Only = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check every precondition of each stream; exit code 1 if one fails."""
    from ch_sink.cli.machine import machine_findings
    from ch_sink.discovery.findings import findings
    from ch_sink.model.address import counted

    out = Output(as_json=as_json)
    documents: list[dict[str, Any]] = []
    for settings in load_all(out, configs, overrides, only, strict=True):
        if documents:
            out.say()
        found: list[Finding] = []
        for finding in chain(
            machine_findings(settings), findings(settings)
        ):  # shown one by one: some wait for a server that does not answer
            found.append(finding)
            out.finding(finding.level, finding.title, finding.detail, finding.remedy)
        document = _document(settings.stream_name, found)
        documents.append(document)
        failed, warned = (sum(f.level == level for f in found) for level in ("fail", "warn"))
        passed = len(found) - failed - warned
        out.say()
        out.say(f"{settings.stream_name}: {failed} failed, {counted(warned, 'warning')}, {passed} ok")
    ok = all(document["ok"] for document in documents)
    out.document(documents[0] if len(documents) == 1 else {"ok": ok, "streams": documents})
    if not ok:
        raise typer.Exit(1)


def _document(stream: str, found: "Sequence[Finding]") -> dict[str, Any]:
    return {
        "stream": stream,
        "ok": all(f.level != "fail" for f in found),
        "findings": [{"level": f.level, "title": f.title, "detail": f.detail, "remedy": f.remedy} for f in found],
    }
