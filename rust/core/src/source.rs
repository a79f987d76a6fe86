//! Where segment bytes come from: a slice in memory, or a regular file read by `pread`.
//!
//! A file that belongs to a running broker may be truncated, renamed or removed at any moment, so
//! it is never mapped: a map of a file that shrinks ends in SIGBUS. [`SegmentFile::map`] exists
//! for callers who say that the file is their own.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::memory::prefer_large_pages;

/// Pieces in which a copy is written. The page cache serves a file best when it was written in
/// pieces of at least this size and at multiples of it; with much larger ones the kernel looks for
/// pages of that size.
pub(crate) const WRITE_BYTES: usize = 256 << 10;
/// After so many bytes the disk is asked to begin with them.
const WRITEBACK_BYTES: u64 = 8 << 20;

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

    /// Reads `[start, end)`, cut at the file's end, into one buffer.
    pub fn read_range(&self, start: u64, end: u64) -> Result<Vec<u8>> {
        let end = end.min(self.size_bytes);
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length];
        prefer_large_pages(&bytes);
        let filled = self.read_at(start, &mut bytes)?;
        bytes.truncate(filled);
        Ok(bytes)
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
