"""Which topics each data set holds."""

from __future__ import annotations

from . import workloads as w
from .workloads import DENSE_INDEXES, KEEP_FOR_EVER, SMALL_SEGMENTS, Topic

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 8_192,
    "min.cleanable.dirty.ratio": 0.01,
    "min.compaction.lag.ms": 0,
    "index.interval.bytes": 512,
}
# A batch must fit into a segment.
MEGABYTE_SEGMENTS = KEEP_FOR_EVER | {"segment.bytes": 1 << 20}
ONE_DAY_MS = 86_400_000


def clean_topics() -> list[Topic]:
    """The set whose broker was stopped properly; it starts three times."""
    return [*_codec_topics(), *_shape_topics(), *_producer_topics(), *_cleaned_topics()]


def _codec_topics() -> list[Topic]:
    by_client = [
        Topic(
            name=f"codec-{codec}",
            exercises=(f"{codec} compressed by librdkafka", "null and empty keys, values, headers"),
            phases=(w.plain(700, compression_type=codec),),
        )
        for codec in CODECS
    ]
    by_broker = [
        Topic(
            name=f"broker-{codec}",
            exercises=(f"{codec} compressed by the broker (Java)",),
            phases=(w.plain(300),),
            config=DENSE_INDEXES | {"compression.type": codec, "internal.segment.bytes": 16_384},
        )
        for codec in CODECS[1:]
    ]
    return by_client + by_broker


def _shape_topics() -> list[Topic]:
    return [
        Topic(
            name="sizes",
            exercises=("values of 1 B to 1 MB, incompressible",),
            phases=(w.sizes(1_000_000, "none"),),
            config=MEGABYTE_SEGMENTS,
        ),
        Topic(
            name="sizes-zstd",
            exercises=("values of 1 B to 1 MB in zstd",),
            phases=(w.sizes(1_000_000, "zstd"),),
            config=KEEP_FOR_EVER | {"internal.segment.bytes": 280_000},
        ),
        Topic(
            name="binary",
            exercises=("bytes no text shows: all 256 values, newlines, invalid UTF-8", "5 codecs"),
            phases=(w.binary_values,),
        ),
        Topic(
            name="headers",
            exercises=("up to 200 headers, null, empty and repeated",),
            phases=(w.many_headers,),
            config=DENSE_INDEXES | {"internal.segment.bytes": 14_000},
        ),
        Topic(
            name="times-shuffled",
            exercises=("out-of-order timestamps", "segments rolled by time"),
            phases=(w.shuffled_times,),
            config=DENSE_INDEXES | {"segment.ms": 4 * 3_600_000},
        ),
        Topic(
            name="times-appended",
            exercises=("LogAppendTime",),
            phases=(w.plain(400, compression_type="gzip"),),
            config=DENSE_INDEXES | {"message.timestamp.type": "LogAppendTime"},
        ),
        Topic(
            name="rolled-by-index",
            exercises=("segments rolled by a full offset index",),
            phases=(w.plain(300),),
            config=KEEP_FOR_EVER | {"segment.index.bytes": 120, "index.interval.bytes": 256},
        ),
        Topic(name="empty", exercises=("no record ever written",), phases=(w.nothing,)),
        Topic(
            name="orders.eu-west_1",
            exercises=("several partitions", "a name with dots, dashes and underscores"),
            phases=(w.spread,),
            partitions=4,
            config=KEEP_FOR_EVER | {"internal.segment.bytes": 8_192},
        ),
    ]


def _producer_topics() -> list[Topic]:
    return [
        Topic(
            name="idempotent",
            exercises=("idempotent producers", "producer snapshots"),
            phases=(w.idempotent,),
            partitions=2,
            config=DENSE_INDEXES,
        ),
        Topic(
            name="transactions",
            exercises=(
                "committed, aborted, fenced and open transactions",
                "aborts that span segments",
                "rolled segments above the last stable offset",
                "leader epochs",
            ),
            phases=(w.transactions, w.leave_open),
            config=DENSE_INDEXES | {"internal.segment.bytes": 12_288},
        ),
        Topic(
            name="transactions-java",
            exercises=("second-generation transactions of Kafka's own client",),
            phases=(w.java_transactions,),
            config=DENSE_INDEXES | {"internal.segment.bytes": 12_288},
        ),
        Topic(
            name="epochs",
            exercises=("leader epochs rising inside and between segments",),
            phases=(w.plain(160), w.later(160, 1), w.later(160, 2)),
            config=DENSE_INDEXES,
        ),
    ]


def _cleaned_topics() -> list[Topic]:
    return [
        Topic(
            name="compacted",
            exercises=("gaps", "emptied batches", "tombstones with a delete horizon"),
            phases=(w.compacted,),
            config=COMPACT | {"delete.retention.ms": ONE_DAY_MS},
        ),
        Topic(
            name="compacted-transactions",
            exercises=("gaps", "aborted records and markers cleaned away", "tombstones removed"),
            phases=(w.compacted_transactions,),
            config=COMPACT | {"delete.retention.ms": 0, "compression.type": "zstd"},
        ),
        Topic(
            name="deleted-records",
            exercises=("log start offset inside a segment, whole segments gone before it",),
            phases=(w.delete_records(290),),
            config=DENSE_INDEXES | {"file.delete.delay.ms": 0},
        ),
    ]


def unclean_topics() -> list[Topic]:
    """The set whose broker was killed, once between its two runs and once at the end."""
    zero_tailed = ("zero-tailed active indexes",)
    return [
        *(
            Topic(
                name=f"crash-{codec}",
                exercises=(codec, *zero_tailed),
                phases=(w.plain(250, compression_type=codec), w.later(60, 1)),
                config=SMALL_SEGMENTS,
            )
            for codec in ("none", "zstd")
        ),
        Topic(
            name="crash-preallocated",
            exercises=("zero-tailed active log", *zero_tailed),
            phases=(w.plain(150), w.later(150, 1)),
            config=DENSE_INDEXES | {"preallocate": "true"},
        ),
        Topic(
            name="crash-epochs",
            exercises=("leader epochs across a crash", *zero_tailed),
            phases=(w.plain(120), w.later(120, 1)),
            config=DENSE_INDEXES,
        ),
        Topic(
            name="crash-transactions",
            exercises=("transactions open at the crash", *zero_tailed),
            phases=(w.transactions, w.leave_open),
            config=DENSE_INDEXES | {"internal.segment.bytes": 12_288},
        ),
        Topic(
            name="crash-deleted-records",
            exercises=("log start offset inside a segment", ".deleted files awaiting removal"),
            phases=(w.nothing, w.delete_records(290)),
            config=DENSE_INDEXES | {"file.delete.delay.ms": 3_600_000},
        ),
        Topic(
            name="crash-deleted-topic",
            exercises=("a directory renamed to -delete",),
            phases=(w.plain(60), w.delete_topic),
            config=SMALL_SEGMENTS | {"file.delete.delay.ms": 3_600_000},
        ),
        Topic(
            name="crash-idempotent",
            exercises=("idempotent producers", *zero_tailed),
            phases=(w.idempotent, w.nothing),
            partitions=2,
            config=DENSE_INDEXES,
        ),
        Topic(
            name="crash-burst",
            exercises=("written just before the crash: above the checkpointed high watermark",),
            phases=(w.plain(100),),
        ),
    ]
