"""Foreign clients are imported here once, where their own deprecated calls may be passed over."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    # kafka-python reads its schemas through functions that Python 3.11 and 3.12 call deprecated
    warnings.filterwarnings("ignore", r"(open|read)_text is deprecated", DeprecationWarning)
    import kafka
    import kafka.admin

CLIENT_VERSIONS = {"kafka-python": kafka.__version__}


def pytest_report_header() -> str:
    """Which foreign clients are used, in the head of the report."""
    import aiokafka
    import confluent_kafka

    versions = CLIENT_VERSIONS | {
        "aiokafka": aiokafka.__version__,
        "confluent-kafka": confluent_kafka.version(),
        "librdkafka": confluent_kafka.libversion()[0],
    }
    return "clients: " + ", ".join(f"{name} {version}" for name, version in versions.items())
