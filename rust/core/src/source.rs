//! Where segment bytes come from: a slice in memory, or a regular file read by `pread`.
//!
//! A file that belongs to a running broker may be truncated, renamed or removed at any moment, so
//! it is never mapped: a map of a file that shrinks ends in SIGBUS. [`SegmentFile::map`] exists
//! for callers who say that the file is their own.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// Pieces in which a copy is written. The page cache serves a file best when it was written in
/// pieces of at least this size and at multiples of it; with much larger ones the kernel looks for
/// pages of that size.
pub(crate) const WRITE_BYTES: usize = 256 << 10;
/// After so many bytes the disk is asked to begin with them.
const WRITEBACK_BYTES: u64 = 8 << 20;
/// More than any [`lead`]: a cache line.
pub const LEAD_BYTES: usize = 64;

/// How many bytes of `memory` to leave out at its start, fewer than [`LEAD_BYTES`], so that what a
/// file has from `position` on is copied to the rest as fast as can be.
///
/// Some cores (AMD Zen 3) copy five times slower to memory that lies 1 to 31 bytes further into its
/// page than what is copied lies into its own: 400 us for a MiB of the page cache instead of 75.
/// And 16 bytes into a page is where an allocator puts a large vector, or not, as memory happens to
/// be: the same scan took twice as long in one process as in the next.
pub fn lead(memory: &[u8], position: u64) -> usize {
    (position as usize).wrapping_sub(memory.as_ptr().addr()) % LEAD_BYTES
}

/// Memory that a file is read to, piece after piece, most of which begin with a page.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    lead: usize,
}

impl ReadBuffer {
    /// So many bytes, all 0.
    pub(crate) fn new(size: usize) -> Self {
        let bytes = vec![0; size + LEAD_BYTES];
        let lead = lead(&bytes, 0);
        Self { bytes, lead }
    }
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.lead..][..self.bytes.len() - LEAD_BYTES]
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let size = self.len();
        &mut self.bytes[self.lead..][..size]
    }
}

/// A regular file opened for reading only, without following a symbolic link at its end.
#[derive(Debug)]
pub struct SegmentFile {
    file: File,
    size_bytes: u64,
}

impl SegmentFile {
    /// Opens `path`; FIFOs, devices, directories and symbolic links are refused, never waited for.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)
            .map_err(|error| refuse_link(path, error))?;
        Self::from_file(file)
    }

    /// Takes an open file; its size is read once, now.
    pub fn from_file(file: File) -> Result<Self> {
        let metadata = file.metadata().map_err(|error| Error::io(0, error))?;
        let kind = metadata.file_type();
        if !kind.is_file() {
            let found = match () {
                () if kind.is_dir() => "a directory",
                () if kind.is_fifo() => "a FIFO",
                () if kind.is_socket() => "a socket",
                () => "a device",
            };
            return Err(Error::new(ErrorKind::InvalidArgument, 0, "a regular file", found));
        }
        Ok(Self { file, size_bytes: metadata.len() })
    }

    /// Bytes the file held when it was opened.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Fills `buffer` from `position` on as far as the file goes; fewer bytes mean its end.
    pub fn read_at(&self, position: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.file.read_at(&mut buffer[filled..], position + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::io(position + filled as u64, error)),
            }
        }
        Ok(filled)
    }

    /// Maps the file. Only for files that nobody else truncates: see the head of this file.
    #[expect(unsafe_code, reason = "mapping is only sound when the caller owns the file")]
    pub fn map(&self) -> Result<memmap2::Mmap> {
        // SAFETY: the caller says that the file is its own, so nobody shrinks or changes it while
        // the map lives; this is the documented contract of `own_file`.
        let map = unsafe { memmap2::Mmap::map(&self.file) };
        map.map_err(|error| Error::io(0, error))
    }
}

/// A file of our own that takes the bytes of another one while they are read.
///
/// Its owner makes it durable; here the disk is only kept busy meanwhile, so that little is left
/// to do in the end.
#[derive(Debug)]
pub struct CopyTarget {
    file: File,
    handed_over: u64,
    failed: bool,
}

impl CopyTarget {
    /// Takes an empty file that is open for writing.
    pub fn new(file: File) -> Self {
        Self { file, handed_over: 0, failed: false }
    }

    /// Whether it was this file, not the one that is read, that could not be used.
    pub fn failed(&self) -> bool {
        self.failed
    }

    /// Writes `bytes` at `position`.
    pub(crate) fn write(&mut self, bytes: &[u8], position: u64) -> Result<()> {
        let mut at = position;
        for piece in bytes.chunks(WRITE_BYTES) {
            if let Err(error) = self.file.write_all_at(piece, at) {
                self.failed = true;
                return Err(Error::io(at, error));
            }
            at += piece.len() as u64;
        }
        if at >= self.handed_over + WRITEBACK_BYTES {
            self.begin_writeback(at);
        }
        Ok(())
    }

    #[expect(unsafe_code, reason = "the standard library has no such call")]
    fn begin_writeback(&mut self, end: u64) {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let length = end - self.handed_over;
            // SAFETY: the descriptor is open as long as `file` lives. The call neither touches
            // memory nor changes the file; where it is refused, a later fsync does all the work.
            unsafe {
                libc::sync_file_range(
                    self.file.as_raw_fd(),
                    self.handed_over.cast_signed(),
                    length.cast_signed(),
                    libc::SYNC_FILE_RANGE_WRITE,
                )
            };
        }
        self.handed_over = end;
    }
}

fn refuse_link(path: &Path, error: io::Error) -> Error {
    if error.raw_os_error() == Some(libc::ELOOP) && path.is_symlink() {
        return Error::new(ErrorKind::InvalidArgument, 0, "a regular file", "a symbolic link");
    }
    if error.raw_os_error() == Some(libc::ENXIO) {
        return Error::new(ErrorKind::InvalidArgument, 0, "a regular file", "a socket or device");
    }
    Error::io(0, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_to_read_to_lies_in_its_cache_line_as_the_bytes_of_the_file_do() {
        for size in [0, 1, 256, 16 << 10, 512 << 10, 4 << 20] {
            let buffers: Vec<_> = (0..4).map(|_| ReadBuffer::new(size)).collect();
            for buffer in &buffers {
                assert_eq!((buffer.len(), buffer.as_ptr().addr() % LEAD_BYTES), (size, 0));
            }
        }
        let memory = [0; 3 * LEAD_BYTES];
        for skipped in 0..LEAD_BYTES {
            for position in [0, 1, 15_556, 1 << 40, u64::MAX] {
                let lead = lead(&memory[skipped..], position);
                assert!(lead < LEAD_BYTES);
                let place = memory[skipped + lead..].as_ptr().addr();
                assert_eq!(place % LEAD_BYTES, (position % LEAD_BYTES as u64) as usize);
            }
        }
    }

    #[test]
    fn refuses_what_is_not_a_regular_file() {
        let error = SegmentFile::open(Path::new("/dev/null")).err();
        assert_eq!(
            error.map(|e| (e.kind, e.found)),
            Some((ErrorKind::InvalidArgument, "a device".into()))
        );
        let error = SegmentFile::open(Path::new("/")).err();
        assert_eq!(error.map(|e| e.found), Some("a directory".into()));
        let error = SegmentFile::open(Path::new("/dev/no-such-file")).err();
        assert_eq!(error.map(|e| e.kind), Some(ErrorKind::Io));
    }
}
