"""The HTTP server of a running job: metrics for Prometheus, and a page for people."""
