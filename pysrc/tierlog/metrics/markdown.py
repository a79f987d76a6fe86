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

* **Leadership.** Gauges cover the partitions that this process leads. When it no longer leads a
  partition, or the partition is deleted, the gauges of the partition disappear, even if a task of
  the partition still runs. The series of a topic disappear when none of its partitions is led. If
  the topic returns, its counters begin at 0. The totals over all topics never disappear.
* **Unknown is absent.** A gauge with an unknown value is absent and never shown as 0. A sum covers
  the partitions whose value is known. `tierlog_partitions_copy_lag_unknown` counts the others. If
  no value is known, the sum is absent. No gauge is ever negative. The copy lag is the difference
  between the log directory and the metadata, so it is known while the store fails or copies are
  paused.
* **Cardinality.** Only the two retention percents have a series per partition, as in Kafka. Series
  per client exist only when a setting asks for them. Their number is limited, because clients
  choose their names.
"""

_ALERTS = """\
## What to alert on

Each expression becomes true within one interval after its fault begins. It becomes false when the
fault has ended and the range of the expression (five minutes) has passed.
`tests/sidecar/test_alerts.py` causes each fault in a real sidecar and evaluates the expressions
with Prometheus's own `promtool`. Some conditions are harmless for a short time. Set `for` to some
minutes in the alert rules for these conditions. `up == 0` means that the sidecar itself does not
run.
"""

_KAFKA = """\
## Kafka's metrics

These metrics have the names that the Prometheus JMX exporter gives them with its example rules for
Kafka (`kafka-kraft-3_0_0.yml`), so dashboards for brokers show tierlog, too. The example rules omit
the domain `kafka.log.remote`. tierlog shows the MBeans of this domain with the names that the rules
would give them.

The exporter gives the same name to the sum over all topics and to the series of each topic, so
`sum()` counts each value twice. In tierlog, a series with Kafka's name is the sum over all topics
and has no label. A series by topic has the prefix `tierlog_topic_` and the label `topic`. In a
dashboard for brokers, replace `kafka_server_brokertopicmetrics_X{topic=~"$topic"}` by
`tierlog_topic_X{topic=~"$topic"}`.

Of a meter, the exporter shows only the count; use `rate()` of the count. `tierlog_meter_rate` has
the rates of Kafka's MBeans.
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
        outside = "" if metric.in_usual_rules else "; not in the example rules"
        lines.append(f"* Kafka: `{metric.mbean}{keys}`, attribute `{metric.attribute}`{outside}")
    return "\n".join([*lines, ""])
