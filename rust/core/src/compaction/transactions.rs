//! Which batches of a log belong to aborted transactions, and which transaction markers are still
//! needed (Kafka's `CleanedTransactionMetadata`).

use std::collections::{HashMap, HashSet};

use crate::batch::header::BatchHeader;
use crate::index::local::AbortedTransaction;

/// What a transaction marker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marker {
    /// The transaction was aborted.
    Abort,
    /// The transaction was committed.
    Commit,
    /// A control record of another kind.
    Other,
}

impl Marker {
    /// Returns the kind in the key of a control record: i16 version, i16 type.
    pub fn of_key(key: &[u8]) -> Self {
        match key {
            [_, _, 0, 0, ..] => Self::Abort,
            [_, _, 0, 1, ..] => Self::Commit,
            _ => Self::Other,
        }
    }
}

struct OpenAbort {
    transaction: AbortedTransaction,
    has_batches: bool,
}

/// Follows the transactions of a log from batch to batch.
#[derive(Default)]
pub struct Transactions {
    /// By first offset; those before `next` have begun.
    aborted: Vec<AbortedTransaction>,
    next: usize,
    open_aborts: HashMap<i64, OpenAbort>,
    open_commits: HashSet<i64>,
}

impl Transactions {
    /// `aborted` are the transactions that the transaction indexes have for the batches that come.
    pub fn new(mut aborted: Vec<AbortedTransaction>) -> Self {
        aborted.sort_by_key(|one| one.first_offset);
        Self { aborted, ..Self::default() }
    }

    /// Takes in a data batch and returns true when it belongs to an aborted transaction.
    pub fn is_aborted(&mut self, header: &BatchHeader) -> bool {
        self.begin_up_to(header.last_offset());
        if !header.is_transactional() {
            return false;
        }
        match self.open_aborts.get_mut(&header.producer_id) {
            // An index may name a transaction whose marker is gone: it ends at its last offset.
            Some(open) if header.base_offset <= open.transaction.last_offset => {
                open.has_batches = true;
                true
            }
            _ => {
                self.open_commits.insert(header.producer_id);
                false
            }
        }
    }

    /// Takes in a control batch, whose record is `marker`, `None` in an empty batch. Returns true
    /// when no batch of its transaction was seen, so that the log no longer needs it, and the entry
    /// that the transaction index keeps with it.
    pub fn end(
        &mut self,
        header: &BatchHeader,
        marker: Option<Marker>,
    ) -> (bool, Option<AbortedTransaction>) {
        self.begin_up_to(header.last_offset());
        match marker {
            None => (true, None),
            Some(Marker::Abort) => match self.open_aborts.remove(&header.producer_id) {
                Some(open) if open.has_batches => (false, Some(open.transaction)),
                _ => (true, None),
            },
            Some(Marker::Commit) => (!self.open_commits.remove(&header.producer_id), None),
            Some(Marker::Other) => (false, None),
        }
    }

    fn begin_up_to(&mut self, offset: i64) {
        while let Some(&transaction) =
            self.aborted.get(self.next).filter(|one| one.first_offset <= offset)
        {
            self.next += 1;
            let open = self.open_aborts.get(&transaction.producer_id);
            // The same transaction again, or one after a transaction without a marker.
            if open.is_none_or(|one| one.transaction.last_offset < transaction.first_offset) {
                let open = OpenAbort { transaction, has_batches: false };
                self.open_aborts.insert(transaction.producer_id, open);
            }
        }
    }
}
