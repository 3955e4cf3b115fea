//! Walks the operands of a view, bucket by bucket; a bucket is read at once.

use std::cmp::Reverse;

use lsmx::cursor::Cursor;
use lsmx::operand_store::OperandReads;
use lsmx::{Result, SeqNo, Slice};
use lsmx_base::key::{EntryKind, InternalKey};
use lsmx_base::sync::Arc;

use crate::bucket::Bucket;
use crate::bucket::reading::Reading;
use crate::format::record::Record;
use crate::view::View;

/// A cursor over records in memory, in order.
#[derive(Debug)]
pub(crate) struct RecordCursor {
    records: Vec<Record>,
    /// Where it stands; none: nowhere.
    index: Option<usize>,
}

impl RecordCursor {
    pub(crate) fn new(records: Vec<Record>) -> RecordCursor {
        RecordCursor { records, index: None }
    }

    /// First record that is not before this place.
    fn position(&self, user_key: &[u8], seq: SeqNo) -> usize {
        let sought = (user_key, Reverse(seq));
        self.records.partition_point(|record| (&*record.key, Reverse(record.last)) < sought)
    }

    fn stand_on(&mut self, index: Option<usize>) {
        self.index = index.filter(|index| *index < self.records.len());
    }

    fn record(&self) -> &Record {
        // Callers ask `valid` first, as the trait demands.
        &self.records[self.index.unwrap_or(usize::MAX)]
    }
}

impl Cursor for RecordCursor {
    fn valid(&self) -> bool {
        self.index.is_some()
    }

    fn key(&self) -> InternalKey<'_> {
        let Record { key, last, .. } = self.record();
        InternalKey { user_key: key, seq: *last, kind: EntryKind::Merge }
    }

    fn value(&self) -> &[u8] {
        self.record().operand.as_deref().unwrap_or_default()
    }

    fn value_slice(&self) -> Slice {
        self.record().operand.clone().map(Slice::new).unwrap_or_default()
    }

    fn first(&mut self) -> Result<()> {
        self.stand_on(Some(0));
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        self.stand_on(self.records.len().checked_sub(1));
        Ok(())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.stand_on(Some(self.position(user_key, seq)));
        Ok(())
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.stand_on(self.position(user_key, seq).checked_sub(1));
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.stand_on(self.index.map(|index| index + 1));
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        self.stand_on(self.index.and_then(|index| index.checked_sub(1)));
        Ok(())
    }
}

/// A cursor over the operands that a reader at a number sees.
#[derive(Debug)]
pub(crate) struct ViewCursor {
    view: Arc<View>,
    at: SeqNo,
    reads: OperandReads,
    /// What it reads counts as a job's.
    of_job: bool,
    /// Bucket that is at hand.
    place: Option<usize>,
    inside: RecordCursor,
}

impl ViewCursor {
    pub(crate) fn new(view: Arc<View>, at: SeqNo, reads: OperandReads) -> ViewCursor {
        let inside = RecordCursor::new(Vec::new());
        ViewCursor { view, at, reads, of_job: false, place: None, inside }
    }

    /// Counts what it reads as a job's.
    pub(crate) fn of_job(self) -> ViewCursor {
        ViewCursor { of_job: true, ..self }
    }

    /// Has a bucket at hand, and stands nowhere in it.
    fn load(&mut self, place: usize) -> Result<()> {
        self.inside.index = None;
        if self.place == Some(place) {
            return Ok(());
        }
        self.place = None;
        self.inside.records = match self.view.buckets[place].is_empty() {
            true => Vec::new(),
            false => {
                let shared = &self.view.shared;
                let counts = &*shared.table.place.counts;
                let mut reading = match self.of_job {
                    true => Reading::of_job(&shared.counters.bucket_read_bytes),
                    false => Reading::of_user(self.reads, counts),
                };
                let all = |bucket: &Bucket| bucket.all_records(&mut reading);
                let records = self.view.read_bucket(place, all)?;
                if reading.calls == 0 && !self.of_job {
                    counts.hit();
                }
                self.visible(&records)
            }
        };
        self.place = Some(place);
        Ok(())
    }

    /// Operands of `records`, which are in order, that the reader sees.
    fn visible(&self, records: &[Record]) -> Vec<Record> {
        let mut visible: Vec<Record> = Vec::with_capacity(records.len());
        for group in records.chunk_by(|a, b| a.key == b.key) {
            let mut anchor = self.view.range_anchor(&group[0].key, self.at);
            for record in group.iter().filter(|record| record.last <= self.at) {
                match record.operand {
                    None => anchor = anchor.max(record.last),
                    Some(_) if record.last >= anchor => visible.push(record.clone()),
                    Some(_) => {}
                }
            }
        }
        visible
    }

    /// Stands on the first entry of the bucket at `place` or of one behind it.
    fn first_from(&mut self, place: usize) -> Result<()> {
        self.inside.index = None;
        for place in place..self.view.buckets.len() {
            self.load(place)?;
            self.inside.first()?;
            if self.inside.valid() {
                break;
            }
        }
        Ok(())
    }

    /// Stands on the last entry of a bucket before `end`.
    fn last_before(&mut self, end: usize) -> Result<()> {
        self.inside.index = None;
        for place in (0..end).rev() {
            self.load(place)?;
            self.inside.last()?;
            if self.inside.valid() {
                break;
            }
        }
        Ok(())
    }
}

impl Cursor for ViewCursor {
    fn valid(&self) -> bool {
        self.inside.valid()
    }

    fn key(&self) -> InternalKey<'_> {
        self.inside.key()
    }

    fn value(&self) -> &[u8] {
        self.inside.value()
    }

    fn value_slice(&self) -> Slice {
        self.inside.value_slice()
    }

    fn first(&mut self) -> Result<()> {
        self.first_from(0)
    }

    fn last(&mut self) -> Result<()> {
        self.last_before(self.view.buckets.len())
    }

    fn seek(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.inside.index = None;
        let Some(place) = self.view.place_of(user_key) else { return Ok(()) };
        self.load(place)?;
        self.inside.seek(user_key, seq)?;
        match self.inside.valid() {
            true => Ok(()),
            false => self.first_from(place + 1),
        }
    }

    fn seek_before(&mut self, user_key: &[u8], seq: SeqNo) -> Result<()> {
        self.inside.index = None;
        let Some(place) = self.view.place_of(user_key) else { return Ok(()) };
        self.load(place)?;
        self.inside.seek_before(user_key, seq)?;
        match self.inside.valid() {
            true => Ok(()),
            false => self.last_before(place),
        }
    }

    fn next(&mut self) -> Result<()> {
        self.inside.next()?;
        match (self.inside.valid(), self.place) {
            (false, Some(place)) => self.first_from(place + 1),
            _ => Ok(()),
        }
    }

    fn prev(&mut self) -> Result<()> {
        self.inside.prev()?;
        match (self.inside.valid(), self.place) {
            (false, Some(place)) => self.last_before(place),
            _ => Ok(()),
        }
    }
}
