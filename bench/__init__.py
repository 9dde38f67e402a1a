"""Benchmarks of Millstream, side by side with Apache Kafka: `python -m bench`."""
