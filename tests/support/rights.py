"""An embedded server whose only user gets other rights with each restart, held by the engine's own access control."""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from ch_sink.local.clickhouse.launch import EmbeddedClickHouse


class Limited:
    """The engine reads its users when it starts, and only then: a change of rights is a restart of the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clickhouse = EmbeddedClickHouse(folder)

    def restart(self, statements: Sequence[str] | None) -> None:
        """Restart with the rights of these GRANT and REVOKE statements, which name no user; None: all rights."""
        self.clickhouse.stop()
        config = self.folder / "ch_sink" / "config.d" / "users.xml"
        config.unlink(missing_ok=True)
        if statements is not None:
            users = self.folder / "least.xml"
            given = "".join(f"<query>{escape(s)}</query>" for s in statements)
            users.write_text(
                "<clickhouse><profiles><default><implicit_select>0</implicit_select></default></profiles>"
                "<quotas><default/></quotas><users><default><password></password><networks><ip>::/0</ip></networks>"
                f"<profile>default</profile><quota>default</quota><grants>{given}</grants></default></users></clickhouse>"
            )
            config.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(
                f"<clickhouse><user_directories replace='1'><users_xml><path>{users}</path></users_xml>"
                "</user_directories></clickhouse>"
            )
        self.clickhouse.start()
