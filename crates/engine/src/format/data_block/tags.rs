//! Tags of a data block: a byte of each key's hash, side by side, so that a lookup looks at few entries.
//!
//! A search by halves and then entry by entry touches a new line of memory with nearly each step, and
//! must have one to know where the next one is; and where two keys differ, the processor guesses wrong.
//! Tags of a whole block lie in a line or two, and lead to the one entry that may be of the key, or, mostly,
//! to none if there is none. What a tag says is never taken for an answer: the key is compared in
//! full, along the entries from the restart before.

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::filter::key_hash;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::{DataBlock, ENTRIES_AT, Hit, common_prefix, shares_too_much};

/// Bytes after the restarts: distance of restarts, count of entries.
const COUNTS_BYTES: usize = size_of::<u8>() + size_of::<u16>();

/// A block has tags where entries have on average at least this many bytes, one of them the tag.
const ENTRY_BYTES_MIN: usize = 32;

/// The tag of a key. Of the hash that filters take, but of other bits than what these keep of it.
#[inline]
pub(crate) fn tag(user_key: &[u8]) -> u8 {
    key_hash(user_key).to_le_bytes()[1]
}

/// What a block with tags has behind its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tail {
    /// Entries, and so tags.
    pub(super) entries: usize,
    /// Entries from one restart to the next.
    pub(super) interval: usize,
}

impl Tail {
    /// For so many entries that end at this offset; `None` where a block has no tags: they would cost
    /// too much, or something does not fit into its field.
    #[inline]
    pub(super) fn of(entries: usize, entries_end: usize, interval: u32) -> Option<Tail> {
        let fits = entries_end <= usize::from(u16::MAX)
            && entries.saturating_mul(ENTRY_BYTES_MIN) <= entries_end
            && u8::try_from(interval).is_ok();
        // An entry has five bytes at least, so there are no more of them than offsets.
        fits.then_some(Tail { entries, interval: interval.max(1) as usize })
    }

    /// Bytes of tags, restarts and counts.
    #[inline]
    pub(super) fn bytes(self) -> usize {
        self.entries + self.restarts() * size_of::<u16>() + COUNTS_BYTES
    }

    #[inline]
    pub(super) fn restarts(self) -> usize {
        self.entries.div_ceil(self.interval)
    }

    /// Appends it to the entries.
    pub(super) fn put(self, tags: &[u8], restarts: &[u32], out: &mut Vec<u8>) {
        out.extend_from_slice(tags);
        for &restart in restarts {
            put_low_u16(out, restart as usize);
        }
        out.push(self.interval.to_le_bytes()[0]);
        put_low_u16(out, self.entries);
    }

    /// Reads it from the end of a block.
    ///
    /// # Errors
    /// When there is none, or the block has no room for it.
    #[inline]
    pub(super) fn get(bytes: &[u8]) -> Result<Tail, Malformed> {
        let [.., interval, low, high] = *bytes else {
            let (what, found) = ("data block counts", len_u64(bytes.len()));
            return Err(Malformed::Truncated { what, needed: len_u64(COUNTS_BYTES), found });
        };
        let (entries, interval) =
            (usize::from(u16::from_le_bytes([low, high])), usize::from(interval));
        let wrong = |what, found| Malformed::Field {
            what,
            found: len_u64(found),
            expected: "at least one, and no more than there are bytes for",
        };
        if interval == 0 {
            return Err(wrong("data block restart interval", interval));
        }
        let tail = Tail { entries, interval };
        if entries == 0 || tail.bytes() + ENTRIES_AT > bytes.len() {
            return Err(wrong("data block entries", entries));
        }
        Ok(tail)
    }
}

/// The low two bytes of a number that has no others: `Tail::of` has seen to that.
fn put_low_u16(out: &mut Vec<u8>, number: usize) {
    let [low, high, ..] = number.to_le_bytes();
    out.extend_from_slice(&[low, high]);
}

/// An entry on the way to one that a tag has named.
#[derive(Clone, Copy)]
struct Step {
    ordinal: usize,
    /// Its offset.
    at: usize,
    /// Bytes of the key before it, and how many of them, from the first on, are those of the key sought.
    key_bytes: usize,
    agreed: usize,
}

impl DataBlock {
    /// The newest entry of `user_key` that is not newer than `snapshot`, by the tags.
    ///
    /// # Errors
    /// When an entry on the way is malformed.
    pub(super) fn get_by_tags(
        &self,
        tail: Tail,
        user_key: &[u8],
        snapshot: SeqNo,
    ) -> Result<Option<Hit>, Malformed> {
        let tag = tag(user_key);
        let tags = self.tags(tail);
        let (mut from, mut next) = (0, None);
        // Versions of a key lie side by side, the newest first.
        while let Some(found) = tags[from..].iter().position(|&other| other == tag) {
            let ordinal = from + found;
            from = ordinal + 1;
            let restart = ordinal / tail.interval;
            let mut step = match next {
                Some(next @ Step { ordinal, .. }) if ordinal > restart * tail.interval => next,
                _ => Step {
                    ordinal: restart * tail.interval,
                    at: self.restart(restart)?,
                    key_bytes: 0,
                    agreed: 0,
                },
            };
            let entry = loop {
                let entry = self.entry(step.at)?;
                if entry.shared > step.key_bytes {
                    return Err(shares_too_much(entry.shared));
                }
                // One that shares more than what agrees has the byte that does not, too.
                if entry.shared <= step.agreed {
                    let rest = &user_key[entry.shared..];
                    step.agreed = entry.shared + common_prefix(entry.suffix, rest);
                }
                step.key_bytes = entry.shared + entry.suffix.len();
                step.at = entry.next;
                step.ordinal += 1;
                if step.ordinal > ordinal {
                    break entry;
                }
            };
            let is_key = step.agreed == user_key.len() && step.key_bytes == user_key.len();
            if is_key && entry.seq <= snapshot {
                return Ok(Some(Hit {
                    seq: entry.seq,
                    kind: entry.kind,
                    value_at: entry.value_at,
                    value_end: entry.next,
                }));
            }
            next = Some(step);
        }
        Ok(None)
    }

    /// The tags, one for each entry.
    #[inline]
    pub(super) fn tags(&self, tail: Tail) -> &[u8] {
        // `DataBlock::new` has seen that they are there.
        &self.bytes[self.entries_end..self.entries_end + tail.entries]
    }

    /// Whether the block has tags.
    pub(crate) fn has_tags(&self) -> bool {
        self.tail.is_some()
    }

    /// Entries from one restart to the next, where the block says so.
    #[cfg(feature = "testing")]
    pub(crate) fn restart_interval(&self) -> Option<usize> {
        self.tail.map(|tail| tail.interval)
    }

    /// Offset of a restart, two bytes each.
    #[inline]
    pub(super) fn short_restart(&self, index: usize) -> Result<usize, Malformed> {
        let at = self.restarts_at + index * size_of::<u16>();
        let offset = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        to_usize("data block restart", offset.map_or(0, |&two| u64::from(u16::from_le_bytes(two))))
    }
}
