"""What ``check`` reports of this machine: Java."""

from ch_sink.spark.installed import MINIMUM, find_java
from ch_sink.table.checks import Finding


def java_finding() -> Finding:
    """Whether Spark finds its Java. Starts each candidate to learn its version."""
    java = find_java()
    if java is not None:
        return Finding("ok", "java", str(java))
    return Finding(
        "fail",
        "java",
        f"no Java {MINIMUM} or newer was found, and Spark needs one",
        "Install one, or set JAVA_HOME.",
    )
