//! What a child tells whoever started it: 16 bytes each, in one call, so they come whole or not at all.

use std::io::Write;

/// Exit code of a child that nobody listens to.
const ORPHANED: i32 = 4;
/// Numbers from here on are no writers.
const REACHED: u64 = 1 << 32;

/// One thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The child is about to open the database.
    Opening,
    /// A commit of a writer was acknowledged, or a step of the keyspace that comes and goes, which counts
    /// as the one after the last writer.
    Done { who: u64, number: u64 },
    /// A count of [`crate::reached`].
    Reached { what: u64, count: u64 },
}

/// Tells it.
pub(crate) fn tell(told: Told) {
    let (which, number) = match told {
        Told::Opening => (u64::MAX, 0),
        Told::Done { who, number } => (who, number),
        Told::Reached { what, count } => (REACHED + what, count),
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&which.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    // Who is not heard any more must not write on.
    if std::io::stderr().write_all(&bytes).is_err() {
        std::process::exit(ORPHANED);
    }
}

impl Told {
    pub(crate) fn read(bytes: [u8; 16]) -> Told {
        let (which, number) = bytes.split_at(8);
        let read = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        match (read(which), read(number)) {
            (u64::MAX, _) => Told::Opening,
            (who, number) if who < REACHED => Told::Done { who, number },
            (what, count) => Told::Reached { what: what - REACHED, count },
        }
    }
}
