"""The transaction coordinator of a node.

    service > state_log > rules | state_record > types

`rules` are pure functions from one state of a transaction to the next. `state_log` keeps every
state in Kafka's topic ``__transaction_state``, and `service` runs both in an event loop: it locks a
transaction, waits for its appends, and writes its markers.
"""

from __future__ import annotations
