"""Writes docs/METRICS.md from the definitions."""

from __future__ import annotations

from collections.abc import Iterable

from tierlog.metrics.alerts import ALERTS
from tierlog.metrics.definitions import KAFKA_METRICS, OWN_METRICS, Metric

__all__ = ["metrics_markdown"]

_INTRODUCTION = """\
# Metrics

<!-- Written by `python -m tierlog.metrics > docs/METRICS.md`; do not edit. -->

`tierlog tier --metrics HOST:PORT` answers Prometheus at `http://HOST:PORT/metrics`, in its text
format or as OpenMetrics. In Python, call `tierlog.metrics.server.start_metrics_server`, or
register `tierlog.metrics.collector.RemoteLogCollector` with your own registry. Both need the
extra `metrics`. The endpoint also shows prometheus_client's `process_*` series.

* **Leadership.** Gauges cover the partitions that this process leads. They disappear when a
  partition is lost or deleted, also while a task of it still runs. A topic's series disappear
  with its last partition, and its counters begin at 0 when it returns. The totals over all topics
  stay.
* **Unknown is absent.** A gauge with an unknown value is not shown, never shown as 0. A sum
  covers the partitions whose value is known (`tierlog_partitions_copy_lag_unknown` counts the
  others), and is absent where it covers none. No gauge is ever negative. The copy lag is what the
  log directory holds beyond the metadata, so it is known while the store fails or copies are
  paused.
* **Cardinality.** There is a series per partition only where Kafka has one: the two retention
  percents. There is one per client only when a setting asks for it, for a bounded number of
  clients, since clients choose their names.
"""

_ALERTS = """\
## What to alert on

Each expression holds within one interval after its fault has begun, and no longer once the fault
is over and its range (five minutes) has passed. `tests/sidecar/test_alerts.py` makes each fault
happen to a real sidecar and evaluates the expressions with Prometheus's own `promtool`. Some
conditions are harmless for a short time: give their rule a `for` of some minutes. `up == 0` tells
that the sidecar itself does not run.
"""

_KAFKA = """\
## Kafka's metrics

They have the names that the Prometheus JMX exporter gives them with its example rules for Kafka
(`kafka-kraft-3_0_0.yml`), so dashboards for brokers show tierlog, too. Those rules omit the
domain `kafka.log.remote`; its MBeans are named here as the same rules would name them.

The exporter gives one name to the sum over all topics and to the series of each topic, so `sum()`
counts everything twice. Here Kafka's names are the sums over all topics, without a label; the
series by topic are `tierlog_topic_...{topic="..."}` with the same ending. In a dashboard for
brokers, replace `kafka_server_brokertopicmetrics_X{topic=~"$topic"}` by
`tierlog_topic_X{topic=~"$topic"}`.

Of a meter the exporter shows only the count: take its `rate()`. The rates of Kafka's MBeans are
in `tierlog_meter_rate`.
"""

_OWN = """\
## tierlog's own
"""

_ELSEWHERE = """\
## Not here

`BuildRemoteLogAuxStateRequestsPerSec` and `...ErrorsPerSec` count replicas that build their local
state from the tier; tierlog has no such replicas. `RemoteLogReaderFetchRateAndTimeMs` is
`tierlog_fetch_seconds` here. Kafka's metrics of request queues (`DelayedRemoteListOffsetsMetrics`
and the purgatories) and of replication (`LeaderReplication`, `FollowerReplication`,
`ReassignmentBytes...`) belong to a broker, and tierlog is not one.
"""


def metrics_markdown() -> str:
    """Return the text of docs/METRICS.md."""
    return "\n".join(
        [
            _INTRODUCTION,
            _ALERTS,
            _alert_table(),
            _KAFKA,
            *_entries(KAFKA_METRICS),
            _OWN,
            *_entries(OWN_METRICS),
            _ELSEWHERE.rstrip() + "\n",
        ]
    )


def _alert_table() -> str:
    rows = [f"| {one.fault} | `{one.expression}` | {one.action} |" for one in ALERTS]
    return "\n".join(["| Fault | PromQL | What to do |", "|---|---|---|", *rows, ""])


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
