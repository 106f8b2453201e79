"""The wheel holds this file as ``pyspark_ch_sink``: Spark imports modules of such names to find their data sources."""

from ch_sink.spark.data_source import DefaultSource

__all__ = ["DefaultSource"]
