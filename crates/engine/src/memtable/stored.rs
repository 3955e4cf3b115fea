//! What stands beside a key in the skip list.

use bytes::Bytes;

use crate::key::Kind;
use crate::merge::{CHAIN_BYTES_MAX, CHAIN_OPERANDS_MAX};
use crate::sync::OnceLock;

/// Operands that a reader has to gather from one of them on, as far as the memtable knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chain {
    operands: u32,
    bytes: u64,
}

impl Chain {
    /// As if there were so many operands below.
    pub(super) fn above(operands: u32) -> Chain {
        let share = CHAIN_BYTES_MAX / u64::from(CHAIN_OPERANDS_MAX);
        Chain { operands, bytes: u64::from(operands) * share }
    }

    /// With one more operand of so many bytes; and whether it is long by now. Then it counts as
    /// folded: should that fail, it is tried again after as many more, not with every operand.
    pub(super) fn with(self, bytes: usize) -> (Chain, bool) {
        let bytes = self.bytes + bytes as u64;
        let chain = Chain { operands: self.operands + 1, bytes };
        if chain.operands >= CHAIN_OPERANDS_MAX || chain.bytes >= CHAIN_BYTES_MAX {
            (Chain::default(), true)
        } else {
            (chain, false)
        }
    }
}

/// A value as it was written, or an operand with room for what it folds to.
#[derive(Debug)]
pub(super) enum Stored {
    Value(Bytes),
    /// Boxed, so that puts do not pay for it.
    Operand(Box<Operand>),
}

const _: () = assert!(size_of::<Stored>() == size_of::<Bytes>(), "puts pay nothing");

#[derive(Debug)]
pub(super) struct Operand {
    bytes: Bytes,
    chain: Chain,
    /// Never in a file: a flush takes it for a put or a delete.
    folded: OnceLock<(Kind, Bytes)>,
}

impl Stored {
    pub(super) fn operand(bytes: Bytes, chain: Chain) -> Stored {
        Stored::Operand(Box::new(Operand { bytes, chain, folded: OnceLock::new() }))
    }

    /// What a newer operand of the key is added to.
    pub(super) fn chain(&self) -> Chain {
        match self {
            Stored::Operand(operand) if operand.folded.get().is_none() => operand.chain,
            _ => Chain::default(),
        }
    }

    pub(super) fn is_folded(&self) -> bool {
        matches!(self, Stored::Operand(operand) if operand.folded.get().is_some())
    }

    /// Kind and value as a reader is to see them: written with `kind`, and folded if `folded` says
    /// that it saw it so.
    pub(super) fn shown(&self, kind: Kind, folded: bool) -> (Kind, &Bytes) {
        match self {
            Stored::Value(value) => (kind, value),
            Stored::Operand(operand) => match operand.folded.get() {
                Some((kind, value)) if folded => (*kind, value),
                _ => (kind, &operand.bytes),
            },
        }
    }

    /// Sets the folded value, once; returns its bytes.
    pub(super) fn set_folded(&self, value: Option<Bytes>) -> u64 {
        let Stored::Operand(operand) = self else { return 0 };
        let folded = value.map_or((Kind::Delete, Bytes::new()), |value| (Kind::Put, value));
        let bytes = folded.1.len() as u64;
        // Its place is counted with the operand.
        if operand.folded.set(folded).is_ok() { bytes } else { 0 }
    }
}
