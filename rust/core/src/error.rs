//! The error type of the core: a coarse kind, the byte position, the expected and the found value.
//! Two errors have different kinds only if a caller handles them differently.

use std::fmt;
use std::io;

/// Kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The data ends before the structure does.
    Truncated,
    /// A checksum does not match.
    BadCrc,
    /// A length field is impossible or disagrees with another one.
    BadLength,
    /// The version byte is unknown.
    UnknownMagic,
    /// A header field has an impossible value.
    BadHeader,
    /// A record contradicts its batch or the format.
    BadRecord,
    /// Offsets do not ascend.
    OffsetOrder,
    /// A compressed payload cannot be decompressed.
    BadCompression,
    /// The data exceeds the caller's limit.
    TooLarge,
    /// An argument is impossible.
    InvalidArgument,
    /// The operating system returned an error.
    Io,
}

impl ErrorKind {
    /// Returns the name that users see as `reason`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::BadCrc => "bad_crc",
            Self::BadLength => "bad_length",
            Self::UnknownMagic => "unknown_magic",
            Self::BadHeader => "bad_header",
            Self::BadRecord => "bad_record",
            Self::OffsetOrder => "offset_order",
            Self::BadCompression => "bad_compression",
            Self::TooLarge => "too_large",
            Self::InvalidArgument => "invalid_argument",
            Self::Io => "io",
        }
    }
}

/// An error that names the kind, the position, the expected and the found value.
#[derive(Debug)]
pub struct Error {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Byte position in the source (or the index of the argument row).
    pub position: u64,
    /// The value that a valid source has at this position, after the name of the field: `crc
    /// 0x1234abcd`.
    pub expected: String,
    /// The value that the source has.
    pub found: String,
    /// The operating system's error for [`ErrorKind::Io`].
    pub io: Option<io::Error>,
}

/// Result of a fallible function of the core.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Creates an error about bytes or arguments.
    #[cold]
    pub fn new(
        kind: ErrorKind,
        position: u64,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self { kind, position, expected: expected.into(), found: found.into(), io: None }
    }

    /// Creates an error of the operating system at a position.
    #[cold]
    pub fn io(position: u64, source: io::Error) -> Self {
        Self {
            kind: ErrorKind::Io,
            position,
            expected: "a readable source".into(),
            found: source.to_string(),
            io: Some(source),
        }
    }

    /// Returns this error with `by` added to its position. A caller needs this if it decoded a part
    /// of the source on its own.
    #[must_use]
    pub fn shifted(mut self, by: u64) -> Self {
        self.position = self.position.saturating_add(by);
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at byte {}: expected {}, found {}",
            self.kind.name(),
            self.position,
            self.expected,
            self.found
        )
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.io.as_ref().map(|e| e as _)
    }
}
