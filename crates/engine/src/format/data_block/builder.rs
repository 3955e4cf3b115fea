//! Writing a data block, and where it may end.

use lsmx_base::coding::{Decoder, len_u64, put_u32, put_varint, varint_len};
use lsmx_base::key::{EntryKind, InternalKey, SeqNo};
use lsmx_base::malformed::Malformed;

use super::tags::{self, Tail};
use super::{CODING_PREFIX, CODING_TAGGED, RawEntry, common_prefix};

/// Writes a data block.
#[derive(Debug)]
pub(crate) struct DataBlockBuilder {
    bytes: Vec<u8>,
    restarts: Vec<u32>,
    /// One for each entry, if the block is to have them where they pay.
    tags: Option<Vec<u8>>,
    entries: usize,
    restart_interval: u32,
    since_restart: u32,
    /// Of the entry before, be it in the block before.
    last_key: Vec<u8>,
}

impl DataBlockBuilder {
    /// An empty block that starts afresh every `restart_interval` entries, and has tags where they pay
    /// if `tagged`.
    pub(crate) fn new(restart_interval: u32, tagged: bool) -> DataBlockBuilder {
        DataBlockBuilder {
            bytes: vec![CODING_PREFIX],
            restarts: Vec::new(),
            tags: tagged.then(Vec::new),
            entries: 0,
            restart_interval,
            since_restart: 0,
            last_key: Vec::new(),
        }
    }

    /// The highest coding that its blocks may have.
    pub(crate) fn coding(&self) -> u8 {
        if self.tags.is_some() { CODING_TAGGED } else { CODING_PREFIX }
    }

    /// Whether no entry was added since the last [`DataBlockBuilder::finish`].
    pub(crate) fn is_empty(&self) -> bool {
        self.restarts.is_empty()
    }

    /// Bytes of the contents, were they finished now.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len() + self.tail_bytes(self.entries, self.bytes.len(), self.restarts.len())
    }

    /// Bytes behind so many entries that end at this offset.
    fn tail_bytes(&self, entries: usize, entries_end: usize, restarts: usize) -> usize {
        match self.tail(entries, entries_end) {
            Some(tail) => tail.bytes(),
            None => size_of::<u32>() * (restarts + 1),
        }
    }

    fn tail(&self, entries: usize, entries_end: usize) -> Option<Tail> {
        self.tags.as_ref().and_then(|_| Tail::of(entries, entries_end, self.restart_interval))
    }

    /// The user key of the last entry that was added, in this block or the one before.
    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    /// Bytes of the contents, were they finished after this entry, whose user key has its first
    /// `common` bytes in common with the last one.
    pub(crate) fn bytes_with(&self, key: InternalKey<'_>, common: usize, value: &[u8]) -> usize {
        let (shared, restart) = self.shared(common);
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
        entries_end + self.tail_bytes(self.entries + 1, entries_end, restarts)
    }

    fn shared(&self, common: usize) -> (usize, bool) {
        if self.is_empty() || self.since_restart == self.restart_interval {
            (0, true)
        } else {
            (common, false)
        }
    }

    /// Adds an entry, which is larger than the one before.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn add(&mut self, key: InternalKey<'_>, value: &[u8]) {
        let common = common_prefix(&self.last_key, key.user_key);
        self.add_with(key, common, value);
    }

    /// Adds an entry, which is larger than the one before and has the first `common` bytes of its
    /// user key in common with that.
    pub(crate) fn add_with(&mut self, key: InternalKey<'_>, common: usize, value: &[u8]) {
        let (shared, restart) = self.shared(common);
        if restart {
            // A block closes before its entries pass its target size by much, which fits in 32 bits; only
            // the last entry may be long, and it starts before that.
            let at = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
            self.restarts.push(at);
            self.since_restart = 0;
        }
        self.since_restart += 1;
        self.entries += 1;
        if let Some(tags) = &mut self.tags {
            tags.push(tags::tag(key.user_key));
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

    /// Remembers that the block may end before the entry that is added next.
    pub(crate) fn mark(&self, mark: &mut Mark, last: (SeqNo, EntryKind)) {
        mark.at = self.bytes.len();
        mark.restarts = self.restarts.len();
        mark.entries = self.entries;
        mark.last_key.clone_from(&self.last_key);
        mark.last = last;
    }

    /// Puts the contents up to a mark into `out`, and starts a block with the entries from there on, of
    /// which there must be one. Returns what `ask` makes of the first.
    ///
    /// # Errors
    /// When these entries cannot be read back. Nothing of the block is to be used then.
    pub(crate) fn finish_at<R>(
        &mut self,
        mark: &Mark,
        out: &mut Vec<u8>,
        ask: impl FnOnce(InternalKey<'_>) -> R,
    ) -> Result<R, Malformed> {
        let tail = self.bytes.split_off(mark.at);
        self.restarts.truncate(mark.restarts);
        self.entries = mark.entries;
        if let Some(tags) = &mut self.tags {
            tags.truncate(mark.entries);
        }
        self.finish(out);
        let mut key = mark.last_key.clone();
        let mut decoder = Decoder::new(&tail);
        let mut ask = Some(ask);
        let mut answer = None;
        while !decoder.is_empty() {
            let entry = RawEntry::decode(&mut decoder)?;
            let common = common_prefix(&key[entry.shared..], entry.suffix) + entry.shared;
            key.truncate(entry.shared);
            key.extend_from_slice(entry.suffix);
            let entry_key = InternalKey { user_key: &key, seq: entry.seq, kind: entry.kind };
            if let Some(ask) = ask.take() {
                // What the block before ended with, to share bytes with.
                self.last_key.clone_from(&mark.last_key);
                answer = Some(ask(entry_key));
            }
            self.add_with(entry_key, common, &tail[entry.value_at..entry.next]);
        }
        answer.ok_or(Malformed::Truncated { what: "entry after a mark", needed: 1, found: 0 })
    }

    /// Puts the contents into `out` and starts an empty block.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        match (self.tail(self.entries, self.bytes.len()), &self.tags) {
            (Some(tail), Some(tags)) => {
                self.bytes[0] = CODING_TAGGED;
                tail.put(tags, &self.restarts, &mut self.bytes);
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
        self.bytes.push(CODING_PREFIX);
        self.restarts.clear();
        self.entries = 0;
        if let Some(tags) = &mut self.tags {
            tags.clear();
        }
        self.since_restart = 0;
    }
}

/// A place where a block that is being written may end.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    at: usize,
    restarts: usize,
    entries: usize,
    /// User key of the entry before.
    last_key: Vec<u8>,
    /// Its number and kind.
    last: (SeqNo, EntryKind),
}

impl Default for Mark {
    fn default() -> Mark {
        Mark {
            at: 0,
            restarts: 0,
            entries: 0,
            last_key: Vec::new(),
            last: (SeqNo::ZERO, EntryKind::Put),
        }
    }
}

impl Mark {
    /// The last entry before it.
    pub(crate) fn last(&self) -> InternalKey<'_> {
        let (seq, kind) = self.last;
        InternalKey { user_key: &self.last_key, seq, kind }
    }
}
