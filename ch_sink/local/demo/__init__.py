"""The recorded streams of ``ch_sink demo``."""
