"""Spark on topics through Millstream's source and sink and through the official connector, side by side.

    python -m bench.spark read                       rows read in a second, in batch and as a stream
    python -m bench.spark write                      rows written in a second
    python -m bench.spark pipeline                   rows read, aggregated and written in a second
    python -m bench.spark latency                    from a record to what a stream makes of it
    python -m bench.spark memory --rows 20000000     the most memory that a Python worker has
    python -m bench.spark read --broker apache-kafka --rows 2000000 --rounds 5 --sizes 100

Both connectors work on one broker and in one Spark session, turn by turn; the first round is not counted and
figures are medians.
"""
