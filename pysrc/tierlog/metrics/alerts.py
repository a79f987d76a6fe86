"""The alerts: one expression in PromQL for each fault. The expression becomes true within one
interval after the fault begins, and false after the fault has ended."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALERTS", "Alert"]

_EVENTS = "kafka_server_brokertopicmetrics_"
_TIME = "tierlog_task_longest_run_seconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A fault that an operator should know about. ``name`` is the name of a rule in Prometheus."""

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
        action="Check network, credentials and mount. Copies continue by themselves after the "
        "outage. The broker's retention must be longer than the outage.",
    ),
    Alert(
        name="CopiesFail",
        fault="The store refuses writes or is full, a claim cannot be written or is not in the "
        "store's listing, or the state directory cannot be written.",
        expression=f"increase({_EVENTS}remotecopyerrors_total[5m]) > 0",
        action="The log names the error. Give the sidecar the permission to write, or give the "
        "store more space.",
    ),
    Alert(
        name="CopiesBehind",
        fault="Segments wait for their copy, for any reason.",
        expression=f"{_EVENTS}remotecopylagsegments > 0",
        action="If it lasts for several intervals, look for another alert. If there is none, raise "
        "the copy quota or `remote.log.manager.copier.thread.pool.size`. The broker must not "
        "delete these segments before they are copied.",
    ),
    Alert(
        name="StoreSlow",
        fault="The store is so slow that a copy takes more than a minute.",
        expression=f'{_TIME}{{pool="copy"}} > 60',
        action="Compare the time with the size of a segment and the copy quota, which also slows "
        "down a copy. Check the store.",
    ),
    Alert(
        name="TaskStuck",
        fault="A task hangs: it has run for more than ten minutes.",
        expression="tierlog_tasks_stuck > 0",
        action="The log names the task. Restart the sidecar; it then settles the interrupted copy.",
    ),
    Alert(
        name="SegmentRefused",
        fault="A local segment is damaged, or does not belong to its log.",
        expression="tierlog_segments_refused > 0",
        action="The log names the file and the position. Restore the replica from another broker "
        "before retention deletes the segment.",
    ),
    Alert(
        name="ObjectDamaged",
        fault="Objects in the store are missing or damaged. The store check finds them at the "
        "start and every `tierlog.store.check.interval.ms`. Only `tierlog verify --deep` finds "
        "wrong bytes of the right size.",
        expression="tierlog_segments_broken > 0",
        action="If the broker still has the records, the sidecar copies them again. Otherwise "
        "restore the objects from a backup or an older version in the bucket.",
    ),
    Alert(
        name="CopyQuotaUsedUp",
        fault="Copies wait for the copy quota.",
        expression="kafka_server_remotelogmanager_remote_copy_throttle_time_avg > 0",
        action="None. If the copy lag grows, raise the quota.",
    ),
    Alert(
        name="BrokerSilent",
        fault="The broker does not answer.",
        expression="tierlog_broker_up == 0",
        action="Check the broker and `--bootstrap`. Meanwhile the sidecar uses its last answers.",
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
        action="Free disk space, or mend the metadata topic. After an I/O error the sidecar ends "
        "with exit code 1. So also alert on `up == 0`, and let a supervisor restart the sidecar.",
    ),
    Alert(
        name="LookFails",
        fault="The sidecar cannot list the directories and ask the broker, for example because it "
        "cannot read the state directory.",
        expression="increase(tierlog_look_failures_total[5m]) > 0",
        action="The log names the error.",
    ),
    Alert(
        name="LeaderDeposed",
        fault="The sidecar of another broker has claimed a partition under a later leader epoch, "
        "but this broker still says that it leads the partition.",
        expression="tierlog_partitions_deposed > 0",
        action="If it lasts longer than a minute, check which leaders the broker reports, and that "
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
        action="If it lasts for several intervals, check the sidecar of the leader.",
    ),
    Alert(
        name="IndexFilesUnwritable",
        fault="The remote index files (`tierlog.remote.index.dir`) cannot be written.",
        expression="increase(tierlog_index_file_errors_total[5m]) > 0",
        action="Free space on their disk. The sidecar then completes the files by itself.",
    ),
)
