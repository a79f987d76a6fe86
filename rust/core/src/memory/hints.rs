//! Two hints to the machine, which change speed and nothing else. The unsafe code of this crate
//! that is not about maps stands here.
#![expect(unsafe_code, reason = "hints have no safe form")]

/// From this size on memory is worth large pages.
const LARGE_BYTES: usize = 4 << 20;
/// A large page of every machine that has them.
pub(crate) const LARGE_PAGE_BYTES: usize = 2 << 20;

/// Asks for the cache line `ahead` bytes behind the start of `bytes`, which may lie beyond their
/// end.
///
/// Records are found one from the other, so no core looks far enough ahead by itself: without this,
/// decoding a segment that is not in the cache takes 1.4 times as long.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads no memory as far as the program can tell: it neither faults nor
        // changes anything, whatever the address. The address is made by wrapping arithmetic.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(ahead).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, ahead);
}

/// Asks for large pages behind memory that was not touched yet, if there is enough of it.
///
/// Fresh memory costs a page fault for each page, more than the decoding that fills it: with large
/// pages, columns of 100 MiB are made in half the time.
pub fn prefer_large_pages<T>(memory: &[T]) {
    let size = std::mem::size_of_val(memory);
    if size < LARGE_BYTES {
        return;
    }
    #[cfg(target_os = "linux")]
    {
        const SMALL_PAGE_BYTES: usize = 4096;
        let start = memory.as_ptr().cast::<u8>();
        // From the start of the page: an allocator's header before the memory must not keep the
        // first large page from being one.
        let before = start as usize % SMALL_PAGE_BYTES;
        let first = start.wrapping_sub(before).cast_mut().cast();
        // SAFETY: the range is that of a live allocation, widened to its first page, which is
        // mapped since the allocation starts in it. The advice changes no content and no access
        // rights; it is refused, without harm, where it does not apply.
        unsafe { libc::madvise(first, size + before, libc::MADV_HUGEPAGE) };
    }
}
