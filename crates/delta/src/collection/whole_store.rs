//! Collection that moves all operands of a store to the tree.

use lsmx::Result;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{OperandCollection, OperandReadTier, PreparedVersion};
use lsmx_base::key::SeqNo;

use super::rewrite::RewrittenEntry;
use crate::cursor::OperandCursor;
use crate::format::frame::FrameKind;
use crate::format::log::{CollectionEnd, put_collection_end};
use crate::state::StoreState;
use crate::view::{StoreView, increase_counter};

/// Collection that moves all operands of a store to the tree.
#[derive(Debug)]
pub(crate) struct WholeStoreCollection<'a> {
    state: &'a StoreState,
    abandon_count: u64,
    /// Last sequence number of the view that [`OperandCollection::moved_operands`] read. `None` before that call.
    moved_at: Option<SeqNo>,
}

impl<'a> WholeStoreCollection<'a> {
    pub(crate) fn start_collection(state: &'a StoreState) -> Result<WholeStoreCollection<'a>> {
        state.load_base_view()?;
        Ok(WholeStoreCollection { state, abandon_count: state.abandon_count(), moved_at: None })
    }

    fn prepare_version(self) -> Result<PreparedVersion> {
        let WholeStoreCollection { state, abandon_count, moved_at } = self;
        let newest_view = state.load_base_view()?;
        if state.abandon_count() != abandon_count || moved_at != Some(newest_view.through) {
            let reason = "the operands were not read, or the store has changed since";
            return Err(state.changed_input_error(reason));
        }
        let view =
            StoreView { through: newest_view.through, ..StoreView::empty(state.resources.clone()) };
        let removed_ids: Vec<u64> = newest_view.buckets.iter().map(|bucket| bucket.id).collect();
        let moved_count = removed_ids.len();
        let end = CollectionEnd { new_count: 0, removed_ids, range_markers: Vec::new() };
        let token =
            state.append_to_log(&newest_view, false, Some(newest_view.through), |frames| {
                frames.put(FrameKind::CollectionEnd, |out| put_collection_end(out, &end))
            })?;
        increase_counter(&state.resources.counters.to_tree, moved_count);
        let view = state.install(token, view, Box::new(Vec::<RewrittenEntry>::new()));
        Ok(PreparedVersion { token, view })
    }
}

impl OperandCollection for WholeStoreCollection<'_> {
    fn moved_operands(&mut self) -> Result<Option<Box<dyn Cursor>>> {
        let newest_view = self.state.load_base_view()?;
        self.moved_at = Some(newest_view.through);
        let mut cursor =
            OperandCursor::from_view(newest_view, SeqNo::MAX, OperandReadTier::Storage, true);
        cursor.first()?;
        Ok(cursor.valid().then(|| Box::new(cursor) as Box<dyn Cursor>))
    }

    fn prepare(self: Box<Self>) -> Result<PreparedVersion> {
        let state = self.state;
        self.prepare_version().inspect_err(|_| state.mark_base_stale())
    }
}
