//! Kafka's local indexes, the remoteLogIndex and producer snapshots.

pub mod local;
pub mod offset_search;
pub mod producer_state;
pub mod remote;
