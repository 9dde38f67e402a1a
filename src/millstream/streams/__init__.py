"""Topics as Spark DataFrames, and DataFrames as topics."""
