"""Found by Spark: a module named `pyspark_*` with a `DefaultSource` needs no registration.

With Millstream installed, `spark.read.format("millstream")` works as it is. Spark imports this module in a
worker of its own at the first look-up, so it imports no more than the class.
"""

from millstream.streams.datasource import MillstreamSource as DefaultSource

__all__ = ["DefaultSource"]
