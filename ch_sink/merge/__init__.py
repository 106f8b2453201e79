"""From ordered change events to rows: one module per engine family."""
