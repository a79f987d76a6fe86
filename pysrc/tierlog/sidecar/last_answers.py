"""The broker's last answer for each partition: its leader, and whether its topic is compacted.

If an answer lacks a field, the field keeps its last known value. This holds in later runs, too,
because the state directory notes the answers. A field that was never known is still unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tierlog.broker import BrokerAnswer
from tierlog.errors import TierlogError
from tierlog.remote.store.object_store import ObjectStore
from tierlog.sidecar.notes import Notes
from tierlog.types import TopicIdPartition, check_kafka_uuid

__all__ = ["NOTES_KEY", "LastAnswers"]

NOTES_KEY = "broker-answers.json"
_VERSION = 1
_MAX_INT32 = 2**31 - 1
_SILENCE = BrokerAnswer(leader_id=None, last_stable_offset=None, compacted=None)


class _Leader(NamedTuple):
    """The broker that led a partition, and its leader epoch if known."""

    broker_id: int
    epoch: int | None


class LastAnswers:
    """Completes answers with earlier ones. For one thread.

    ``state``: the state directory as a store. ``node_id``: the broker whose directories these are.
    """

    def __init__(self, state: ObjectStore, node_id: int | None) -> None:
        self._notes = Notes(state, NOTES_KEY, _VERSION)
        self._node_id = node_id
        self._read = self._changed = False
        # By topic id, because another topic may get the same name.
        self._compacted: dict[str, bool] = {}
        self._leaders: dict[str, dict[int, _Leader]] = {}

    def load(self, warn: Callable[[str], None]) -> None:
        """Read the notes of earlier runs once. Damaged notes count as unknown, with a warning."""
        if self._read:
            return
        try:
            fields = self._notes.read()
            if fields is not None:
                self._compacted, self._leaders = _parse(fields.get("topics"))
        except ValueError as error:
            warn(
                f"{self._notes.url}: expected what the broker said last, found {error}; what it "
                "does not say again is unknown"
            )
        self._read = True

    def save(self, warn: Callable[[str], None]) -> None:
        """Note the changed answers. If the state directory cannot be written, warn."""
        if not self._changed:
            return
        try:
            self._notes.write({"topics": self._document()})
        except TierlogError as error:
            warn(f"{self._notes.url}: {error}; tried again at the next look")
        else:
            self._changed = False

    def complete(
        self, partition: TopicIdPartition, answer: BrokerAnswer | None, written_epoch: int
    ) -> BrokerAnswer:
        """Return `answer` with its missing fields from the last answer that had them.

        ``written_epoch`` is the last leader epoch in the directory. An answer with an earlier epoch
        does not make this broker the leader of a later epoch, even if the broker has just given the
        answer. The answer is old, and another broker may have led since then.
        """
        if answer is None:
            answer = _SILENCE
        if answer.topic_id is not None and answer.topic_id != partition.topic_id:
            return answer
        compacted = self._take_compacted(partition.topic_id, answer.compacted)
        leader = self._take_leader(partition, answer)
        if leader is None or self._may_be_deposed(leader, answer, written_epoch):
            return replace(answer, leader_id=None, compacted=compacted)
        return replace(
            answer, leader_id=leader.broker_id, leader_epoch=leader.epoch, compacted=compacted
        )

    def _may_be_deposed(self, leader: _Leader, answer: BrokerAnswer, written_epoch: int) -> bool:
        if leader.broker_id != self._node_id:
            return False
        if leader.epoch is None:
            return answer.leader_id is None
        return leader.epoch < written_epoch

    def _take_compacted(self, topic_id: str, said: bool | None) -> bool | None:
        if said is not None and self._compacted.get(topic_id) is not said:
            self._compacted[topic_id] = said
            self._changed = True
        return self._compacted.get(topic_id)

    def _take_leader(self, partition: TopicIdPartition, answer: BrokerAnswer) -> _Leader | None:
        leaders = self._leaders.setdefault(partition.topic_id, {})
        before = leaders.get(partition.partition)
        if answer.leader_id is None:
            return before
        epoch = answer.leader_epoch
        if epoch is None and before is not None and before.broker_id == answer.leader_id:
            epoch = before.epoch
        leader = _Leader(answer.leader_id, epoch)
        if leader != before:
            leaders[partition.partition] = leader
            self._changed = True
        return leader

    def _document(self) -> dict[str, Any]:
        return {
            topic_id: {
                "compacted": self._compacted.get(topic_id),
                "leaders": {str(number): list(one) for number, one in leaders.items()},
            }
            for topic_id, leaders in self._leaders.items()
        }


def _parse(topics: object) -> tuple[dict[str, bool], dict[str, dict[int, _Leader]]]:
    """Return the answers. Raises ValueError for notes that `LastAnswers` cannot have written."""
    compacted: dict[str, bool] = {}
    leaders: dict[str, dict[int, _Leader]] = {}
    for topic_id, said in _mapping(topics).items():
        check_kafka_uuid(topic_id)
        policy = _mapping(said).get("compacted")
        if policy is not None:
            if type(policy) is not bool:
                raise ValueError(f"{topic_id}: compacted {policy!r:.80}")
            compacted[topic_id] = policy
        leaders[topic_id] = {
            _partition_number(number): _leader(one)
            for number, one in _mapping(said.get("leaders")).items()
        }
    return compacted, leaders


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.80}")
    return value


def _partition_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        raise ValueError(f"partition {text!r:.80}")
    return int(text)


def _leader(value: object) -> _Leader:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"leader {value!r:.80}")
    broker_id, epoch = value
    numbers = [broker_id] if epoch is None else [broker_id, epoch]
    if any(type(one) is not int or not 0 <= one <= _MAX_INT32 for one in numbers):
        raise ValueError(f"leader {value!r:.80}")
    return _Leader(broker_id, epoch)
