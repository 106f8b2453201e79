"""The connectors, and the settings of a drawn one.

MySQL and PostgreSQL follow recorded events (tests/fixtures) to the byte.
"""

from collections import Counter
from typing import Literal

from tests.model.choose import Chooser
from tests.model.events import Connector
from tests.model.knobs import Knobs
from tests.model.mysql import MySql
from tests.model.postgres import Postgres
from tests.model.shapes import TableShape
from tests.model.sqlserver import SqlServer

ConnectorName = Literal["mysql", "mariadb", "postgresql", "sqlserver"]
Identity = Literal["default", "full", "nothing"]
CONNECTORS: tuple[ConnectorName, ...] = ("mysql", "mariadb", "postgresql", "sqlserver")


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
