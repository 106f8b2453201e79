"""What a running job shows over HTTP: metrics for Prometheus, and a page for people."""
