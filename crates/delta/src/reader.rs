//! Views as readers have them.

use lsmx::cursor::Cursor;
use lsmx::operand_store::{Operand, OperandFiles, OperandReads, OperandView, Token};
use lsmx::{Result, SeqNo};
use lsmx_base::sync::Arc;

use crate::bucket::reading::Reading;
use crate::cursor::ViewCursor;
use crate::view::View;

impl OperandView for View {
    fn is_empty(&self) -> bool {
        self.buckets.iter().all(|bucket| bucket.is_empty())
    }

    fn may_hold(&self, key: &[u8]) -> bool {
        self.place_of(key).is_some_and(|place| self.buckets[place].may_hold(key))
    }

    fn operands(
        &self,
        key: &[u8],
        at: SeqNo,
        reads: OperandReads,
        found: &mut Vec<Operand>,
    ) -> Result<()> {
        let Some(place) = self.place_of(key) else { return Ok(()) };
        if self.buckets[place].is_empty() {
            return Ok(());
        }
        let counts = &*self.shared.table.place.counts;
        let mut reading = Reading::of_user(reads, counts);
        let operands =
            self.read_bucket(place, |bucket| self.find(bucket, key, at, &mut reading))?;
        if reading.calls == 0 {
            counts.hit();
        }
        found.extend(operands.iter().cloned());
        Ok(())
    }

    fn will_need(&self, key: &[u8], at: SeqNo) {
        if let Some(place) = self.place_of(key)
            && let bucket = &self.buckets[place]
            && !bucket.is_empty()
            && !self.shared.table.has_lost()
        {
            View::will_need(self, bucket, key, at);
        }
    }

    fn cursor(self: Arc<Self>, at: SeqNo, reads: OperandReads) -> Box<dyn Cursor> {
        Box::new(ViewCursor::new(self, at, reads))
    }

    fn keep_open(&self) {
        for file in self.buckets.iter().flat_map(|bucket| bucket.files()) {
            // Whoever reads it gets the error.
            let _ = file.keep_open();
        }
    }

    fn copy_to(&self, target: &dyn OperandFiles) -> Result<Token> {
        crate::copy::copy(self, target)
    }
}
