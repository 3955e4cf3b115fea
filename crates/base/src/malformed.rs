//! Malformed bytes.

/// What is wrong with bytes read from a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The checksum does not match.
    #[error("checksum is {found:#018x}, expected {expected:#018x}")]
    Checksum {
        /// What the bytes give or the place demands.
        expected: u64,
        /// What is stored.
        found: u64,
    },
    /// Bytes are missing.
    #[error("{what} needs {needed} bytes, {found} are there")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        found: u64,
    },
    /// The magic number of the file kind is not there.
    #[error("magic number is {found:#018x}, expected {expected:#018x}")]
    Magic {
        /// Magic number of the kind.
        expected: u64,
        /// What is stored.
        found: u64,
    },
    /// A format version that this build does not know.
    #[error("format version {found}, this build knows up to {supported}")]
    Version {
        /// Version in the file.
        found: u32,
        /// Newest version this build reads.
        supported: u32,
    },
    /// A field has a value that no writer writes.
    #[error("{what} is {found}, expected {expected}")]
    Field {
        /// The field.
        what: &'static str,
        /// What is stored.
        found: u64,
        /// What must hold.
        expected: &'static str,
    },
    /// The file or block belongs somewhere else: identity does not match.
    #[error("{what} is {found:#018x}, expected {expected:#018x}: foreign or in the wrong place")]
    Identity {
        /// Which identity.
        what: &'static str,
        /// What the place demands.
        expected: u64,
        /// What is stored.
        found: u64,
    },
    /// Keys are not in order.
    #[error("{what} out of order")]
    Order {
        /// What is out of order.
        what: &'static str,
    },
}
