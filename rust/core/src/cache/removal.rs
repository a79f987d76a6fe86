//! What was removed and why, on its way to the listener and out of memory.

use super::map::{Node, Removed};

/// Why an entry is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RemovalCause {
    /// There was no room for it.
    Size,
    /// Nobody used it for the time to live.
    Expired,
    /// Somebody removed it.
    Explicit,
    /// Its key got another value.
    Replaced,
    /// The cache was closed.
    Closed,
}

/// Told of every removal with key, value, weight and cause, after the cache's lock was given back
/// and before the value is dropped. It may use the cache.
pub type RemovalListener<K, V> = Box<dyn Fn(&K, &V, u64, RemovalCause) + Send + Sync>;

/// What one operation removed. Most remove one entry or none: no allocation for those.
pub(super) struct Removals<K, V> {
    first: Option<(Removed<K, V>, RemovalCause)>,
    more: Vec<(Removed<K, V>, RemovalCause)>,
    /// Put, but heavier than the whole cache.
    pub refused: Option<(Box<Node<K, V>>, u64)>,
    /// Removed earlier; nobody looks at it any more.
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

    pub fn tell(&self, listener: &RemovalListener<K, V>) {
        let removed = self.first.iter().chain(&self.more);
        for (removed, cause) in removed {
            let node = removed.node();
            listener(&node.key, &node.value, removed.weight, *cause);
        }
        if let Some((node, weight)) = &self.refused {
            listener(&node.key, &node.value, *weight, RemovalCause::Size);
        }
    }

    /// Everything that has to be freed.
    pub fn take(&mut self) -> impl Iterator<Item = Removed<K, V>> {
        let more = std::mem::take(&mut self.more).into_iter();
        let removed = self.first.take().into_iter().chain(more).map(|(removed, _)| removed);
        removed.chain(std::mem::take(&mut self.garbage))
    }
}
