//! Messages that a child sends to its parent on standard error. A message has 16 bytes and is written by one call, so
//! the parent never receives a part of a message.

use std::io::Write;

/// Exit code of a child whose parent has closed the pipe.
const EXIT_CODE_ORPHANED: i32 = 4;
/// Smallest actor number that stands for an operation count. Smaller actor numbers stand for threads of the child.
const COUNTS_START: u64 = 1 << 32;

/// A message, encoded as two numbers of 8 bytes: an actor number and a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The child is about to open the database.
    Opening,
    /// The commit `number` of the writer `actor` was acknowledged. If `actor` equals the number of writers, the main
    /// thread has completed the keyspace churn step `number`. If `actor` is one greater, it has completed the load `number`.
    Progress { actor: u64, number: u64 },
    /// New value of the count with this index in [`crate::counts::ChildCounts`].
    Count { index: u64, count: u64 },
}

/// Sends a message. Exits the process if the parent has closed the pipe.
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
