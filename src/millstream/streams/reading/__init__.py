"""The source: topics read by Spark, in batches and as streams."""
