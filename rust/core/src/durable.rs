//! Syncs many files at once.

use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Largest number of concurrent syncs. When a disk flushes its cache, one flush serves all waiting
/// syncs.
const THREADS: usize = 8;
/// Smallest number of files for each thread.
const LEAST_FILES: usize = 4;

/// Syncs every file, several at a time, and returns the index and error of the first file that
/// failed. Each file is synced once even if another file fails, because the system reports a failed
/// write only once.
pub fn sync_all(files: &[File]) -> Result<(), (usize, io::Error)> {
    each_of(files, &File::sync_all)
}

fn each_of(
    files: &[File],
    sync: &(impl Fn(&File) -> io::Result<()> + Sync),
) -> Result<(), (usize, io::Error)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failed = None;
        while let Some((index, file)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, files.get(i)?)))
        {
            if let Err(error) = sync(file) {
                failed = failed.or(Some((index, error)));
            }
        }
        failed
    };
    let failed = thread::scope(|scope| {
        let others: Vec<_> = (1..THREADS.min(files.len() / LEAST_FILES))
            // If a thread cannot be started, the other threads sync its files.
            .map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mut failed: Vec<_> = work().into_iter().collect();
        for other in others {
            match other.join() {
                Ok(found) => failed.extend(found),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        failed.into_iter().min_by_key(|(index, _)| *index)
    });
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::fd::{AsRawFd, RawFd};
    use std::sync::Mutex;

    use super::*;

    fn files(count: usize) -> Vec<File> {
        (0..count).map(|_| File::open("/dev/null").unwrap()).collect()
    }

    #[test]
    fn every_file_is_synced_once_even_after_errors() {
        for count in [0, 1, 7, 100] {
            let files = files(count);
            let seen = Mutex::new(Vec::new());
            let bad: BTreeSet<RawFd> =
                files.iter().skip(count / 2).step_by(3).map(AsRawFd::as_raw_fd).collect();
            let result = each_of(&files, &|file: &File| {
                seen.lock().unwrap().push(file.as_raw_fd());
                if bad.contains(&file.as_raw_fd()) {
                    return Err(io::Error::from_raw_os_error(libc::EIO));
                }
                Ok(())
            });
            let mut seen = seen.into_inner().unwrap();
            seen.sort_unstable();
            let mut all: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
            all.sort_unstable();
            assert_eq!(seen, all);
            let failed = result.err().map(|(index, error)| (index, error.raw_os_error()));
            assert_eq!(failed, (count > 0).then_some((count / 2, Some(libc::EIO))));
        }
    }

    #[test]
    fn file_that_cannot_be_synced_is_an_error() {
        assert!(sync_all(&[]).is_ok());
        let files = [File::open("/proc/self").unwrap(), File::open("/proc/self/status").unwrap()];
        let index = sync_all(&files).map_err(|(index, error)| (index, error.raw_os_error()));
        assert_eq!(index, Err((0, Some(libc::EINVAL))));
    }
}
