"""Settings: Java's file format, Kafka's names, checks, precedence, and the generated page."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.config import (
    Config,
    LogConfig,
    QuotaConfig,
    QuotaRateMode,
    RemoteIndexConfig,
    RemoteLogConfig,
    TierConfig,
    config_markdown,
    environment_name,
    load_config,
    parse_properties,
    settings,
)
from tierlog.config.load import LEFT_TO_KAFKA, SECTIONS
from tierlog.errors import ConfigError

CONFIG_PAGE = Path(__file__).resolve().parents[2] / "docs" / "CONFIG.md"
COPY = "remote.log.manager.copy.max.bytes.per.second"
WRITE = "remote.log.manager.write.quota.default"
MAX_LONG = 2**63 - 1

# Each text with what java.util.Properties.load makes of it (checked by running it).
JAVA_TEXTS = [
    ("a=b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b", {"a": "b"}),
    ("  a \t=\f b c ", {"a": "b c "}),
    ("a==b", {"a": "=b"}),
    ("a= :b", {"a": ":b"}),
    ("a", {"a": ""}),
    ("a=\nb=", {"a": "", "b": ""}),
    ("=b", {"": "b"}),
    ("# c\n ! d\na=b#c", {"a": "b#c"}),
    ("a=1\na=2", {"a": "2"}),
    ("a=b\\\n   c", {"a": "bc"}),
    ("a=b\\\r\n\tc\rd=e", {"a": "bc", "d": "e"}),
    ("a=b\\\n#c", {"a": "b#c"}),
    ("\\\n#c=d\ne=f", {"e": "f"}),
    ("#a\\\nb=c", {"b": "c"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    ("a=b\\", {"a": "b"}),
    ("a\\=\\:\\ b=c", {"a=: b": "c"}),
    ("a=\\t\\n\\r\\f\\q\\u0041\\u00e9", {"a": "\t\n\r\fqA\u00e9"}),
    ("a=\\u0074\\ud83d\\ude00", {"a": "t\U0001f600"}),
    ("", {}),
    ("\n \t\n\\\n", {}),
]


@pytest.mark.parametrize(("text", "expected"), JAVA_TEXTS)
def test_properties_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


@pytest.mark.parametrize(
    "text", ["\n\na=\\u12", "\n\na=\\uzzzz", "\n\\\n\\u=a", "#\n!\na=\\u00\n4"]
)
def test_a_bad_escape_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"line [23]: expected four hex digits"):
        parse_properties(text)


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_what_is_escaped_reads_back(values: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        units = text.encode("utf-16-be", "surrogatepass")
        pairs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
        return "".join(f"\\u{pair}" for pair in pairs)

    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in values.items())
    assert parse_properties(text) == values


@given(st.text("ab=: \t\f\n\r\\#!u0", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        values = parse_properties(text)
    except ConfigError:
        return
    assert all(isinstance(value, str) for value in values.values())


def test_defaults() -> None:
    config = load_config()
    assert config == Config() == Config.from_properties({})
    assert config.quota == QuotaConfig(
        copy_max_bytes_per_second=None,
        copy_quota_window_num=61,
        copy_quota_window_size_seconds=1,
        fetch_max_bytes_per_second=None,
        fetch_quota_window_num=11,
        fetch_quota_window_size_seconds=1,
        quota_rate_mode=QuotaRateMode.WINDOW,
    )
    assert config.remote_index == RemoteIndexConfig(
        file_cache_total_size_bytes=1 << 30,
        file_cache_ttl_ms=900_000,
        interval_bytes=262_144,
        rotate_bytes=16 << 20,
        rotate_ms=604_800_000,
    )
    assert config.remote_log == RemoteLogConfig(
        manager_task_interval_ms=30_000,
        manager_copier_thread_pool_size=10,
        manager_expiration_thread_pool_size=10,
        manager_follower_thread_pool_size=2,
        reader_threads=10,
        reader_max_pending_tasks=100,
    )
    assert config.log == LogConfig(
        index_interval_bytes=4096, segment_bytes=1 << 30, batch_max_decompressed_bytes=64 << 20
    )
    assert config.tier == TierConfig()


def test_a_server_properties_as_it_is() -> None:
    text = """
        # The basics
        process.roles=broker,controller
        node.id=1
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093
        ssl.keystore.password=not-to-be-shown
        log.dirs=/disk1/kafka, /disk2/kafka
        log.segment.bytes=1073741824
        log.index.size.max.bytes=10485760
        metadata.log.segment.bytes=8388608
        log.local.retention.ms=-2
        log.retention.ms=60000
        log.retention.bytes=1073741824
        log.retention.hours=168
        log.remote.copy.lag.ms=600000
        remote.log.storage.system.enable=true
        remote.log.storage.manager.class.name=org.example.Storage
        rsm.config.chunk.size=4194304
        rlmm.config.remote.log.metadata.topic.num.partitions=5
        remote.log.manager.copy.max.bytes.per.second = 1048576\\n
        remote.log.reader.threads=4
        remote.log.manager.thread.pool.size=3
    """
    config = Config.from_properties(parse_properties(text), "server.properties")
    assert config.log.dirs == ("/disk1/kafka", "/disk2/kafka")
    assert config.quota.copy_max_bytes_per_second == 1_048_576
    assert config.remote_log.reader_threads == 4
    assert (config.tier.retention_ms, config.tier.retention_bytes) == (-1, -1)
    assert config.tier.copy_lag_ms == 600_000
    assert config.remote_log.manager_follower_thread_pool_size == 3


# The settings of Kafka 4.3 whose names come closest to ours.
@pytest.mark.parametrize(
    "key",
    [
        *sorted(LEFT_TO_KAFKA),
        "segment.index.bytes",
        "metadata.log.segment.bytes",
        "log.cleaner.io.max.bytes.per.second",
        "segment.ms",
        "internal.segment.bytes",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "metadata.log.dir",
        "log.dir.failure.timeout.ms",
    ],
)
def test_settings_of_kafka_pass(key: str) -> None:
    assert Config.from_properties({key: "anything at all"}) == Config()


@pytest.mark.parametrize("key", ["log.index.size.max.bytes", "log.retention.bytes", "log.roll.ms"])
def test_defaults_of_topics_are_left_to_a_node(key: str) -> None:
    """Other commands read the file of a broker, whatever it says about them."""
    found = Config.from_properties({key: "anything at all"})
    assert found == replace(Config(), topic_defaults=((key, "anything at all"),))


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("remote.log.manager.copy.max.byte.per.second", COPY),
        ("remtoe.log.manager.copy.max.bytes.per.second", COPY),
        ("remote.log.index.file.cache.ttl", "remote.log.index.file.cache.ttl.ms"),
        ("remote.storage.enabled", "remote.storage.enable"),
        ("tierlog.store.uri", "tierlog.store.url"),
        ("log.dris", "log.dirs"),
        ("log.index.intervall.bytes", "log.index.interval.bytes"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, nearest: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_properties({key: "hunter2"}, "server.properties")
    expected = f"server.properties: unknown setting {key}; did you mean {nearest}?"
    assert str(caught.value) == expected


def test_an_unknown_key_like_no_other() -> None:
    with pytest.raises(ConfigError, match=r"docs/CONFIG\.md lists all settings"):
        Config.from_properties({"tierlog.qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq": ""})


def test_the_names_of_kip_956() -> None:
    values = {
        "remote.log.manager.write.quota.default": "1",
        "remote.log.manager.write.quota.window.num": "2",
        "remote.log.manager.write.quota.window.size.seconds": "3",
        "remote.log.manager.read.quota.default": "4",
        "remote.log.manager.read.quota.window.num": "5",
        "remote.log.manager.read.quota.window.size.seconds": "6",
    }
    assert Config.from_properties(values).quota == QuotaConfig(
        copy_max_bytes_per_second=1,
        copy_quota_window_num=2,
        copy_quota_window_size_seconds=3,
        fetch_max_bytes_per_second=4,
        fetch_quota_window_num=5,
        fetch_quota_window_size_seconds=6,
    )


def test_both_names_of_a_setting() -> None:
    same = Config.from_properties({COPY: "500", WRITE: " +500 "})
    assert same.quota.copy_max_bytes_per_second == 500
    with pytest.raises(ConfigError) as caught:
        Config.from_properties({WRITE: "501", COPY: "500"}, "server.properties")
    assert str(caught.value) == (
        f"server.properties: {WRITE} and {COPY} are two names of one setting with different "
        f"values; keep {COPY} alone"
    )


def test_a_fallback_counts_only_alone() -> None:
    assert Config.from_properties({"log.dir": "/a"}).log.dirs == ("/a",)
    for keys in (("log.dir", "log.dirs"), ("log.dirs", "log.dir")):
        given_keys = {key: f"/{key}" for key in keys}
        assert Config.from_properties(given_keys).log.dirs == ("/log.dirs",)


BAD_VALUES = [
    (COPY, ["0", "-1", "", "1k", "1_000", "1.5", "9223372036854775808", "١", "0x10"]),
    ("remote.log.manager.copy.quota.window.num", ["0", "2147483648"]),
    ("remote.log.index.file.cache.ttl.ms", ["-2", "15m"]),
    ("remote.log.index.file.cache.total.size.bytes", ["0", "-1"]),
    ("remote.log.reader.threads", ["0"]),
    ("remote.log.manager.task.retry.jitter", ["0.6", "-0.1", "nan", "inf", ".", "1e-1"]),
    ("remote.log.manager.quota.rate.mode", ["sliding", ""]),
    ("tierlog.include.internal.topics", ["yes", "1", ""]),
    ("tierlog.remote.index.interval.bytes", ["0", "2147483648"]),
    ("tierlog.remote.index.rotate.bytes", ["0", "1073741825"]),
    ("tierlog.remote.index.rotate.ms", ["0", "-2", "7d"]),
    ("log.index.interval.bytes", ["-1"]),
]


@pytest.mark.parametrize(
    ("key", "text"), [(key, text) for key, texts in BAD_VALUES for text in texts]
)
def test_values_that_cannot_be(key: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_properties({key: text}, "server.properties")
    message = str(caught.value)
    assert message.startswith(f"server.properties: {key}: expected ")
    assert message.endswith(f"found {text!r}")


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (COPY, str(MAX_LONG), None),
        (COPY, " 1 ", 1),
        ("remote.log.index.file.cache.ttl.ms", "-1", -1),
        ("remote.log.index.file.cache.ttl.ms", "0", 0),
        ("remote.log.manager.task.retry.jitter", "0.5", 0.5),
        ("remote.log.manager.task.retry.jitter", ".25", 0.25),
        ("remote.log.manager.quota.rate.mode", "Elapsed", QuotaRateMode.ELAPSED),
        ("tierlog.include.compacted.topics", "TRUE", True),
        ("tierlog.state.dir", "", None),
        ("log.dirs", " , ", ()),
        ("log.index.interval.bytes", "0", 0),
    ],
)
def test_values_at_the_edge(key: str, text: str, expected: object) -> None:
    config = Config.from_properties({key: text})
    (value,) = [
        getattr(getattr(config, name), field)
        for name, section in SECTIONS.items()
        for field, setting in settings(section)
        if setting.name == key
    ]
    assert value == expected
    assert type(value) is type(expected)


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    for make in (
        lambda url: Config.from_properties({"tierlog.store.url": url}),
        lambda url: TierConfig(store_url=url),
    ):
        with pytest.raises(ConfigError, match="without a password") as caught:
            make("s3://key:hunter2@bucket/prefix")
        assert "hunter2" not in str(caught.value)
    url = "abfss://container@account.dfs.core.windows.net/a:b@c"
    assert Config.from_properties({"tierlog.store.url": url}).tier.store_url == url


@pytest.mark.parametrize(
    ("text", "legal"),
    [
        ("127.0.0.1:0", True),
        ("broker-1.example:65535", True),
        ("[::1]:9404", True),
        ("9404", False),
        ("host:", False),
        ("host:65536", False),
        ("::1:9404", False),
        ("http://host:1", False),
    ],
)
def test_where_metrics_are_served(text: str, legal: bool) -> None:
    properties = {"tierlog.metrics.listen": text}
    if legal:
        assert Config.from_properties(properties).tier.metrics_listen == text
        return
    with pytest.raises(ConfigError, match="expected host:port"):
        Config.from_properties(properties)


def test_lags_that_would_copy_nothing_or_mean_nothing() -> None:
    lag_ms, lag_bytes = "tierlog.copy.lag.ms", "tierlog.copy.lag.bytes"
    with pytest.raises(ConfigError, match="nothing would ever be copied"):
        Config.from_properties({lag_ms: "-1"})
    with pytest.raises(ConfigError, match="has no effect"):
        Config.from_properties({lag_bytes: "1"})
    assert Config.from_properties({lag_ms: "-1", lag_bytes: "1"}).tier.copy_lag_bytes == 1
    assert Config.from_properties({"remote.copy.lag.ms": "7"}).tier.copy_lag_ms == 7


def test_made_by_hand_it_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="expected a whole number from 1"):
        QuotaConfig(copy_max_bytes_per_second=0)
    with pytest.raises(ConfigError):
        RemoteLogConfig(reader_threads=True)
    config = QuotaConfig()
    with pytest.raises(FrozenInstanceError):
        config.copy_quota_window_num = 1  # type: ignore[misc]


def test_flags_win_over_the_environment_over_the_file() -> None:
    file = {COPY: "1", "remote.log.reader.threads": "1", "tierlog.state.dir": "/file"}
    environment = {
        "TIERLOG_REMOTE_LOG_MANAGER_COPY_MAX_BYTES_PER_SECOND": "2",
        "TIERLOG_STATE_DIR": "/environment",
        "PATH": "/bin",
    }
    flags = {WRITE: "3"}
    config = load_config(properties=file, environment=environment, flags=flags)
    assert config.quota.copy_max_bytes_per_second == 3
    assert config.tier.state_dir == "/environment"
    assert config.remote_log.reader_threads == 1


def test_a_fallback_given_later_wins_over_the_name_given_before() -> None:
    config = load_config(properties={"log.dirs": "/file"}, environment={"TIERLOG_LOG_DIR": "/env"})
    assert config.log.dirs == ("/env",)


def test_mistakes_in_the_environment_and_in_flags() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(environment={"TIERLOG_STATE_DIRS": "/x"})
    assert str(caught.value) == (
        "environment: unknown setting TIERLOG_STATE_DIRS; did you mean TIERLOG_STATE_DIR?"
    )
    assert load_config(environment={"TIERLOG_FAIL": "1"}, reserved={"TIERLOG_FAIL"}) == Config()
    with pytest.raises(ConfigError, match="environment: TIERLOG_LOG_SEGMENT_BYTES: expected"):
        load_config(environment={"TIERLOG_LOG_SEGMENT_BYTES": "1"})
    with pytest.raises(ConfigError, match="flags: unknown setting listeners"):
        load_config(flags={"listeners": "x"})


def test_environment_names_are_unique() -> None:
    names = [name for part in SECTIONS.values() for _, s in settings(part) for name in s.names]
    assert len({environment_name(name) for name in names}) == len(set(names)) == len(names)
    assert environment_name("tierlog.store.url") == "TIERLOG_STORE_URL"


@pytest.mark.parametrize("section", SECTIONS.values())
def test_every_setting_is_documented_and_its_default_legal(section: type[object]) -> None:
    for field, setting in settings(section):
        assert setting.doc.endswith(".")
        assert setting.kind.accepts(setting.default), field
        assert not set(setting.names) & LEFT_TO_KAFKA
        tail = setting.name.replace(".", "_")
        assert tail.endswith(field.removeprefix("batch_").removeprefix("include_")), field


def test_the_page_is_up_to_date() -> None:
    """If not: ``python -m tierlog.config > docs/CONFIG.md``."""
    command = [sys.executable, "-m", "tierlog.config"]
    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert written == config_markdown() == CONFIG_PAGE.read_text(encoding="utf-8")
