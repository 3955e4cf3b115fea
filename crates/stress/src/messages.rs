//! Messages of a child to its parent on standard error. Each has 16 bytes and is written by one call, so it arrives
//! whole or not at all.

use std::io::Write;

/// Exit code of a child whose parent has closed the pipe.
const EXIT_CODE_ORPHANED: i32 = 4;
/// Actor numbers from here on stand for counts.
const COUNTS_START: u64 = 1 << 32;

/// A message of 16 bytes: the actor and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The child is about to open the database.
    Opening,
    /// A commit of a writer was acknowledged. The actor after the last writer is the keyspace churn; its number counts
    /// steps.
    Progress { actor: u64, number: u64 },
    /// A count of [`crate::counts::ChildCounts`].
    Count { index: u64, count: u64 },
}

/// Sends a message. Ends the process if the parent does not read any more.
pub(crate) fn send(message: Message) {
    let (actor, number) = match message {
        Message::Opening => (u64::MAX, 0),
        Message::Progress { actor, number } => (actor, number),
        Message::Count { index, count } => (COUNTS_START + index, count),
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&actor.to_le_bytes());
    bytes[8..].copy_from_slice(&number.to_le_bytes());
    if std::io::stderr().write_all(&bytes).is_err() {
        std::process::exit(EXIT_CODE_ORPHANED);
    }
}

impl Message {
    pub(crate) fn from_bytes(bytes: [u8; 16]) -> Message {
        let [actor, number] = [0, 8].map(|start| {
            bytes[start..start + 8].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
        });
        match (actor, number) {
            (u64::MAX, _) => Message::Opening,
            (actor, number) if actor < COUNTS_START => Message::Progress { actor, number },
            (index, count) => Message::Count { index: index - COUNTS_START, count },
        }
    }
}
