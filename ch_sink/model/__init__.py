"""The data that all rooms share: records, change events, the user's choices."""
