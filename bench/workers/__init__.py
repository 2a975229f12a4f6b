"""The contenders, each a process of its own that answers cases; run as `python -m bench.workers.NAME`."""
