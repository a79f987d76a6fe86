//! Pool of the vectors that hold columns.
//!
//! Decoding fills memory faster than the system provides it. A decode into reused memory takes two
//! thirds of the time of a decode into new memory. The pool is bounded and evicts its oldest
//! vectors first.

use std::collections::VecDeque;

/// Smaller vectors are not pooled.
pub const MIN_BYTES: usize = 1 << 20;
/// A vector with more than this many times the requested capacity is not reused.
const MAX_EXCESS: usize = 4;

/// A vector with one of the item types of columns.
#[derive(Debug)]
enum Typed {
    Numbers(Vec<i64>),
    Views(Vec<u128>),
    Bytes(Vec<u8>),
}

/// Item type of a pooled vector.
pub trait Item: Sized {
    #[doc(hidden)]
    fn keep(column: Vec<Self>) -> PooledVector;
    #[doc(hidden)]
    fn as_vec(vector: &mut PooledVector) -> Option<&mut Vec<Self>>;
}

/// A vector in the pool.
#[derive(Debug)]
pub struct PooledVector(Typed);

macro_rules! item {
    ($type:ty, $kind:ident) => {
        impl Item for $type {
            fn keep(column: Vec<Self>) -> PooledVector {
                PooledVector(Typed::$kind(column))
            }

            fn as_vec(vector: &mut PooledVector) -> Option<&mut Vec<Self>> {
                match &mut vector.0 {
                    Typed::$kind(column) => Some(column),
                    _ => None,
                }
            }
        }
    };
}

item!(i64, Numbers);
item!(u128, Views);
item!(u8, Bytes);

impl PooledVector {
    fn size_bytes(&self) -> usize {
        match &self.0 {
            Typed::Numbers(column) => column.capacity() * size_of::<i64>(),
            Typed::Views(column) => column.capacity() * size_of::<u128>(),
            Typed::Bytes(column) => column.capacity(),
        }
    }
}

/// Returned vectors, oldest first.
#[derive(Debug, Default)]
pub struct VectorPool {
    vectors: VecDeque<PooledVector>,
    size_bytes: usize,
    limit_bytes: usize,
}

impl VectorPool {
    /// Creates a pool that keeps vectors of at most `limit_bytes`.
    pub const fn new(limit_bytes: usize) -> Self {
        Self { vectors: VecDeque::new(), size_bytes: 0, limit_bytes }
    }

    /// Returns the bytes in the pool.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// Returns all memory to the system.
    pub fn clear(&mut self) {
        self.vectors.clear();
        self.size_bytes = 0;
    }

    /// Adds a vector to the pool and keeps its content. A vector below [`MIN_BYTES`] is dropped.
    pub fn give<T: Item>(&mut self, column: Vec<T>) {
        self.add(T::keep(column));
    }

    /// Adds the vectors of `other` as the newest vectors.
    pub fn give_all(&mut self, other: Self) {
        for vector in other.vectors {
            self.add(vector);
        }
    }

    fn add(&mut self, vector: PooledVector) {
        let size = vector.size_bytes();
        if size < MIN_BYTES || size > self.limit_bytes {
            return;
        }
        self.size_bytes += size;
        self.vectors.push_back(vector);
        while self.size_bytes > self.limit_bytes {
            let Some(oldest) = self.vectors.pop_front() else { break };
            self.size_bytes -= oldest.size_bytes();
        }
    }

    /// Takes the smallest vector with capacity for `items`. If several have the same capacity,
    /// takes the newest. The vector still has its old content.
    pub fn take<T: Item>(&mut self, items: usize) -> Option<Vec<T>> {
        let most = items.saturating_mul(MAX_EXCESS);
        let mut best: Option<(usize, usize)> = None;
        for (index, vector) in self.vectors.iter_mut().enumerate() {
            let Some(capacity) = T::as_vec(vector).map(|column| column.capacity()) else {
                continue;
            };
            if (items..=most).contains(&capacity) && best.is_none_or(|(least, _)| capacity <= least)
            {
                best = Some((capacity, index));
            }
        }
        let mut taken = self.vectors.remove(best?.1)?;
        self.size_bytes -= taken.size_bytes();
        T::as_vec(&mut taken).map(std::mem::take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(items: usize) -> Vec<i64> {
        Vec::with_capacity(items)
    }

    #[test]
    fn best_fit_of_the_item_type_is_taken() {
        let mut pool = VectorPool::new(1 << 30);
        for items in [400_000, 200_000, 300_000] {
            pool.give(numbers(items));
        }
        pool.give(vec![7u8; 2 << 20]);
        assert_eq!(pool.size_bytes(), 900_000 * 8 + (2 << 20));
        assert_eq!(pool.take::<i64>(250_000).map(|column| column.capacity()), Some(300_000));
        assert_eq!(pool.take::<u128>(1), None);
        assert_eq!(pool.take::<i64>(500_000), None);
        assert_eq!(pool.take::<i64>(40_000), None);
        assert_eq!(pool.take::<u8>(1 << 20), Some(vec![7; 2 << 20]));
        assert_eq!(pool.size_bytes(), 600_000 * 8);
    }

    #[test]
    fn newest_of_equal_vectors_is_taken() {
        let mut pool = VectorPool::new(1 << 30);
        for byte in 1u8..=3 {
            pool.give(vec![byte; 2 << 20]);
        }
        assert_eq!(pool.take::<u8>(2 << 20).map(|column| column[0]), Some(3));
    }

    #[test]
    fn oldest_vectors_are_evicted_beyond_the_limit() {
        let mut pool = VectorPool::new(5 << 20);
        pool.give(vec![0u8; MIN_BYTES - 1]);
        pool.give(vec![0u8; 6 << 20]);
        assert_eq!(pool.size_bytes(), 0);
        pool.give(vec![1u8; 2 << 20]);
        pool.give(vec![2u8; 2 << 20]);
        pool.give(vec![3u8; 3 << 20]);
        assert_eq!(pool.size_bytes(), 5 << 20);
        assert_eq!(pool.take::<u8>(2 << 20).map(|column| column[0]), Some(2));
        let mut other = VectorPool::new(1 << 30);
        other.give_all(pool);
        assert_eq!(other.size_bytes(), 3 << 20);
    }
}
