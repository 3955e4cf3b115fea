//! Tags of a data block. A tag is one byte of the hash of a key. A block stores one tag per entry, which makes point
//! lookups faster.
//!
//! A binary search over restarts loads a new cache line in nearly every step, and the results of its key comparisons
//! are hard to predict for the processor. The tags of a block need only one or two cache lines. A lookup searches the
//! tags for the tag of its key. If the key is absent, usually no tag matches. If a tag matches, the lookup decodes the
//! entries from the preceding restart up to this entry, and compares the full key.

use lsmx_base::coding::{len_u64, to_usize};
use lsmx_base::filter::key_hash;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;

use super::{DataBlock, ENTRIES_AT, LookupResult, common_prefix, shares_too_much};

/// Size in bytes of the fields after the restarts: restart interval and number of entries.
const COUNTS_BYTES: usize = size_of::<u8>() + size_of::<u16>();

/// Minimum average size of an entry in bytes in a block with tags.
const ENTRY_BYTES_MIN: usize = 32;

/// Returns the tag of a key, which is byte 1 of its filter hash. The 8-bit fingerprint of a filter uses byte 0.
#[inline]
pub(crate) fn key_hash_tag(user_key: &[u8]) -> u8 {
    key_hash(user_key).to_le_bytes()[1]
}

/// Fields at the end of a block with tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TagCounts {
    /// Number of entries, which is also the number of tags.
    pub(super) entries: usize,
    /// Number of entries per restart.
    pub(super) interval: usize,
}

impl TagCounts {
    /// Returns the fields for a block with `entries` entries, if the block can have tags. `entries_end` is the offset
    /// after the last entry.
    ///
    /// Returns `None` if the average size of an entry is less than [`ENTRY_BYTES_MIN`], or if the interval or an offset
    /// is too large for its field.
    #[inline]
    pub(super) fn from_entry_count(
        entries: usize,
        entries_end: usize,
        interval: u32,
    ) -> Option<TagCounts> {
        let fits = entries_end <= usize::from(u16::MAX)
            && entries.saturating_mul(ENTRY_BYTES_MIN) <= entries_end
            && u8::try_from(interval).is_ok();
        // The number of entries is less than `entries_end`. It therefore fits in 16 bits.
        fits.then_some(TagCounts { entries, interval: interval.max(1) as usize })
    }

    /// Returns the total size of tags, restarts and fields in bytes.
    #[inline]
    pub(super) fn bytes(self) -> usize {
        self.entries + self.restart_count() * size_of::<u16>() + COUNTS_BYTES
    }

    #[inline]
    pub(super) fn restart_count(self) -> usize {
        self.entries.div_ceil(self.interval)
    }

    /// Appends tags, restarts and fields to the entries in `out`.
    pub(super) fn append_tags_and_restarts(self, tags: &[u8], restarts: &[u32], out: &mut Vec<u8>) {
        out.extend_from_slice(tags);
        for &restart in restarts {
            put_low_bytes(out, restart as usize);
        }
        out.push(self.interval.to_le_bytes()[0]);
        put_low_bytes(out, self.entries);
    }

    /// Decodes the fields at the end of a block. Fails if they do not match the size of the block.
    #[inline]
    pub(super) fn read(bytes: &[u8]) -> Result<TagCounts, Malformed> {
        let [.., interval, low, high] = *bytes else {
            let (what, found) = ("data block counts", len_u64(bytes.len()));
            return Err(Malformed::Truncated { what, needed: len_u64(COUNTS_BYTES), found });
        };
        let (entries, interval) =
            (usize::from(u16::from_le_bytes([low, high])), usize::from(interval));
        let wrong = |what, found| {
            Malformed::invalid_field(
                what,
                len_u64(found),
                "at least one, and as many as fit into the block",
            )
        };
        if interval == 0 {
            return Err(wrong("data block restart interval", interval));
        }
        let tag_counts = TagCounts { entries, interval };
        if entries == 0 || tag_counts.bytes() + ENTRIES_AT >= bytes.len() {
            return Err(wrong("data block entries", entries));
        }
        Ok(tag_counts)
    }
}

/// Appends the low two bytes of a number. `TagCounts::from_entry_count` checked that the other bytes are zero.
fn put_low_bytes(out: &mut Vec<u8>, number: usize) {
    let [low, high, ..] = number.to_le_bytes();
    out.extend_from_slice(&[low, high]);
}

/// Position of a lookup that decodes entries from a restart up to the entry with a matching tag.
#[derive(Clone, Copy)]
struct ScanPosition {
    /// Index of the next entry to decode. The first entry of the block has index 0.
    ordinal: usize,
    /// Offset of the next entry to decode.
    at: usize,
    /// Length in bytes of the key of the last decoded entry. 0 at a restart.
    key_bytes: usize,
    /// Length in bytes of the common prefix of the target key and the last decoded key. 0 at a restart.
    matched: usize,
}

impl DataBlock {
    /// Searches the tags for `user_key`. Returns the newest entry of `user_key` that is visible at `snapshot`.
    pub(super) fn get_by_tags(
        &self,
        tag_counts: TagCounts,
        user_key: &[u8],
        snapshot: SeqNo,
    ) -> Result<Option<LookupResult>, Malformed> {
        let tag = key_hash_tag(user_key);
        let tags = self.tags(tag_counts);
        let (mut from, mut next) = (0, None);
        // The versions of a key are adjacent, and the newest version is the first.
        while let Some(found) = tags[from..].iter().position(|&other| other == tag) {
            let ordinal = from + found;
            from = ordinal + 1;
            let restart = ordinal / tag_counts.interval;
            let mut step = match next {
                Some(next @ ScanPosition { ordinal, .. })
                    if ordinal > restart * tag_counts.interval =>
                {
                    next
                }
                _ => ScanPosition {
                    ordinal: restart * tag_counts.interval,
                    at: self.restart_offset(restart)?,
                    key_bytes: 0,
                    matched: 0,
                },
            };
            let entry = loop {
                let entry = self.entry(step.at)?;
                if entry.shared > step.key_bytes {
                    return Err(shares_too_much(entry.shared));
                }
                // If an entry shares more than `matched` bytes with the previous key, it differs from the target at the
                // same byte as the previous key. `matched` then does not change.
                if entry.shared <= step.matched {
                    let rest = &user_key[entry.shared..];
                    step.matched = entry.shared + common_prefix(entry.suffix, rest);
                }
                step.key_bytes = entry.shared + entry.suffix.len();
                step.at = entry.next;
                step.ordinal += 1;
                if step.ordinal > ordinal {
                    break entry;
                }
            };
            let is_key = step.matched == user_key.len() && step.key_bytes == user_key.len();
            if is_key && entry.seq <= snapshot {
                return Ok(Some(LookupResult {
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

    /// Returns the tags. There is one tag per entry.
    #[inline]
    pub(super) fn tags(&self, tag_counts: TagCounts) -> &[u8] {
        // `DataBlock::new` checked that this range is within the block.
        &self.bytes[self.entries_end..self.entries_end + tag_counts.entries]
    }

    /// Returns whether the block has tags.
    pub fn has_tags(&self) -> bool {
        self.tag_counts.is_some()
    }

    /// Returns the number of entries per restart, or `None` for a block without tags, which does not store this number.
    #[cfg(feature = "internals")]
    pub fn restart_interval(&self) -> Option<usize> {
        self.tag_counts.map(|tag_counts| tag_counts.interval)
    }

    /// Returns the offset of the entry at a restart of a block with tags. Such a block stores offsets in two bytes.
    #[inline]
    pub(super) fn restart_offset_by_tags(&self, index: usize) -> Result<usize, Malformed> {
        let at = self.restarts_at + index * size_of::<u16>();
        let offset = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        to_usize("data block restart", offset.map_or(0, |&two| u64::from(u16::from_le_bytes(two))))
    }
}
