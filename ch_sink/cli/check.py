"""``ch_sink check``: every precondition of a stream, with the remedy for each that fails."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, load_all
from ch_sink.cli.output import Output
from ch_sink.model.counts import counted

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.table.checks import Finding

_AT_ONCE = 8
"""The most streams that are checked at the same time: most of the time is spent waiting for servers."""
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
