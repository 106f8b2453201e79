"""The data that all packages share: records, change events, the user's choices."""
