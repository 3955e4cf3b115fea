//! What a log says, up to a token.
//!
//! Records of deliveries come back into memory, as tails of their buckets: pages that were written
//! since the snapshot are not looked at. So recovery reads one log and no bucket.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsmx::operands::{OperandFileKind, Token};
use lsmx::sync::Arc;
use lsmx::{Malformed, Result, SeqNo};
use xxhash_rust::xxh3::xxh3_64;

use crate::bucket::Bucket;
use crate::bucket::tail::Tail;
use crate::coding::len_u64;
use crate::files::io_error;
use crate::format::frame::FrameKind;
use crate::format::header::{self, HEADER_BYTES, LOG_MAGIC};
use crate::format::log::{self, BucketEntry, RangeAnchor};
use crate::format::record::{self, Record};
use crate::log::{LogReader, Position, open_named};
use crate::view::{Shared, View};

/// What there is at the end of the frames that were taken so far.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    stage: Stage,
    through: SeqNo,
    ranges: Vec<RangeAnchor>,
    buckets: BTreeMap<Bytes, (BucketEntry, Vec<Record>)>,
    smallest: BTreeMap<u64, Bytes>,
    id_max: u64,
    // What waits for the frame that makes it count.
    entries: Vec<BucketEntry>,
    made: Vec<(u64, Bytes)>,
    records: Vec<Record>,
    anchors: Vec<RangeAnchor>,
}

/// How far the beginning of the log has been read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Nothing,
    Named,
    Snapshot,
    Whole,
}

impl Replay {
    /// Takes the next frame.
    pub(crate) fn take(
        &mut self,
        kind: FrameKind,
        contents: &Bytes,
        keyspace: &str,
    ) -> Result<(), Malformed> {
        let unexpected = Malformed::Field {
            what: "kind of a frame",
            found: u64::from(kind as u8),
            expected: "one that may follow the frame before it",
        };
        match (self.stage, kind) {
            (Stage::Nothing, FrameKind::Name) => {
                if **contents != *keyspace.as_bytes() {
                    return Err(Malformed::Identity {
                        what: "hash of the name of the keyspace",
                        expected: xxh3_64(keyspace.as_bytes()),
                        found: xxh3_64(contents),
                    });
                }
                self.stage = Stage::Named;
            }
            (Stage::Named, FrameKind::Snapshot) => {
                (self.through, self.ranges) = log::decode_snapshot(contents)?;
                self.stage = Stage::Snapshot;
            }
            (Stage::Snapshot | Stage::Whole, FrameKind::Bucket) => {
                self.entries.push(log::decode_bucket(contents)?);
            }
            (Stage::Snapshot, FrameKind::SnapshotEnd) => {
                let count = log::decode_count(contents, "buckets of a snapshot")?;
                self.expect_entries(count)?;
                self.insert_entries()?;
                self.stage = Stage::Whole;
            }
            (Stage::Whole, FrameKind::Made) if self.buckets.is_empty() && self.made.is_empty() => {
                self.made = log::decode_made(contents)?;
            }
            (Stage::Whole, FrameKind::Records) => {
                self.records.append(&mut record::decode_all(contents)?);
            }
            (Stage::Whole, FrameKind::Ranges) => {
                self.anchors.append(&mut log::decode_ranges(contents)?);
            }
            (Stage::Whole, FrameKind::Delivered) if self.entries.is_empty() => {
                self.deliver(log::decode_delivered(contents)?)?;
            }
            (Stage::Whole, FrameKind::Collected) if self.is_between() => {
                let collected = log::decode_collected(contents)?;
                self.expect_entries(collected.made)?;
                for id in &collected.gone {
                    let smallest = self.smallest.remove(id);
                    let gone = smallest.and_then(|smallest| self.buckets.remove(&smallest));
                    gone.ok_or(Malformed::Field {
                        what: "id of a bucket that goes",
                        found: *id,
                        expected: "one that is there",
                    })?;
                }
                self.insert_entries()?;
                self.ranges = collected.ranges;
            }
            _ => return Err(unexpected),
        }
        Ok(())
    }

    /// Whether no delivery has begun that has not ended.
    fn is_between(&self) -> bool {
        self.made.is_empty() && self.records.is_empty() && self.anchors.is_empty()
    }

    fn expect_entries(&self, count: u64) -> Result<(), Malformed> {
        if count == len_u64(self.entries.len()) {
            return Ok(());
        }
        let expected = "as many as stand before it";
        Err(Malformed::Field { what: "number of buckets", found: count, expected })
    }

    fn insert(&mut self, entry: BucketEntry) -> Result<(), Malformed> {
        // What is kept must not keep the chunk of the log that it was read in.
        let smallest = Bytes::copy_from_slice(&entry.smallest);
        let tail = Bytes::copy_from_slice(&entry.tail);
        self.id_max = self.id_max.max(entry.id);
        let same_id = self.smallest.insert(entry.id, smallest.clone()).is_some();
        let entry = BucketEntry { smallest: smallest.clone(), tail, ..entry };
        if same_id || self.buckets.insert(smallest, (entry, Vec::new())).is_some() {
            return Err(Malformed::Order { what: "ids or ranges of buckets" });
        }
        Ok(())
    }

    fn insert_entries(&mut self) -> Result<(), Malformed> {
        for entry in std::mem::take(&mut self.entries) {
            self.insert(entry)?;
        }
        match self.buckets.first_key_value() {
            Some((smallest, _)) if !smallest.is_empty() => {
                Err(Malformed::Order { what: "the range of the first bucket" })
            }
            _ => Ok(()),
        }
    }

    fn deliver(&mut self, (through, count): (SeqNo, u64)) -> Result<(), Malformed> {
        for (id, smallest) in std::mem::take(&mut self.made) {
            let (sorted, extents, tail) = (None, Vec::new(), Bytes::new());
            let made_through = self.through;
            self.insert(BucketEntry { id, smallest, made_through, sorted, extents, tail })?;
        }
        self.insert_entries()?;
        if count != len_u64(self.records.len()) || through < self.through {
            let expected = "as many as stand before it, up to a number not below the one before";
            return Err(Malformed::Field { what: "records of a delivery", found: count, expected });
        }
        for record in std::mem::take(&mut self.records) {
            let bucket = self.buckets.range_mut::<Bytes, _>(..=&record.key).next_back();
            let (_, (_, records)) =
                bucket.ok_or(Malformed::Order { what: "records before the first bucket" })?;
            records.push(record);
        }
        self.ranges.append(&mut self.anchors);
        self.through = through;
        Ok(())
    }
}

/// What a log says up to a token, and an id that no bucket in it has.
pub(crate) fn recover(shared: &Arc<Shared>, token: Token) -> Result<(View, u64)> {
    let place = &shared.table.place;
    let position = Position::of(token);
    let path = place.files.path(OperandFileKind::Log, position.number);
    let file = open_named(&**place.files.vfs(), &path)?;
    let found = file.len().map_err(|e| io_error("read the length of", &path, e))?;
    if found < position.end {
        let (what, needed) = ("log of operands", position.end);
        return Err(Malformed::Truncated { what, needed, found }.at(&path, found));
    }
    let first = crate::files::read_exactly(&*file, &path, 0, HEADER_BYTES)?;
    let found = header::decode(&first, LOG_MAGIC).map_err(|what| what.at(&path, 0))?;
    if found != position.uid {
        let what = "uid of a log of operands";
        return Err(Malformed::Identity { what, expected: position.uid, found }.at(&path, 0));
    }
    let mut reader = LogReader::new(path.clone(), file, position.uid, position.end);
    let mut replay = Replay::default();
    loop {
        let at = reader.at;
        let Some((kind, contents)) = reader.frame()? else { break };
        replay.take(kind, &contents, &place.keyspace).map_err(|what| what.at(&path, at))?;
    }
    let wrong = |what: Malformed| what.at(&path, position.end);
    if replay.stage != Stage::Whole || !replay.is_between() || !replay.entries.is_empty() {
        return Err(wrong(Malformed::Order { what: "the end of a log that a token names" }));
    }
    let mut buckets = Vec::with_capacity(replay.buckets.len());
    for (entry, mut records) in replay.buckets.into_values() {
        let mut tail = Tail::decode(&entry.tail, &shared.memory).map_err(wrong)?;
        if !records.is_empty() {
            records.extend(tail.records());
            records.sort_by(Record::order);
            tail = Tail::new(&records, &shared.memory)?;
        }
        buckets.push(Arc::new(Bucket::from_entry(&entry, tail, &shared.table)));
    }
    let view = View {
        shared: shared.clone(),
        buckets,
        ranges: replay.ranges.into(),
        through: replay.through,
    };
    Ok((view, replay.id_max + 1))
}
