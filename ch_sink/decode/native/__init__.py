"""A compiled scanner of machine-made JSON. Without it everything works, more slowly."""
