"""Figures and status as plain structures: filled by the job and from the ledger, shown by the commands."""
