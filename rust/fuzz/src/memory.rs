//! An allocator that ends the process when one input takes too much memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Largest memory that one input may use. A legacy message may decompress to a thousand times its
/// size, and its memory grows by doubling.
const LIMIT_BYTES: usize = 8 << 20;

static USED_BYTES: AtomicUsize = AtomicUsize::new(0);
static MOST_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Counts the bytes in use and refuses allocations above the limit.
pub struct Limited;

impl Limited {
    fn take(&self, size: usize) -> bool {
        USED_BYTES.fetch_add(size, Relaxed).saturating_add(size) <= MOST_BYTES.load(Relaxed)
    }
}

// SAFETY: the system's allocator does all the work. A failed allocation returns a null pointer, and
// the program then ends with a message.
unsafe impl GlobalAlloc for Limited {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.take(layout.size()) {
            unsafe { System.alloc(layout) }
        } else {
            std::ptr::null_mut()
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !self.take(layout.size()) {
            return std::ptr::null_mut();
        }
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        USED_BYTES.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !self.take(size) {
            return std::ptr::null_mut();
        }
        USED_BYTES.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Runs `check` with the limit.
pub fn check(check: impl FnOnce()) {
    MOST_BYTES.store(USED_BYTES.load(Relaxed) + LIMIT_BYTES, Relaxed);
    check();
    MOST_BYTES.store(usize::MAX, Relaxed);
}
