"""Source systems: positions and quirks, one small module each."""
