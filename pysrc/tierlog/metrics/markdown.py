"""docs/METRICS.md, written from the definitions themselves."""

from __future__ import annotations

from collections.abc import Iterable

from tierlog.metrics.definitions import KAFKA_METRICS, OWN_METRICS, Metric

__all__ = ["metrics_markdown"]

_INTRODUCTION = """\
# Metrics

<!-- Written by `python -m tierlog.metrics > docs/METRICS.md`; do not edit. -->

`tierlog tier --metrics HOST:PORT` answers Prometheus at `http://HOST:PORT/metrics`, in its text
format or as OpenMetrics. In Python, `tierlog.metrics.server.start_metrics_server` does, or register
`tierlog.metrics.collector.RemoteLogCollector` with a registry of your own. Both need the extra
`metrics`. The endpoint also shows prometheus_client's `process_*` series.

* **Leadership.** Gauges are those of the partitions that this process leads. When a partition is
  lost or deleted they vanish with it, whatever still runs; a topic's series vanish with its last
  partition, and its counters begin at 0 when it comes back. The totals over all topics stay.
* **Unknown is absent.** A gauge that nobody can know now is not shown, and never shown as 0; a sum
  is over the partitions where it is known (`tierlog_partitions_copy_lag_unknown` counts the
  others), and absent where that would be 0. No gauge is ever negative. The copy lag is what the log
  directory holds beyond the metadata, so it is known while the store fails or copies are paused.
* **Cardinality.** A series per partition only where Kafka has one: the two retention percents; per
  client only when it is asked for, and for a bounded number of them, since clients name themselves.
"""

_KAFKA = """\
## Kafka's metrics

Under the names that the Prometheus JMX exporter gives them with its example rules for Kafka
(`kafka-kraft-3_0_0.yml`), so dashboards made for brokers show tierlog too. Those rules leave the
domain `kafka.log.remote` out; its MBeans are named here as the same rules would name them.

Kafka's exporter gives the sum over all topics and the series of each topic one name, so `sum()`
counts everything twice. Here Kafka's names are the sums over all topics, without a label; the
series by topic are `tierlog_topic_...{topic="..."}` with the same ending. In a dashboard made for
brokers replace `kafka_server_brokertopicmetrics_X{topic=~"$topic"}` by
`tierlog_topic_X{topic=~"$topic"}`.

The exporter shows of a meter its count only: take `rate()` of it. The rates that Kafka's MBeans
have besides are in `tierlog_meter_rate`.
"""

_OWN = """\
## tierlog's own
"""

_ELSEWHERE = """\
## Not here

`BuildRemoteLogAuxStateRequestsPerSec` and `...ErrorsPerSec` count replicas that build their local
state from the tier; tierlog has no such replicas. `RemoteLogReaderFetchRateAndTimeMs` is
`tierlog_fetch_seconds` here. What Kafka measures of its request queues
(`DelayedRemoteListOffsetsMetrics` and the purgatories) and of replication (`LeaderReplication`,
`FollowerReplication`, `ReassignmentBytes...`) belongs to a broker, which tierlog is not.
"""


def metrics_markdown() -> str:
    """The text of docs/METRICS.md."""
    return "\n".join(
        [
            _INTRODUCTION,
            _KAFKA,
            *_entries(KAFKA_METRICS),
            _OWN,
            *_entries(OWN_METRICS),
            _ELSEWHERE.rstrip() + "\n",
        ]
    )


def _entries(metrics: Iterable[Metric]) -> list[str]:
    return [_entry(metric) for metric in metrics]


def _entry(metric: Metric) -> str:
    lines = [
        f"### {metric.name}\n",
        f"{metric.doc}\n",
        f"* Kind: {metric.kind.value}, in {metric.unit}",
    ]
    if metric.labels:
        lines.append(f"* Labels: {', '.join(f'`{label}`' for label in metric.labels)}")
    if metric.mbean:
        keys = "".join(f",{label}" for label in metric.labels if not metric.in_usual_rules)
        outside = "" if metric.in_usual_rules else "; not let through by the example rules"
        lines.append(f"* Kafka: `{metric.mbean}{keys}`, attribute `{metric.attribute}`{outside}")
    return "\n".join([*lines, ""])
