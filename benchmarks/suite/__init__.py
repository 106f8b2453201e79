"""The benchmark suite: ``python -m benchmarks.suite``. See docs/performance.md."""
