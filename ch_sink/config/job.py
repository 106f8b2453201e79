"""A configuration file as a job: what it says of one topic or of many, and its exceptions for single tables."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ch_sink.config.model import ColumnsSection, Config
from ch_sink.config.naming import Topics, fields_in, needs_event, render, takes_table
from ch_sink.config.tree import KeyPath, Tree, config_error, read, read_secret_files
from ch_sink.errors import ConfigError
from ch_sink.model.values import SourceTable

SOURCE_COLUMN = "_source"
"""The column that tells the topics of a merged table apart, if ``columns.add`` has none."""
_ANY = "topic"
"""Stands for the topic while a file for many of them is checked."""
_LONG = "a.b.c.d.e.f.g.h"
"""A topic with which every template of known fields can be filled."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The configuration of the topics that one exception matches, or of all others. Names are still templates."""

    config: Config
    match: re.Pattern[str] | None = None
    """None: every topic."""
    skip: bool = False
    place: str = ""
    """The place of the exception, as "line 14"."""

    @property
    def named_templates(self) -> dict[KeyPath, str]:
        """The texts that a topic's names are filled into, and their keys."""
        place, added, source = self.config.clickhouse, self.config.columns.add, self.config.source
        return {
            ("clickhouse", "database"): place.database,
            ("clickhouse", "table"): place.table,
            ("stream",): self.config.stream,
            **{("rollups", name): name for name in self.config.rollups},
            **{("columns", "add", name): text for name, text in added.items()},
            ("source", "table"): source.table if source is not None else "",
        }

    def needs_event(self, topic: str) -> bool:
        """Whether an event of the topic must be seen before its stream can be named."""
        return not self.skip and (self.splits(topic) or needs_event(self.named_templates.values(), topic))

    def splits(self, topic: str) -> bool:
        """Whether each source table of the topic is a stream: its name does not say which table it carries."""
        config = self.config
        # What commands read besides makes no streams.
        names = [text for path, text in self.named_templates.items() if path != ("source", "table")]
        return not self.skip and not config.source_table and (config.split or takes_table(names, topic))

    def bind(self, topic: str, source: SourceTable | None = None) -> Config:
        """The stream of one topic. Raises ConfigError if a template cannot be filled."""
        config, place = self.config, self.config.clickhouse
        split = self.splits(topic)
        fill = partial(render, topic=topic, source=source, by_event=split)
        names = {
            "database": fill(place.database, key="clickhouse.database"),
            "table": fill(place.table, key="clickhouse.table"),
        }
        changed: dict[str, Any] = {"kafka": config.kafka.model_copy(update={"topic": topic})}
        if names != {"database": place.database, "table": place.table}:
            changed["clickhouse"] = place.model_copy(update=names)
        if fields_in(config.stream):
            changed["stream"] = fill(config.stream, key="stream")
        if any(map(fields_in, config.rollups)):
            changed["rollups"] = {fill(n, key=f"rollups.{n}"): rollup for n, rollup in config.rollups.items()}
        added = config.columns.add
        if any(map(fields_in, added.values())):
            filled = {k: fill(v, key=f"columns.add.{k}", in_sql=True) for k, v in added.items()}
            changed["columns"] = config.columns.model_copy(update={"add": filled})
        if config.source is not None and fields_in(config.source.table):
            filled_table = fill(config.source.table, key="source.table")
            changed["source"] = config.source.model_copy(update={"table": filled_table})
        if split and source is not None and source.table:
            changed |= {"source_table": source.name, "split": True}
        return config.model_copy(update=changed)


@dataclass(frozen=True, slots=True)
class Job:
    """One file. ``topics`` is None for a file of one topic, which ``variants`` name themselves."""

    name: str
    variants: tuple[Variant, ...]
    """The exceptions in the file's order, then the configuration of all other topics."""
    topics: Topics | None = None

    @property
    def usual(self) -> Config:
        """The configuration without exceptions; its names may be templates."""
        return self.variants[-1].config

    def variant(self, topic: str) -> Variant:
        """The first exception that matches the topic, else the usual configuration."""
        return next(v for v in self.variants if v.match is None or v.match.fullmatch(topic))

    def only(self) -> Config:
        """The stream of a file of one topic. Raises ConfigError for a file of many."""
        if self.topics is not None:
            raise ConfigError(
                f"{self.name} describes a stream for each topic of {self.topics.text}",
                hint="A single stream is wanted here: name it with kafka.topic.",
            )
        if self.usual.split and not self.usual.source_table:
            raise ConfigError(
                f"{self.name} has split: true, a stream for each table of a topic, and kafka.topic, which is one",
                hint="Name the topic in kafka.topics, or the table in source_table.",
            )
        return self.variant(self.usual.kafka.topic).bind(self.usual.kafka.topic)


def load_job(path: str | Path, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Job:
    """Read and check a file of one topic or of many.

    Args:
        overrides: ``a.b=value`` texts as ``--set`` takes them; they hold for all topics without an exception.
        environ: variables such as ``CH_SINK__CLICKHOUSE__PASSWORD``; the process's own if None.

    Raises:
        ConfigError: with the file, the line of every wrong key, and the nearest valid name.
    """
    return _job(read(Path(path), overrides, os.environ if environ is None else environ))


def load_rows(config: str | Path | Mapping[str, Any], overrides: Sequence[str] = (), topic: str = "") -> Config:
    """The configuration of a stream whose records a DataFrame brings: ``kafka`` needs no brokers.

    Args:
        config: a file, or what it would hold.
        topic: what ``kafka.topic`` is if it is not given; empty if it must be.

    Raises:
        ConfigError: as ``load_job``; also for several topics.
    """
    tree = read(config if isinstance(config, Mapping) else Path(config), overrides, os.environ)
    if topic and isinstance(kafka := tree.values.setdefault("kafka", {}), dict):
        kafka.setdefault("topic", topic)
    tree.without_brokers = True
    return _job(tree).only()


def _job(tree: Tree) -> Job:
    read_secret_files(tree)
    topics = _topics(tree)
    exceptions = _exceptions(tree)
    usual = Variant(_config(tree))
    variants = [_exception(tree, place, given) for place, given in exceptions]
    job = Job(tree.name, (*variants, usual), topics)
    if topics is not None:
        _refuse_one_name(tree, job)
    return job


def _topics(tree: Tree) -> Topics | None:
    """``kafka.topics``, taken out of the tree; the one topic's place is held by a name that stands for any."""
    kafka = tree.values.get("kafka")
    if not isinstance(kafka, dict) or "topics" not in kafka:
        return None
    where = tree.where(("kafka", "topics"))
    if "topic" in kafka:
        raise ConfigError(
            f"{tree.name} {where}: kafka.topic and kafka.topics exclude each other", hint="Keep one of them."
        )
    given = kafka.pop("topics")
    try:
        topics = Topics.of(_listed(given))
    except ValueError as error:
        raise ConfigError(
            f"{tree.name} {where}: kafka.topics {error}",
            hint=r"Write a regular expression for whole names, such as shop\.public\..*, or a list.",
        ) from None
    kafka["topic"] = _ANY
    target = tree.values.setdefault("clickhouse", {})
    if isinstance(target, dict):
        target.setdefault("table", "{table}")
    return topics


def _listed(given: object) -> object:
    """A list; from the environment and ``--set`` also ``[a, b]`` as text."""
    if isinstance(given, str) and given.startswith("[") and given.endswith("]") and "," in given:
        return [word.strip() for word in given[1:-1].split(",")]
    return given


def _exceptions(tree: Tree) -> list[tuple[str, dict[str, Any]]]:
    """The entries of ``tables``, taken out of the tree, each with its place."""
    given = tree.values.pop("tables", None) or []
    if not isinstance(given, list):
        raise ConfigError(
            f"{tree.name} {tree.where(('tables',))}: tables is not a list",
            hint="It lists exceptions for topics. The sink's own tables are named in state_tables.",
        )
    found: list[tuple[str, dict[str, Any]]] = []
    for place, entry in enumerate(given):
        where = tree.where(("tables", str(place))) or tree.where(("tables",))
        if not isinstance(entry, dict) or not isinstance(entry.get("match"), str):
            raise ConfigError(
                f"{tree.name} {where}: tables[{place}] has no `match`",
                hint="Each exception says which topics it is for: `- match: shop.public.audit`.",
            )
        found.append((str(place), entry))
    return found


def _exception(base: Tree, place: str, given: dict[str, Any]) -> Variant:
    here: KeyPath = ("tables", place)
    where = base.where(here)
    rest = {key: value for key, value in given.items() if key not in ("match", "skip")}
    skip = given.get("skip", False)
    if not isinstance(skip, bool):
        raise ConfigError(
            f"{base.name} {base.where((*here, 'skip'))}: tables[{place}].skip must be true or false",
            hint="Leave it out for a table that is not skipped.",
        )
    try:
        match = re.compile(given["match"])
    except re.error as error:
        raise ConfigError(
            f"{base.name} {base.where((*here, 'match'))}: tables[{place}].match is not a pattern: {error}",
            hint=r"Write a regular expression for whole topic names, such as shop\.public\.tmp_.*.",
        ) from None
    for key in ("kafka", "state_tables", "spark"):
        if key in rest:
            raise ConfigError(
                f"{base.name} {base.where((*here, key))}: tables[{place}].{key} cannot differ from table to table",
                hint="Use a separate file for topics of another cluster.",
            )
    merged = {**base.values, **{key: _over(base.values.get(key), value) for key, value in rest.items()}}
    origin = {**base.origin, **{path[2:]: line for path, line in base.origin.items() if path[:2] == here}}
    return Variant(_config(replace(base, values=merged, origin=origin)), match, skip, where)


def _over(usual: Any, own: Any) -> Any:
    """A key's value in an exception; of a section, the keys that it does not state stay."""
    return {**usual, **own} if isinstance(usual, dict) and isinstance(own, dict) else own


def _config(tree: Tree) -> Config:
    try:
        config = Config.model_validate(tree.values, context={"without_brokers": tree.without_brokers})
    except ValidationError as error:
        # Without its cause: pydantic's own text may show what was given.
        raise config_error(tree, error) from None
    if config.merge and not config.columns.add:
        added = ColumnsSection.model_construct(**{**dict(config.columns), "add": {SOURCE_COLUMN: "'{topic}'"}})
        config = config.model_copy(update={"columns": added})
    return config


def _refuse_one_name(tree: Tree, job: Job) -> None:
    """Refuse a name that every stream of a job for many topics would have."""
    for variant in job.variants:
        if variant.match is None and variant.config.stream and not fields_in(variant.config.stream):
            raise ConfigError(
                f"{tree.name} {tree.where(('stream',))}: stream {variant.config.stream!r} would name every stream",
                hint='Leave it out, or make it a template such as "{topic}".',
            )
        for path, template in variant.named_templates.items():
            try:
                render(template, _LONG, SourceTable("a", "b", "c"), key=".".join(path))
            except ConfigError as error:
                raise error.about(f"{tree.name} {variant.place or tree.where(path)}") from None
