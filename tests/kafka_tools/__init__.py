"""The real Apache Kafka as judge: a broker to start, its tools to run. Needs java and mvn.

    from tests.kafka_tools import KafkaBroker, dump_log_segments

What Kafka wrote is the truth our code is tested against, and Kafka must read what we write.
"""

from __future__ import annotations

from .broker import KafkaBroker
from .classpath import classpath
from .support import KafkaToolsError, free_ports, wait_until
from .tools import dump_log_segments, run_tool

__all__ = [
    "KafkaBroker",
    "KafkaToolsError",
    "classpath",
    "dump_log_segments",
    "free_ports",
    "run_tool",
    "wait_until",
]
