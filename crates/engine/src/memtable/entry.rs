//! Entries of a memtable.
//!
//! A merge operand can get a *folded value*: the value that results from combining the operand with all older operands
//! and the older value of its key.

use bytes::Bytes;
use lsmx_base::key::{EntryKind, InternalKey, KeyPrefix, SeqNo};
use lsmx_base::sync::OnceLock;

use crate::merge_operator::{CHAIN_BYTES_MAX, CHAIN_OPERANDS_MAX};

/// Number and total bytes of the operands that a reader must combine to get the value of a key. The memtable does not
/// know the operands in older data, so their number is an assumption of the caller.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OperandChain {
    operands: u32,
    bytes: u64,
}

impl OperandChain {
    /// Creates a chain of `operands` operands in older data. Assumes that each has the average size at which both
    /// limits of a chain are reached at the same time.
    pub(crate) fn with_operands(operands: u32) -> OperandChain {
        let operand_bytes = CHAIN_BYTES_MAX / u64::from(CHAIN_OPERANDS_MAX);
        OperandChain { operands, bytes: u64::from(operands) * operand_bytes }
    }

    /// Adds an operand of `bytes` bytes. Returns the new chain, and whether the operands of the key should be folded.
    ///
    /// If the operands should be folded, the returned chain is empty. If the fold then fails, the next fold is
    /// requested only after the limit is reached again.
    pub(crate) fn add_operand(self, bytes: usize) -> (OperandChain, bool) {
        let bytes = self.bytes + bytes as u64;
        let chain = OperandChain { operands: self.operands + 1, bytes };
        if chain.operands >= CHAIN_OPERANDS_MAX || chain.bytes >= CHAIN_BYTES_MAX {
            (OperandChain::default(), true)
        } else {
            (chain, false)
        }
    }
}

/// Contents of an entry: the user key, followed by the value as written.
#[derive(Debug)]
enum EntryData {
    Plain(Bytes),
    /// Boxed, so that entries other than operands need no additional memory.
    Operand(Box<OperandData>),
}

const _: () = assert!(size_of::<EntryData>() == size_of::<Bytes>(), "a put has no overhead");

/// Additional bytes of an operand compared with a put, including the header of the allocator.
pub(crate) const OPERAND_OVERHEAD_BYTES: u64 =
    (size_of::<OperandData>() + 2 * size_of::<usize>()) as u64;

#[derive(Debug)]
struct OperandData {
    data: Bytes,
    chain: OperandChain,
    /// Folded value with its kind, put or delete. Set at most once. A flush writes this value instead of the operand.
    folded: OnceLock<(EntryKind, Bytes)>,
}

/// An internal key and its value.
#[derive(Debug)]
pub(crate) struct MemtableEntry {
    data: EntryData,
    key_bytes: u32,
    /// Sequence number and kind, see [`entry_tag`]. Entries of one user key are sorted by descending tag.
    tag: u64,
}

/// Metadata of a new entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryAttributes {
    pub(crate) seq: SeqNo,
    pub(crate) kind: EntryKind,
    /// Operand chain that ends with this entry. `None` for kinds other than merge operands.
    pub(crate) chain: Option<OperandChain>,
}

/// Target of a search: a position in the sort order of entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeekTarget<'a> {
    pub(crate) prefix: KeyPrefix,
    pub(crate) user_key: &'a [u8],
    pub(crate) tag: u64,
}

impl<'a> SeekTarget<'a> {
    /// Creates a target for the newest entry of `user_key` with a sequence number of at most `seq`.
    pub(crate) fn new(user_key: &'a [u8], seq: SeqNo) -> SeekTarget<'a> {
        SeekTarget {
            prefix: KeyPrefix::new(user_key),
            user_key,
            tag: entry_tag(seq, EntryKind::MAX),
        }
    }

    /// Returns the seek target of the next smaller tag of the same user key.
    pub(crate) fn after(self) -> SeekTarget<'a> {
        // The subtraction does not overflow, because sequence numbers are at least 1.
        SeekTarget { tag: self.tag - 1, ..self }
    }
}

/// Returns the tag of an entry: the sequence number in the upper 56 bits, the kind in the lower eight bits. Entries of
/// one user key are sorted by descending tag, so that the newest entry is first.
pub(crate) fn entry_tag(seq: SeqNo, kind: EntryKind) -> u64 {
    seq.0 << 8 | kind as u64
}

impl MemtableEntry {
    /// Creates an entry. The first `key_bytes` bytes of `data` are the user key, the other bytes are the value.
    pub(crate) fn new(data: Bytes, key_bytes: usize, meta: EntryAttributes) -> MemtableEntry {
        let data = match meta.chain {
            None => EntryData::Plain(data),
            Some(chain) => {
                EntryData::Operand(Box::new(OperandData { data, chain, folded: OnceLock::new() }))
            }
        };
        // The conversion succeeds, because a key is part of a commit, and a commit is smaller than 4 GiB.
        let key_bytes = u32::try_from(key_bytes).expect("a key is smaller than 4 GiB");
        MemtableEntry { data, key_bytes, tag: entry_tag(meta.seq, meta.kind) }
    }

    #[inline]
    fn bytes(&self) -> &Bytes {
        match &self.data {
            EntryData::Plain(data) => data,
            EntryData::Operand(operand) => &operand.data,
        }
    }

    #[inline]
    pub(crate) fn user_key(&self) -> &[u8] {
        &self.bytes()[..self.key_bytes as usize]
    }

    pub(crate) fn user_key_bytes(&self) -> Bytes {
        self.bytes().slice(..self.key_bytes as usize)
    }

    #[inline]
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    pub(crate) fn seq(&self) -> SeqNo {
        SeqNo(self.tag >> 8)
    }

    /// Returns the kind as written, without regard to a folded value.
    fn kind(&self) -> EntryKind {
        // The byte was converted from an `EntryKind`, so the conversion back always succeeds.
        EntryKind::from_u8((self.tag & 0xff) as u8).unwrap_or(EntryKind::Delete)
    }

    pub(crate) fn seek_target(&self) -> SeekTarget<'_> {
        SeekTarget {
            prefix: KeyPrefix::new(self.user_key()),
            user_key: self.user_key(),
            tag: self.tag,
        }
    }

    /// Returns the operand chain that ends with this entry. The chain is empty for puts, deletes and folded operands.
    pub(crate) fn chain(&self) -> OperandChain {
        match &self.data {
            EntryData::Operand(operand) if operand.folded.get().is_none() => operand.chain,
            _ => OperandChain::default(),
        }
    }

    /// Returns whether the entry has a folded value.
    #[inline]
    pub(crate) fn is_folded(&self) -> bool {
        matches!(&self.data, EntryData::Operand(operand) if operand.folded.get().is_some())
    }

    /// Returns the kind and the folded value if `is_folded` is set and the entry has a folded value.
    #[inline]
    fn folded_value(&self, is_folded: bool) -> Option<&(EntryKind, Bytes)> {
        match &self.data {
            EntryData::Operand(operand) if is_folded => operand.folded.get(),
            _ => None,
        }
    }

    /// Returns the internal key.
    ///
    /// A reader calls [`MemtableEntry::is_folded`] once, and passes the result to this method and to the one that returns
    /// the value. So both agree, even if another thread sets the folded value between the two calls.
    pub(crate) fn internal_key(&self, is_folded: bool) -> InternalKey<'_> {
        let kind = self.folded_value(is_folded).map_or_else(|| self.kind(), |(kind, _)| *kind);
        InternalKey { user_key: self.user_key(), seq: self.seq(), kind }
    }

    /// Returns the folded value if `is_folded` is set, otherwise the value as written.
    pub(crate) fn value(&self, is_folded: bool) -> &[u8] {
        match self.folded_value(is_folded) {
            Some((_, value)) => value,
            None => &self.bytes()[self.key_bytes as usize..],
        }
    }

    /// Like [`MemtableEntry::value`], as a reference-counted slice.
    pub(crate) fn value_bytes(&self, is_folded: bool) -> Bytes {
        match self.folded_value(is_folded) {
            Some((_, value)) => value.clone(),
            None => self.bytes().slice(self.key_bytes as usize..),
        }
    }

    /// Sets the folded value. `None` means that the key is deleted. Returns the length of the folded value in bytes.
    /// Returns `None` if the entry already has a folded value or is not an operand.
    pub(crate) fn set_folded_value(&self, value: Option<Bytes>) -> Option<u64> {
        let EntryData::Operand(operand) = &self.data else { return None };
        let folded =
            value.map_or((EntryKind::Delete, Bytes::new()), |value| (EntryKind::Put, value));
        let bytes = folded.1.len() as u64;
        // The returned number excludes overhead, because `OPERAND_OVERHEAD_BYTES` is counted at the insert.
        operand.folded.set(folded).is_ok().then_some(bytes)
    }
}
