//! The hash table and the memory of its entries. All unsafe code of the cache is here.
//!
//! Entries form chains in which the newest entry is first. Readers walk these chains without any
//! lock. Writers take turns under the cache's one lock. [`Map`] is shared with readers; [`Owner`]
//! is guarded by the lock.
//!
//! Every entry has two `next` pointers, one for tables of even number and one for tables of odd
//! number. A table that is too small is replaced by a table of twice the size. The chains of the
//! new table use the other pointers. The old chains do not change, so a reader that is walking them
//! misses no entry. The table can grow again only when no reader uses the old table.
//!
//! Rules that make the unsafe code sound:
//!
//! 1. Entries and tables are reached by readers only through a [`Pinned`].
//! 2. Both are freed only when [`Lanes::quiet`] shows that all threads that may have reached them
//!    have left.
//! 3. An entry that [`Owner`] has in a slot is linked and is removed only through `&mut Owner`.
//! 4. After an entry is linked, only its atomics change.

#![allow(unsafe_code)]

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use crate::sync::{AtomicPtr, Ordering};

use super::lanes::{Lanes, Pin, Quiet};
use super::order::Id;
use super::used::{Used, User};

const FIRST_BUCKETS: usize = if cfg!(tierlog_loom) { 4 } else { 64 };
/// Slot numbers have 32 bits.
pub(super) const MAX_ENTRIES: usize = u32::MAX as usize;

/// One entry.
pub(super) struct Node<K, V> {
    pub hash: u64,
    next: [AtomicPtr<Node<K, V>>; 2],
    pub used: Used,
    pub user: User,
    slot: u32,
    pub key: K,
    pub value: V,
    #[cfg(tierlog_loom)]
    life: life::Life,
}

impl<K, V> Node<K, V> {
    pub fn new(hash: u64, key: K, value: V) -> Box<Self> {
        Box::new(Self {
            hash,
            next: [AtomicPtr::new(ptr::null_mut()), AtomicPtr::new(ptr::null_mut())],
            used: Used::never(),
            user: User::unused(),
            slot: 0,
            key,
            value,
            #[cfg(tierlog_loom)]
            life: life::Life::new(),
        })
    }

    /// Asserts, in a model, that the entry was not freed.
    #[inline]
    pub fn assert_alive(&self) {
        #[cfg(tierlog_loom)]
        self.life.assert_alive();
    }

    #[inline]
    fn next(&self, parity: usize) -> &AtomicPtr<Self> {
        &self.next[parity & 1]
    }
}

struct Table<K, V> {
    /// Index of the `next` pointer that its chains use.
    parity: usize,
    mask: usize,
    buckets: Box<[AtomicPtr<Node<K, V>>]>,
}

impl<K, V> Table<K, V> {
    fn new(parity: usize, buckets: usize) -> Box<Self> {
        let empty = (0..buckets).map(|_| AtomicPtr::new(ptr::null_mut())).collect();
        Box::new(Self { parity, mask: buckets - 1, buckets: empty })
    }

    #[inline]
    fn bucket(&self, hash: u64) -> &AtomicPtr<Node<K, V>> {
        &self.buckets[hash as usize & self.mask]
    }
}

/// The part of the table that readers share.
pub(super) struct Map<K, V> {
    table: AtomicPtr<Table<K, V>>,
    pub lanes: Lanes,
    // Tells the compiler that the map owns its entries, which Send and Sync depend on.
    entries: PhantomData<Box<Node<K, V>>>,
}

/// Access of a reader to the map.
pub(super) struct Pinned<'a, K, V> {
    map: &'a Map<K, V>,
    pub pin: Pin<'a>,
}

impl<K, V> Map<K, V> {
    pub fn new() -> (Self, Owner<K, V>) {
        let table = Box::into_raw(Table::new(0, FIRST_BUCKETS));
        let map = Self { table: AtomicPtr::new(table), lanes: Lanes::new(), entries: PhantomData };
        let owner = Owner {
            slots: Vec::new(),
            free: Vec::new(),
            live: 0,
            retired: VecDeque::new(),
            old_table: None,
        };
        (map, owner)
    }

    #[inline]
    pub fn enter(&self) -> Pinned<'_, K, V> {
        Pinned { map: self, pin: self.lanes.enter() }
    }

    fn table(&self) -> &Table<K, V> {
        // SAFETY: called by readers under a pin and by the owner of the table. The owner frees a
        // table only after it has replaced the table and every pin that saw the table was dropped.
        unsafe { &*self.table.load(Ordering::Acquire) }
    }
}

impl<K, V> Pinned<'_, K, V> {
    /// Returns the entry of a key. The entry lives as long as this pin.
    #[inline]
    pub fn find<Q>(&self, hash: u64, key: &Q) -> Option<&Node<K, V>>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let table = self.map.table();
        // Acquire, here and below: all writes before an entry was linked are visible.
        let mut at = table.bucket(hash).load(Ordering::Acquire);
        loop {
            // SAFETY: the entry is reached under a pin (rules 1 and 2), and only its atomics
            // change.
            let node = unsafe { at.as_ref() }?;
            node.assert_alive();
            if node.hash == hash && node.key.borrow() == key {
                return Some(node);
            }
            at = node.next(table.parity).load(Ordering::Acquire);
        }
    }

    /// Returns the entry that `id` names, if the entry was not removed. The entry lives as long as
    /// this pin, even after the lock is released.
    pub fn keep<'p>(&'p self, owner: &Owner<K, V>, id: Id) -> Option<&'p Node<K, V>> {
        let node: *const Node<K, V> = owner.node(id)?;
        // SAFETY: the entry is linked now, so it will be removed after this pin was entered (rule
        // 2).
        Some(unsafe { &*node })
    }
}

struct Slot<K, V> {
    tenant: u32,
    // The weight is stored here and not in the entry, because no reader needs it.
    weight: u64,
    node: Option<NonNull<Node<K, V>>>,
}

/// State that only the holder of the lock uses: all linked entries, and the removed entries that
/// wait to be freed.
pub(super) struct Owner<K, V> {
    slots: Vec<Slot<K, V>>,
    free: Vec<u32>,
    live: usize,
    retired: VecDeque<Removed<K, V>>,
    old_table: Option<(u64, NonNull<Table<K, V>>)>,
}

// SAFETY: an `Owner` owns its entries, and readers in other threads only share them.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for Owner<K, V> {}

/// An unlinked entry that readers may still use. Pass it to [`Removed::free`]: dropping this value
/// leaks the entry.
pub(super) struct Removed<K, V> {
    node: NonNull<Node<K, V>>,
    epoch: u64,
    pub weight: u64,
}

// SAFETY: the same reason as for `Owner`.
unsafe impl<K: Send + Sync, V: Send + Sync> Send for Removed<K, V> {}

impl<K, V> Removed<K, V> {
    pub fn node(&self) -> &Node<K, V> {
        // SAFETY: only `free`, which consumes this value, frees the entry.
        unsafe { self.node.as_ref() }
    }

    /// Frees the entry, or returns it when a reader may still use it. `quiet` must come from
    /// [`Lanes::quiet`] of the same cache. It does not matter when it was computed.
    pub fn free(self, quiet: Quiet) -> Result<(), Self> {
        if !quiet.frees(self.epoch) {
            return Err(self);
        }
        // SAFETY: the entry was unlinked once (rule 3), so this is its only owner. All readers have
        // left (rule 2).
        unsafe { drop_node(self.node) };
        Ok(())
    }
}

/// # Safety
/// The caller owns the entry, and no other thread uses it.
unsafe fn drop_node<K, V>(node: NonNull<Node<K, V>>) {
    // In a model the entry is marked and kept, so that a later access is detected.
    #[cfg(tierlog_loom)]
    // SAFETY: the caller promises it, and loom checks it.
    unsafe {
        node.as_ref().life.end();
    }
    #[cfg(not(tierlog_loom))]
    // SAFETY: `Box::into_raw` in `Owner::settle` made the pointer. The caller promises the rest.
    unsafe {
        drop(Box::from_raw(node.as_ptr()));
    }
}

impl<K, V> Owner<K, V> {
    pub fn len(&self) -> usize {
        self.live
    }

    /// Returns the entry that `id` names, or `None` when the entry was removed.
    pub fn node(&self, id: Id) -> Option<&Node<K, V>> {
        let slot = self.slots.get(id.slot as usize)?;
        if slot.tenant != id.tenant {
            return None;
        }
        // SAFETY: linked (rule 3).
        slot.node.map(|node| unsafe { &*node.as_ptr() })
    }

    /// Returns the weight of an entry, or 0 when the entry was removed.
    pub fn weight(&self, id: Id) -> u64 {
        match self.slots.get(id.slot as usize) {
            Some(slot) if slot.tenant == id.tenant => slot.weight,
            _ => 0,
        }
    }

    /// Returns the ids of all entries.
    pub fn ids(&self) -> impl Iterator<Item = Id> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.node.is_some())
            .map(|(index, slot)| Id { slot: index as u32, tenant: slot.tenant })
    }

    pub fn find<Q>(&self, map: &Map<K, V>, hash: u64, key: &Q) -> Option<Id>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let table = map.table();
        let mut at = table.bucket(hash).load(Ordering::Relaxed);
        loop {
            // SAFETY: linked (rule 3).
            let node = unsafe { at.as_ref() }?;
            if node.hash == hash && node.key.borrow() == key {
                let tenant = self.slots[node.slot as usize].tenant;
                return Some(Id { slot: node.slot, tenant });
            }
            at = node.next(table.parity).load(Ordering::Relaxed);
        }
    }

    /// Links a new entry. The caller has checked that its key is not in the table.
    pub fn link(&mut self, map: &Map<K, V>, node: Box<Node<K, V>>, weight: u64) -> Id {
        if self.live >= map.table().buckets.len() / 2 {
            self.grow(map);
        }
        let (id, node) = self.settle(node, weight);
        let table = map.table();
        // SAFETY: the entry was just stored in a slot, and this owner owns it.
        let fresh = unsafe { node.as_ref() };
        let bucket = table.bucket(fresh.hash);
        fresh.next(table.parity).store(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
        // Release: a thread that loads the pointer sees the whole entry.
        bucket.store(node.as_ptr(), Ordering::Release);
        id
    }

    /// Replaces an entry by a new entry with the same key. Readers see the old entry or the new
    /// one.
    pub fn replace(
        &mut self,
        map: &Map<K, V>,
        old: Id,
        node: Box<Node<K, V>>,
        weight: u64,
    ) -> Option<(Id, Removed<K, V>)> {
        let (gone, old_weight) = self.vacate(old)?;
        let (id, node) = self.settle(node, weight);
        let table = map.table();
        // SAFETY: this owner owns both; the first was just stored and the second is still linked.
        let (fresh, stale) = unsafe { (node.as_ref(), gone.as_ref()) };
        let after = stale.next(table.parity).load(Ordering::Relaxed);
        fresh.next(table.parity).store(after, Ordering::Relaxed);
        // Release: as in `link`.
        link_to(table, gone).store(node.as_ptr(), Ordering::Release);
        let epoch = map.lanes.removed();
        Some((id, Removed { node: gone, epoch, weight: old_weight }))
    }

    /// Unlinks an entry. A reader at this entry still reaches the entries after it.
    pub fn unlink(&mut self, map: &Map<K, V>, id: Id) -> Option<Removed<K, V>> {
        let (gone, weight) = self.vacate(id)?;
        let table = map.table();
        // SAFETY: the entry is still linked, and this owner owns it.
        let after = unsafe { gone.as_ref() }.next(table.parity).load(Ordering::Relaxed);
        // Release: a reader that follows this pointer sees the whole next entry.
        link_to(table, gone).store(after, Ordering::Release);
        Some(Removed { node: gone, epoch: map.lanes.removed(), weight })
    }

    fn vacate(&mut self, id: Id) -> Option<(NonNull<Node<K, V>>, u64)> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.tenant != id.tenant {
            return None;
        }
        let node = slot.node.take()?;
        slot.tenant = slot.tenant.wrapping_add(1);
        let weight = slot.weight;
        self.free.push(id.slot);
        self.live -= 1;
        Some((node, weight))
    }

    fn settle(&mut self, mut node: Box<Node<K, V>>, weight: u64) -> (Id, NonNull<Node<K, V>>) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { tenant: 0, weight: 0, node: None });
            (self.slots.len() - 1) as u32
        });
        node.slot = slot;
        // SAFETY: a box is never null.
        let node = unsafe { NonNull::new_unchecked(Box::into_raw(node)) };
        let place = &mut self.slots[slot as usize];
        place.node = Some(node);
        place.weight = weight;
        self.live += 1;
        (Id { slot, tenant: place.tenant }, node)
    }

    fn grow(&mut self, map: &Map<K, V>) {
        self.free_table(map);
        if self.old_table.is_some() {
            // A reader may still walk the chains that this would overwrite. The table grows after
            // the reader has left.
            return;
        }
        let old = map.table.load(Ordering::Relaxed);
        let parity = map.table().parity ^ 1;
        let table = Table::new(parity, map.table().buckets.len() * 2);
        for slot in &self.slots {
            let Some(node) = slot.node else { continue };
            // SAFETY: linked (rule 3).
            let linked = unsafe { node.as_ref() };
            let bucket = table.bucket(linked.hash);
            linked.next(parity).store(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
            bucket.store(node.as_ptr(), Ordering::Relaxed);
        }
        // Release: a thread that loads the pointer sees the new chains.
        map.table.store(Box::into_raw(table), Ordering::Release);
        self.old_table = NonNull::new(old).map(|old| (map.lanes.removed(), old));
    }

    fn free_table(&mut self, map: &Map<K, V>) {
        let Some((epoch, table)) = self.old_table else { return };
        if map.lanes.quiet().frees(epoch) {
            self.old_table = None;
            // SAFETY: the table was replaced before `epoch` ended, and all readers that saw it have
            // left (rule 2).
            unsafe { drop(Box::from_raw(table.as_ptr())) };
        }
    }

    /// Keeps a removed entry until no reader can use it.
    pub fn retire(&mut self, removed: Removed<K, V>) {
        self.retired.push_back(removed);
    }

    /// Returns the number of retired entries.
    pub fn retired(&self) -> usize {
        self.retired.len()
    }

    /// Returns a retired entry that no reader can use any more.
    pub fn take_retired(&mut self, quiet: Quiet) -> Option<Removed<K, V>> {
        if !quiet.frees(self.retired.front()?.epoch) {
            return None;
        }
        self.retired.pop_front()
    }

    /// Frees everything. Call this only if no other thread uses the cache any more.
    pub fn free_all(&mut self, map: &mut Map<K, V>) {
        let linked = self.slots.iter_mut().filter_map(|slot| slot.node.take());
        for node in linked.chain(self.retired.drain(..).map(|removed| removed.node)) {
            // SAFETY: `&mut Map` proves that all readers have left.
            unsafe { drop_node(node) };
        }
        self.live = 0;
        let current = map.table.load(Ordering::Relaxed);
        map.table.store(ptr::null_mut(), Ordering::Relaxed);
        let old = self.old_table.take().map(|(_, table)| table);
        for table in NonNull::new(current).into_iter().chain(old) {
            // SAFETY: made by `Box::into_raw`, dropped once.
            unsafe { drop(Box::from_raw(table.as_ptr())) };
        }
    }
}

/// Returns the pointer that leads to a linked entry.
fn link_to<K, V>(table: &Table<K, V>, node: NonNull<Node<K, V>>) -> &AtomicPtr<Node<K, V>> {
    // SAFETY: linked in this table (rule 3), like all entries before it in the chain.
    let mut link = table.bucket(unsafe { node.as_ref() }.hash);
    loop {
        let at = link.load(Ordering::Relaxed);
        if at == node.as_ptr() {
            return link;
        }
        // SAFETY: the chain reaches `node` before it ends, so `at` is a linked entry (rule 3).
        link = unsafe { &*at }.next(table.parity);
    }
}

#[cfg(tierlog_loom)]
mod life {
    use loom::cell::UnsafeCell;

    /// Detects, in a model, an access to an entry during or after its freeing.
    pub(super) struct Life(UnsafeCell<bool>);

    impl Life {
        pub(super) fn new() -> Self {
            Self(UnsafeCell::new(true))
        }

        pub(super) fn assert_alive(&self) {
            // SAFETY: loom checks that there is no concurrent writer.
            self.0.with(|alive| assert!(unsafe { *alive }, "looked at after it was freed"));
        }

        /// # Safety
        /// As for freeing.
        pub(super) unsafe fn end(&self) {
            // SAFETY: the caller promises it, and loom checks that there is no concurrent reader.
            self.0.with_mut(|alive| unsafe {
                assert!(*alive, "freed twice");
                *alive = false;
            });
        }
    }
}
