//! What the operand store beside a tree has to say of a key.
//!
//! Of a key the store's operands are newer than the tree's, and those that are not newer than what the
//! tree has of it are void: so they come between what memtables hold and what tables hold. The tables
//! are asked first, for a lookup that may not read counts nothing if it would have to, and the store
//! counts for itself.

use lsmx_base::key::{EntryKind, SeqNo};

use crate::error::Result;
use crate::iter::operand_fold::Fold;
use crate::lookup::point::Reads;
use crate::operand_store::{OperandReadTier, OperandView};

impl From<Reads> for OperandReadTier {
    fn from(reads: Reads) -> OperandReadTier {
        match reads {
            Reads::Storage | Reads::StorageUncached | Reads::Tables => OperandReadTier::Storage,
            Reads::Memory => OperandReadTier::Memory,
        }
    }
}

/// Adds to what memtables hold of a key what the store holds and then what tables hold, of which
/// `newest` is the newest number, that of a range delete included.
///
/// # Errors
/// When the store cannot be read; [`Error::WouldBlock`](crate::Error::WouldBlock).
pub(crate) fn between(
    fold: &mut Fold,
    view: &dyn OperandView,
    user_key: &[u8],
    snapshot: SeqNo,
    reads: Reads,
    (tables, newest): (Fold, Option<SeqNo>),
) -> Result<()> {
    let mut found = Vec::new();
    view.read_operands(user_key, snapshot, reads.into(), &mut found)?;
    for operand in found {
        if newest < Some(operand.last) {
            fold.older(operand.last, EntryKind::Merge, operand.bytes);
        }
    }
    fold.append(tables);
    Ok(())
}
