"""The benchmark suite: events per second of the whole job, and of its parts alone, in the same run."""
