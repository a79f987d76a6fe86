"""Why an append is refused. The codes are Kafka's."""

from __future__ import annotations

from enum import IntEnum

from tierlog.errors import TierlogError

__all__ = ["AppendRefusedError", "Refusal"]


class Refusal(IntEnum):
    """Kafka's error codes for an append."""

    CORRUPT_MESSAGE = 2
    MESSAGE_TOO_LARGE = 10
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    INVALID_TIMESTAMP = 32
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    INVALID_RECORD = 87


class AppendRefusedError(TierlogError):
    """The batches were not appended. ``code`` says why in Kafka's terms."""

    def __init__(self, code: Refusal, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(code, text)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"

    def __reduce__(self) -> tuple[object, ...]:
        return AppendRefusedError, (self.code, self.text)
