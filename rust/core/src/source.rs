//! Sources of segment bytes: a slice in memory, or a regular file read by `pread`.
//!
//! A running broker may truncate, rename or remove its files at any moment. Such a file is never
//! mapped, because reading a map of a file that shrank raises SIGBUS. Only a caller that owns the
//! file may call [`SegmentFile::map`].

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// Size of each write of a copy. The page cache serves a file best when it was written in multiples
/// of at least this size. For much larger writes the kernel searches for larger pages.
pub(crate) const WRITE_BYTES: usize = 256 << 10;
/// The kernel is asked to start writing to the disk after this many bytes.
const WRITEBACK_BYTES: u64 = 8 << 20;
/// Size of a cache line. Every [`lead`] is smaller.
pub const LEAD_BYTES: usize = 64;

/// Returns how many bytes to skip at the start of `memory` so that the bytes of a file from
/// `position` are copied to the rest at full speed. The number is below [`LEAD_BYTES`].
///
/// Some cores (AMD Zen 3) copy five times slower when the target is 1 to 31 bytes further into its
/// page than the source is. Copying 1 MiB from the page cache then takes 400 us instead of 75 us.
/// An allocator may place a large vector 16 bytes after the start of a page, so a scan could take
/// twice as long in one process as in another.
pub fn lead(memory: &[u8], position: u64) -> usize {
    (position as usize).wrapping_sub(memory.as_ptr().addr()) % LEAD_BYTES
}

/// Memory for successive reads of a file, most of which start at a page boundary.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    lead: usize,
}

impl ReadBuffer {
    /// Returns a buffer of `size` zero bytes.
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

/// A regular file that is open for reading only. A path that ends with a symbolic link is not
/// followed.
#[derive(Debug)]
pub struct SegmentFile {
    file: File,
    size_bytes: u64,
}

impl SegmentFile {
    /// Opens `path` and refuses FIFOs, devices, directories and symbolic links without blocking.
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(path)
            .map_err(|error| refuse_link(path, error))?;
        Self::from_file(file)
    }

    /// Takes an open file and reads its size once.
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

    /// Returns the size of the file when it was opened.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Fills `buffer` from `position` and returns the number of bytes. The number is smaller than
    /// the buffer only at the end of the file.
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

    /// Maps the file. The caller must ensure that no other process truncates the file (see the
    /// module documentation).
    #[expect(unsafe_code, reason = "mapping is only sound when the caller owns the file")]
    pub fn map(&self) -> Result<memmap2::Mmap> {
        // SAFETY: the caller guarantees that the file is its own, so the file does not shrink or
        // change while the map lives. The Python argument `own_file` documents this contract.
        let map = unsafe { memmap2::Mmap::map(&self.file) };
        map.map_err(|error| Error::io(0, error))
    }
}

/// A private file that receives the bytes of another file while they are read.
///
/// The caller makes the file durable. The kernel starts to write early, so that the final sync is
/// short.
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

    /// Returns true when writing to this file failed, and false when reading the source failed.
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
            // memory nor changes the file. If the system refuses it, the later fsync does all the
            // work.
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
    fn read_buffers_have_the_cache_line_alignment_of_the_file() {
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
    fn only_regular_files_are_opened() {
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
