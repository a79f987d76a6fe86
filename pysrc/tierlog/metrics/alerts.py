"""Alerts: for each fault an expression in PromQL. It becomes true within one interval after the
fault begins, and false after the fault has ended."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALERTS", "Alert"]

_EVENTS = "kafka_server_brokertopicmetrics_"
_TIME = "tierlog_task_longest_run_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A fault that an operator wants to know of. ``name`` is the name of a rule in Prometheus."""

    name: str
    fault: str
    expression: str
    action: str


ALERTS: tuple[Alert, ...] = (
    Alert(
        name="StoreUnreachable",
        fault="The store does not answer, or lacks its `cluster.json` (a volume that is not "
        "mounted).",
        expression="tierlog_store_up == 0",
        action="Check network, credentials and mount. Copies go on by themselves. The broker's "
        "retention must be longer than the outage.",
    ),
    Alert(
        name="CopiesFail",
        fault="The store refuses writes or is full, a claim cannot be written or is not in the "
        "store's listing, or the state directory cannot be written.",
        expression=f"increase({_EVENTS}remotecopyerrors_total[5m]) > 0",
        action="The log names the error. Give the sidecar the permission to write, or the store "
        "more room.",
    ),
    Alert(
        name="CopiesBehind",
        fault="Segments wait for their copy, whatever the cause.",
        expression=f"{_EVENTS}remotecopylagsegments > 0",
        action="For longer than some intervals: look for another alert; else raise the copy "
        "quota or `remote.log.manager.copier.thread.pool.size`. The broker must not delete these "
        "segments before.",
    ),
    Alert(
        name="StoreSlow",
        fault="The store is so slow that a copy takes more than a minute.",
        expression=f'{_TIME}{{pool="copy"}} > 60',
        action="Compare with the size of a segment and the copy quota, which also stretches a "
        "copy. Check the store.",
    ),
    Alert(
        name="TaskStuck",
        fault="A task hangs: it has run for more than ten minutes.",
        expression="tierlog_tasks_stuck > 0",
        action="The log names the task. Restart the sidecar: the next one settles its copy.",
    ),
    Alert(
        name="SegmentRefused",
        fault="A local segment is damaged, or does not fit its log.",
        expression="tierlog_segments_refused > 0",
        action="The log names file and position. Restore the replica from another broker before "
        "retention deletes the segment.",
    ),
    Alert(
        name="ObjectDamaged",
        fault="Objects in the store are missing or damaged. The store check finds it at its start "
        "and every `tierlog.store.check.interval.ms`; wrong bytes of the right size are found by "
        "`tierlog verify --deep` only.",
        expression="tierlog_segments_broken > 0",
        action="While the broker has the records they are copied again by themselves. Otherwise "
        "restore the objects from a backup or an older version in the bucket.",
    ),
    Alert(
        name="CopyQuotaUsedUp",
        fault="Copies wait for the copy quota.",
        expression="kafka_server_remotelogmanager_remote_copy_throttle_time_avg > 0",
        action="Nothing, unless the copy lag grows: then raise the quota.",
    ),
    Alert(
        name="BrokerSilent",
        fault="The broker does not answer.",
        expression="tierlog_broker_up == 0",
        action="Check the broker and `--bootstrap`. What it said last holds meanwhile.",
    ),
    Alert(
        name="PartitionWithoutLeader",
        fault="The broker names no leader for a partition.",
        expression="tierlog_partitions_without_leader > 0",
        action="Bring a replica of the partition back.",
    ),
    Alert(
        name="LogDirectoryUnreadable",
        fault="A log directory of the broker cannot be read.",
        expression="tierlog_log_directories_unreadable > 0",
        action="Check the disk and the permissions of the sidecar's user.",
    ),
    Alert(
        name="MetadataUnwritable",
        fault="The disk of the state directory is full, or the remote log metadata cannot be "
        "written.",
        expression='sum(increase(tierlog_task_failures_total{error="RemoteMetadataError"}[5m])) '
        "> 0",
        action="Make room, or mend the metadata topic. After an I/O error the sidecar ends with "
        "exit code 1: alert on `up == 0`, too, and let a supervisor restart it.",
    ),
    Alert(
        name="LookFails",
        fault="A look at directories and broker fails, for example because the state directory "
        "cannot be read.",
        expression="increase(tierlog_look_failures_total[5m]) > 0",
        action="The log names the error.",
    ),
    Alert(
        name="LeaderDeposed",
        fault="Another broker's sidecar has claimed a partition under a later leader epoch, and "
        "this one's broker still says that it leads.",
        expression="tierlog_partitions_deposed > 0",
        action="For longer than a minute: check what the broker says about its leaders, and that "
        "no two brokers have the same id.",
    ),
    Alert(
        name="DeletionDenied",
        fault="The store denies deletions.",
        expression=f"increase({_EVENTS}remotedeleteerrors_total[5m]) > 0",
        action="Give the sidecar the permission to delete. Records that have expired are no longer "
        "served, and their objects are deleted later.",
    ),
    Alert(
        name="FollowerLag",
        fault="The leader of a followed partition copies nothing: its sidecar may not run.",
        expression="tierlog_follower_lag_segments > 0",
        action="For longer than some intervals: check the sidecar of the leader.",
    ),
    Alert(
        name="IndexFilesUnwritable",
        fault="The remote index files (`tierlog.remote.index.dir`) cannot be written.",
        expression="increase(tierlog_index_file_errors_total[5m]) > 0",
        action="Make room on their disk. They are completed by themselves.",
    ),
)
