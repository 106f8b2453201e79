"""``python -m ch_sink`` is ``ch_sink``."""

from ch_sink.cli import main

main()
