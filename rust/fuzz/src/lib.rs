//! Runs the fuzz targets of `tierlog-core` with libFuzzer.

pub mod memory;
#[path = "../../core/tests/fuzzing/repair.rs"]
pub mod repair;
#[path = "../../core/tests/fuzzing/targets/mod.rs"]
pub mod targets;

use repair::Chance;
use targets::Target;

/// Mutates the first `size` bytes of `data` and returns their new number, at most `max_size`.
/// Repairs checksums and lengths, so that the target does not refuse the input at once.
pub fn mutate(target: &Target, data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let data = &mut data[..max_size.max(size)];
    let mut inner = |data: &mut [u8], size| libfuzzer_sys::fuzzer_mutate(data, size, data.len());
    (target.repair)(data, size, &mut Chance::new(seed), &mut inner).min(max_size)
}

/// Defines the program of a target.
#[macro_export]
macro_rules! fuzz {
    ($target:ident) => {
        use $crate::targets::$target;

        #[global_allocator]
        static ALLOCATOR: $crate::memory::Limited = $crate::memory::Limited;

        libfuzzer_sys::fuzz_target!(|data: &[u8]| $crate::memory::check(|| ($target.check)(data)));
        libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
            $crate::mutate(&$target, data, size, max_size, seed)
        });
    };
}
