"""The connectors, and the settings of a drawn one.

MySQL and PostgreSQL follow recorded events (tests/fixtures) to the byte.
"""

from collections import Counter
from typing import Literal

from tests.model.choose import Chooser
from tests.model.db2 import Db2
from tests.model.events import Connector
from tests.model.knobs import Knobs
from tests.model.mysql import MySql
from tests.model.oracle import Oracle
from tests.model.postgres import Postgres
from tests.model.shapes import TableShape
from tests.model.singlestore import SingleStore
from tests.model.sqlserver import SqlServer

ConnectorName = Literal["mysql", "mariadb", "postgresql", "sqlserver", "oracle", "db2", "singlestore"]
Identity = Literal["default", "full", "nothing"]
CONNECTORS: tuple[ConnectorName, ...] = ("mysql", "mariadb", "postgresql", "sqlserver")
"""Those that are drawn where none is named."""
BY_NAME: tuple[ConnectorName, ...] = ("oracle", "db2", "singlestore")
"""Those that are drawn by name only, so that one seed stays one history."""
MYSQLS: tuple[ConnectorName, ...] = ("mysql", "mariadb")
DEFERS: tuple[ConnectorName, ...] = ("postgresql", "oracle", "db2")
"""Those that can exchange two keys in one statement and report it row by row."""


def draw_connector(
    choose: Chooser,
    knobs: Knobs,
    features: Counter[str],
    name: ConnectorName,
    identity: Identity,
    table: TableShape,
    *,
    metadata: bool,
    max_placeholder: bool,
) -> Connector:
    """A connector with drawn starting positions and quirks."""
    if name == "postgresql":
        base = choose.choice((27_000_000, 0x16_B374_D848, 2**62))
        return Postgres(table, "pg", features, metadata=metadata, identity=identity, base=base)
    if name == "sqlserver":
        return SqlServer(
            table,
            "ms",
            features,
            metadata=metadata,
            base=choose.choice((0x2758 << 16, 0x27_0000_0758 << 24)),
            headers=choose.chance(40),
            quoted=choose.chance(30),
            tied=choose.chance(30),
            max_placeholder=max_placeholder,
        )
    if name == "oracle":
        base = choose.choice((2_208_886, 2**40, 2**62))
        lobs = bool(table.key) and choose.chance(60)
        return Oracle(table, "or", features, metadata=metadata, base=base, lobs=lobs, xstream=choose.chance(25))
    if name == "db2":
        return Db2(table, "db", features, metadata=metadata)
    if name == "singlestore":
        shards, digits = choose.choice((1, 2, 3)), choose.choice((48, 56))
        marked = choose.chance(50)
        return SingleStore(table, "ss", features, metadata=metadata, shards=shards, digits=digits, marked=marked)
    return MySql(
        table,
        "my",
        features,
        metadata=metadata,
        flavour=name,
        file=choose.choice((1, 9, 999_999)),
        pos=choose.choice((4, 2_637_700, 2**33)),
        gtids=choose.chance(70),
        compressed=knobs.compressed,
    )
