//! An entry of a memtable.
//!
//! A merge operand has room for a *folded value*: what its key is worth at its number.

use bytes::Bytes;
use lsmx_base::key::{EntryKind, InternalKey, KeyPrefix, SeqNo};
use lsmx_base::sync::OnceLock;

use crate::memtable::tree::Target;
use crate::merge_operator::{CHAIN_BYTES_MAX, CHAIN_OPERANDS_MAX};

/// Operands that a reader has to gather from one of them on, as far as the memtable knows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    operands: u32,
    bytes: u64,
}

impl Chain {
    /// As if there were so many operands below.
    pub(crate) fn above(operands: u32) -> Chain {
        let share = CHAIN_BYTES_MAX / u64::from(CHAIN_OPERANDS_MAX);
        Chain { operands, bytes: u64::from(operands) * share }
    }

    /// With one more operand of so many bytes; and whether it is long by now. Then it counts as
    /// folded: should that fail, it is tried again after as many more, not with every operand.
    pub(crate) fn with(self, bytes: usize) -> (Chain, bool) {
        let bytes = self.bytes + bytes as u64;
        let chain = Chain { operands: self.operands + 1, bytes };
        if chain.operands >= CHAIN_OPERANDS_MAX || chain.bytes >= CHAIN_BYTES_MAX {
            (Chain::default(), true)
        } else {
            (chain, false)
        }
    }
}

/// Key and value as they were written, one behind the other.
#[derive(Debug)]
enum Stored {
    Plain(Bytes),
    /// Boxed, so that puts do not pay for it.
    Operand(Box<Operand>),
}

const _: () = assert!(size_of::<Stored>() == size_of::<Bytes>(), "puts pay nothing");

/// Bytes that an operand takes besides what a put takes; the allocator adds a header.
pub(crate) const OPERAND_BYTES: u64 = (size_of::<Operand>() + 2 * size_of::<usize>()) as u64;

#[derive(Debug)]
struct Operand {
    data: Bytes,
    chain: Chain,
    /// Never in a file: a flush takes it for a put or a delete.
    folded: OnceLock<(EntryKind, Bytes)>,
}

/// An internal key and its value.
#[derive(Debug)]
pub(crate) struct Entry {
    stored: Stored,
    key_bytes: u32,
    /// Sequence number and kind, so that larger means earlier in the order of one user key.
    tag: u64,
}

/// What an entry is besides key and value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    pub(crate) seq: SeqNo,
    pub(crate) kind: EntryKind,
    /// Of an operand.
    pub(crate) chain: Option<Chain>,
}

/// Larger means earlier in the order of one user key, so the newest comes first.
pub(crate) fn tag(seq: SeqNo, kind: EntryKind) -> u64 {
    seq.0 << 8 | kind as u64
}

impl Entry {
    /// An entry whose key are the first `key_bytes` of `data`, and whose value is the rest.
    pub(crate) fn new(data: Bytes, key_bytes: usize, label: Label) -> Entry {
        let stored = match label.chain {
            None => Stored::Plain(data),
            Some(chain) => {
                Stored::Operand(Box::new(Operand { data, chain, folded: OnceLock::new() }))
            }
        };
        // No payload of a commit has more.
        let key_bytes = u32::try_from(key_bytes).expect("a key has less than 4 GiB");
        Entry { stored, key_bytes, tag: tag(label.seq, label.kind) }
    }

    #[inline]
    fn data(&self) -> &Bytes {
        match &self.stored {
            Stored::Plain(data) => data,
            Stored::Operand(operand) => &operand.data,
        }
    }

    #[inline]
    pub(crate) fn user_key(&self) -> &[u8] {
        &self.data()[..self.key_bytes as usize]
    }

    pub(crate) fn user_key_bytes(&self) -> Bytes {
        self.data().slice(..self.key_bytes as usize)
    }

    #[inline]
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }

    pub(crate) fn seq(&self) -> SeqNo {
        SeqNo(self.tag >> 8)
    }

    /// The kind that it was written with.
    fn kind(&self) -> EntryKind {
        // The byte came from a `EntryKind`.
        EntryKind::from_u8((self.tag & 0xff) as u8).unwrap_or(EntryKind::Delete)
    }

    pub(crate) fn target(&self) -> Target<'_> {
        Target { prefix: KeyPrefix::new(self.user_key()), user_key: self.user_key(), tag: self.tag }
    }

    /// What a newer operand of the key is added to.
    pub(crate) fn chain(&self) -> Chain {
        match &self.stored {
            Stored::Operand(operand) if operand.folded.get().is_none() => operand.chain,
            _ => Chain::default(),
        }
    }

    /// Whether it has its folded value.
    #[inline]
    pub(crate) fn is_folded(&self) -> bool {
        matches!(&self.stored, Stored::Operand(operand) if operand.folded.get().is_some())
    }

    /// EntryKind and value that it folds to, where a reader saw it so.
    #[inline]
    fn folded(&self, seen: bool) -> Option<&(EntryKind, Bytes)> {
        match &self.stored {
            Stored::Operand(operand) if seen => operand.folded.get(),
            _ => None,
        }
    }

    /// Its key as a reader is to see it, who saw it `folded` or not.
    pub(crate) fn internal_key(&self, folded: bool) -> InternalKey<'_> {
        let kind = self.folded(folded).map_or_else(|| self.kind(), |(kind, _)| *kind);
        InternalKey { user_key: self.user_key(), seq: self.seq(), kind }
    }

    /// Its value as that reader is to see it.
    pub(crate) fn value(&self, folded: bool) -> &[u8] {
        match self.folded(folded) {
            Some((_, value)) => value,
            None => &self.data()[self.key_bytes as usize..],
        }
    }

    /// [`Entry::value`] to keep.
    pub(crate) fn value_bytes(&self, folded: bool) -> Bytes {
        match self.folded(folded) {
            Some((_, value)) => value.clone(),
            None => self.data().slice(self.key_bytes as usize..),
        }
    }

    /// Sets the folded value, once; returns its bytes.
    pub(crate) fn set_folded(&self, value: Option<Bytes>) -> u64 {
        let Stored::Operand(operand) = &self.stored else { return 0 };
        let folded =
            value.map_or((EntryKind::Delete, Bytes::new()), |value| (EntryKind::Put, value));
        let bytes = folded.1.len() as u64;
        // Its place is counted with the operand.
        if operand.folded.set(folded).is_ok() { bytes } else { 0 }
    }
}
