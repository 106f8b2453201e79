"""The command line: commands that are used together are in one module; everything is printed through one Output."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ch_sink.wiring.process import Stop

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry of ``ch_sink``; leaves by SystemExit."""
    from ch_sink.wiring.process import run_stoppable

    def work(stop: "Stop") -> int:
        # Imported here: a Ctrl-C during these imports ends as quietly as any other.
        from ch_sink.cli.app import run_command

        return run_command(sys.argv[1:] if arguments is None else arguments, stop)

    sys.exit(run_stoppable(work, exiting=arguments is None))
