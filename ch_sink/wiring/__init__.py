"""Real clients behind the ports: of streams, of tasks, of a job and its process. Without Spark."""
