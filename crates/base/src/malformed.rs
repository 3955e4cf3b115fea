//! Decoding errors.

/// Reason why bytes from a file cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The checksum does not match.
    #[error("checksum is {found:#018x}, expected {expected:#018x}")]
    Checksum {
        /// Checksum computed from the bytes read and their location in the file.
        expected: u64,
        /// Stored checksum.
        found: u64,
    },
    /// The input ends before the end of a value.
    #[error("{what} needs {needed} bytes, only {found} are left")]
    Truncated {
        /// Name of the value.
        what: &'static str,
        /// Number of bytes that the value needs.
        needed: u64,
        /// Number of bytes that are left.
        found: u64,
    },
    /// The magic number differs from that of the file kind.
    #[error("magic number is {found:#018x}, expected {expected:#018x}")]
    Magic {
        /// Magic number of the file kind.
        expected: u64,
        /// Stored number.
        found: u64,
    },
    /// The format version is newer than this build supports.
    #[error("format version is {found}, this build supports up to {supported}")]
    Version {
        /// Stored version.
        found: u32,
        /// Newest version that this build reads.
        supported: u32,
    },
    /// A field has an invalid value.
    #[error("{what} is {found}, expected {expected}")]
    Field {
        /// Name of the field.
        what: &'static str,
        /// Stored value.
        found: u64,
        /// Description of the valid values.
        expected: &'static str,
    },
    /// A stored identity does not match, so the bytes belong to another file or location.
    #[error(
        "{what} is {found:#018x}, expected {expected:#018x}: it belongs to another file or location"
    )]
    Identity {
        /// Name of the identity.
        what: &'static str,
        /// Identity that the location requires.
        expected: u64,
        /// Stored identity.
        found: u64,
    },
    /// Values are not in the required order, such as keys of a block.
    #[error("{what} out of order")]
    Order {
        /// Name of the values, used as the start of the error message.
        what: &'static str,
    },
}

impl Malformed {
    /// Returns the error for a field with an invalid value.
    #[must_use]
    pub const fn invalid_field(
        what: &'static str,
        found: u64,
        expected: &'static str,
    ) -> Malformed {
        Malformed::Field { what, found, expected }
    }
}
