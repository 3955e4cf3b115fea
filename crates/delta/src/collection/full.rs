//! Collection that moves all operands of a store to the tree.

use lsmx::Result;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{OperandCollection, OperandReadTier, PreparedVersion};
use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::sync::Ordering;

use super::rewrite::RewrittenEntry;
use crate::cursor::OperandCursor;
use crate::format::frame::FrameKind;
use crate::format::log::{CollectionEnd, put_collection_end};
use crate::state::StoreState;
use crate::view::StoreView;

/// Moves all operands of a store to the tree.
#[derive(Debug)]
pub(crate) struct FullCollection<'a> {
    state: &'a StoreState,
    epoch: u64,
    /// `through` of the view at the call of `leaving`.
    moved_at: Option<SeqNo>,
}

impl<'a> FullCollection<'a> {
    pub(crate) fn start(state: &'a StoreState) -> Result<FullCollection<'a>> {
        state.load_base()?;
        Ok(FullCollection { state, epoch: state.epoch(), moved_at: None })
    }

    fn try_prepare(self) -> Result<PreparedVersion> {
        let FullCollection { state, epoch, moved_at } = self;
        let tip = state.load_base()?;
        if state.epoch() != epoch || moved_at != Some(tip.through) {
            let reason = "the operands were not read, or the store has changed since";
            return Err(state.collection_error(reason));
        }
        let view = StoreView { through: tip.through, ..StoreView::empty(state.resources.clone()) };
        let removed_ids: Vec<u64> = tip.buckets.iter().map(|bucket| bucket.id).collect();
        let moved_count = len_u64(removed_ids.len());
        let end = CollectionEnd { new_count: 0, removed_ids, range_markers: Vec::new() };
        let token = state.append_to_log(&tip, false, |frames| {
            frames.put(FrameKind::CollectionEnd, |out| put_collection_end(out, &end))
        })?;
        state.resources.counters.to_tree.fetch_add(moved_count, Ordering::Relaxed);
        let view = state.install(token, view, Box::new(Vec::<RewrittenEntry>::new()));
        Ok(PreparedVersion { token, view })
    }
}

impl OperandCollection for FullCollection<'_> {
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        let tip = self.state.load_base()?;
        self.moved_at = Some(tip.through);
        let mut cursor = OperandCursor::from_view(tip, SeqNo::MAX, OperandReadTier::Storage, true);
        cursor.first()?;
        Ok(cursor.valid().then(|| Box::new(cursor) as Box<dyn Cursor>))
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let state = self.state;
        self.try_prepare().inspect_err(|_| state.mark_stale())
    }
}
