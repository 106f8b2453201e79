"""The benchmark suite: events per second of the whole job, beside what its parts reach alone in the same run."""
