//! Builder of data blocks.

use lsmx_base::coding::{Decoder, len_u64, put_u32, put_varint, varint_len};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;

use super::tags::{self, TagCounts};
use super::{ENCODING_PREFIX, ENCODING_TAGGED, RawEntry, common_prefix};

/// Builds a data block.
#[derive(Debug)]
pub struct DataBlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    /// Tags of the added entries. `None` if tags are disabled.
    tags: Option<Vec<u8>>,
    entries: usize,
    restart_interval: u32,
    since_restart: u32,
    /// User key of the last added entry. This entry may already be part of the previous block.
    last_key: Vec<u8>,
}

impl DataBlockBuilder {
    /// Returns a builder that writes a restart after every `restart_interval` entries. If `tagged` is true, blocks
    /// contain tags, except if their entries are too short or their offsets are too large, see `TagCounts`.
    pub fn new(restart_interval: u32, tagged: bool) -> DataBlockBuilder {
        DataBlockBuilder {
            bytes: vec![ENCODING_PREFIX],
            restarts: Vec::new(),
            tags: tagged.then(Vec::new),
            entries: 0,
            restart_interval,
            since_restart: 0,
            last_key: Vec::new(),
        }
    }

    /// Returns the highest encoding number that the builder can produce.
    pub(crate) fn format_version(&self) -> u8 {
        if self.tags.is_some() { ENCODING_TAGGED } else { ENCODING_PREFIX }
    }

    /// Returns true if the block under construction has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.restarts.is_empty()
    }

    /// Returns the size of the finished block in bytes if no further entry is added.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
            + self.restarts_and_tags_bytes(self.entries, self.bytes.len(), self.restarts.len())
    }

    /// Returns the total size in bytes of the tags, the restarts and the fields after the restarts, for a block with
    /// `entries` entries. `entries_end` is the offset after the last entry.
    fn restarts_and_tags_bytes(
        &self,
        entries: usize,
        entries_end: usize,
        restarts: usize,
    ) -> usize {
        match self.tag_counts(entries, entries_end) {
            Some(tag_counts) => tag_counts.bytes(),
            None => size_of::<u32>() * (restarts + 1),
        }
    }

    fn tag_counts(&self, entries: usize, entries_end: usize) -> Option<TagCounts> {
        self.tags
            .as_ref()
            .and_then(|_| TagCounts::from_entry_count(entries, entries_end, self.restart_interval))
    }

    /// Returns the user key of the last added entry. This entry may already be part of the previous block.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Returns the size in bytes that the finished block would have if this entry were its last. `common` is the length
    /// of the common prefix of `key.user_key` and [`DataBlockBuilder::last_key`].
    pub(crate) fn bytes_after_add(
        &self,
        key: InternalKey<'_>,
        common: usize,
        value: &[u8],
    ) -> usize {
        let (shared, restart) = self.next_shared_key_bytes(common);
        let unshared = key.user_key.len() - shared;
        let entries_end = self.bytes.len()
            + varint_len(len_u64(shared))
            + varint_len(len_u64(unshared))
            + 1
            + varint_len(key.seq.0)
            + varint_len(len_u64(value.len()))
            + unshared
            + value.len();
        let restarts = self.restarts.len() + usize::from(restart);
        entries_end + self.restarts_and_tags_bytes(self.entries + 1, entries_end, restarts)
    }

    fn next_shared_key_bytes(&self, common: usize) -> (usize, bool) {
        if self.is_empty() || self.since_restart == self.restart_interval {
            (0, true)
        } else {
            (common, false)
        }
    }

    /// Adds an entry. Entries must be added in internal-key order.
    #[cfg(any(test, feature = "internals"))]
    pub fn add(&mut self, key: InternalKey<'_>, value: &[u8]) {
        let common = common_prefix(&self.last_key, key.user_key);
        self.add_with_shared_prefix(key, common, value);
    }

    /// Adds an entry. Entries must be added in internal-key order. `common` is the length of the common prefix of
    /// `key.user_key` and [`DataBlockBuilder::last_key`].
    pub(crate) fn add_with_shared_prefix(
        &mut self,
        key: InternalKey<'_>,
        common: usize,
        value: &[u8],
    ) {
        let (shared, restart) = self.next_shared_key_bytes(common);
        if restart {
            // The offset of an entry fits in 32 bits. A block ends with the entry that reaches the target size, and the
            // target size fits in 32 bits.
            let at = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
            self.restarts.push(at);
            self.since_restart = 0;
        }
        self.since_restart += 1;
        self.entries += 1;
        if let Some(tags) = &mut self.tags {
            tags.push(tags::key_hash_tag(key.user_key));
        }
        let suffix = &key.user_key[shared..];
        put_varint(&mut self.bytes, len_u64(shared));
        put_varint(&mut self.bytes, len_u64(suffix.len()));
        self.bytes.push(key.kind as u8);
        put_varint(&mut self.bytes, key.seq.0);
        put_varint(&mut self.bytes, len_u64(value.len()));
        self.bytes.extend_from_slice(suffix);
        self.bytes.extend_from_slice(value);
        self.last_key.truncate(common);
        self.last_key.extend_from_slice(&key.user_key[common..]);
    }

    /// Stores the current position in `split`, so that [`DataBlockBuilder::finish_at_split`] can end the block there.
    /// `last` is the sequence number and the kind of the last added entry.
    pub(crate) fn record_split(&self, split: &mut SplitPoint, last: (SeqNo, EntryKind)) {
        split.at = self.bytes.len();
        split.restarts = self.restarts.len();
        split.entries = self.entries;
        split.last_key.clone_from(&self.last_key);
        split.last = last;
    }

    /// Finishes the block at a split point. Moves the contents before the split point to `out`, and starts a new block
    /// with the entries after it. At least one entry must follow the split point. Calls `on_first` with the key of the
    /// first entry after the split point, and returns the result of `on_first`.
    ///
    /// # Errors
    /// Fails if the entries after the split point cannot be decoded. After an error, the builder must not be used any
    /// more.
    pub(crate) fn finish_at_split<R>(
        &mut self,
        split: &SplitPoint,
        out: &mut Vec<u8>,
        on_first: impl FnOnce(InternalKey<'_>) -> R,
    ) -> Result<R, Malformed> {
        let moved = self.bytes.split_off(split.at);
        self.restarts.truncate(split.restarts);
        self.entries = split.entries;
        if let Some(tags) = &mut self.tags {
            tags.truncate(split.entries);
        }
        self.finish(out);
        let mut key = split.last_key.clone();
        let mut decoder = Decoder::new(&moved);
        let mut on_first = Some(on_first);
        let mut result = None;
        while !decoder.is_empty() {
            let entry = RawEntry::decode(&mut decoder)?;
            let common = common_prefix(&key[entry.shared..], entry.suffix) + entry.shared;
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            let entry_key = InternalKey { user_key: &key, seq: entry.seq, kind: entry.kind };
            if let Some(on_first) = on_first.take() {
                // `add_with_shared_prefix` requires the length of the common prefix with `last_key`. For the first
                // entry after the split point, this is the last key before the split point.
                self.last_key.clone_from(&split.last_key);
                result = Some(on_first(entry_key));
            }
            self.add_with_shared_prefix(entry_key, common, &moved[entry.value_at..entry.next]);
        }
        result.ok_or(Malformed::Truncated {
            what: "entry after a split point",
            needed: 1,
            found: 0,
        })
    }

    /// Finishes the block. Moves its contents to `out` and starts an empty block.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        match (self.tag_counts(self.entries, self.bytes.len()), &self.tags) {
            (Some(tag_counts), Some(tags)) => {
                self.bytes[0] = ENCODING_TAGGED;
                tag_counts.append_tags_and_restarts(tags, &self.restarts, &mut self.bytes);
            }
            _ => {
                let mut count = 0u32;
                for &restart in &self.restarts {
                    put_u32(&mut self.bytes, restart);
                    count += 1;
                }
                put_u32(&mut self.bytes, count);
            }
        }
        out.clear();
        out.append(&mut self.bytes);
        self.bytes.push(ENCODING_PREFIX);
        self.restarts.clear();
        self.entries = 0;
        if let Some(tags) = &mut self.tags {
            tags.clear();
        }
        self.since_restart = 0;
    }
}

/// A position in the block under construction at which the block may end.
#[derive(Clone, Debug)]
pub struct SplitPoint {
    at: usize,
    restarts: usize,
    entries: usize,
    /// User key of the entry before the split point.
    last_key: Vec<u8>,
    /// Sequence number and kind of the entry before the split point.
    last: (SeqNo, EntryKind),
}

impl Default for SplitPoint {
    fn default() -> SplitPoint {
        SplitPoint {
            at: 0,
            restarts: 0,
            entries: 0,
            last_key: Vec::new(),
            last: (SeqNo::ZERO, EntryKind::Put),
        }
    }
}

impl SplitPoint {
    /// Returns the key of the last entry before the split point.
    pub(crate) fn last_key(&self) -> InternalKey<'_> {
        let (seq, kind) = self.last;
        InternalKey { user_key: &self.last_key, seq, kind }
    }
}
