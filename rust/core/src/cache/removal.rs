//! Removed entries and the cause of each removal. The listener is called with them before they are
//! freed.

use super::map::{Node, Removed};

/// Why an entry was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemovalCause {
    /// The entry was evicted to make space.
    Size,
    /// The entry was not used during its time to live.
    Expired,
    /// The caller removed the entry.
    Explicit,
    /// The key of the entry was put again.
    Replaced,
    /// The cache was closed.
    Closed,
}

/// Receives key, value, weight and cause of every removal, after the cache's lock was released and
/// before the value is dropped. The listener may use the cache.
pub type RemovalListener<K, V> = Box<dyn Fn(&K, &V, u64, RemovalCause) + Send + Sync>;

/// The entries that one operation removed. A single removal needs no allocation.
pub(super) struct Removals<K, V> {
    first: Option<(Removed<K, V>, RemovalCause)>,
    more: Vec<(Removed<K, V>, RemovalCause)>,
    /// An entry that was not put because it is heavier than the whole cache.
    pub refused: Option<(Box<Node<K, V>>, u64)>,
    /// Entries that were removed earlier and that no reader uses any more.
    pub garbage: Vec<Removed<K, V>>,
}

impl<K, V> Removals<K, V> {
    pub fn new() -> Self {
        Self { first: None, more: Vec::new(), refused: None, garbage: Vec::new() }
    }

    pub fn push(&mut self, removed: Removed<K, V>, cause: RemovalCause) {
        if self.first.is_none() {
            self.first = Some((removed, cause));
        } else {
            self.more.push((removed, cause));
        }
    }

    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    pub fn notify(&self, listener: &RemovalListener<K, V>) {
        let removed = self.first.iter().chain(&self.more);
        for (removed, cause) in removed {
            let node = removed.node();
            listener(&node.key, &node.value, removed.weight, *cause);
        }
        if let Some((node, weight)) = &self.refused {
            listener(&node.key, &node.value, *weight, RemovalCause::Size);
        }
    }

    /// Returns all entries that have to be freed.
    pub fn take(&mut self) -> impl Iterator<Item = Removed<K, V>> {
        let more = std::mem::take(&mut self.more).into_iter();
        let removed = self.first.take().into_iter().chain(more).map(|(removed, _)| removed);
        removed.chain(std::mem::take(&mut self.garbage))
    }
}
