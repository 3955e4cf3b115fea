//! What a log says, up to a token.
//!
//! Records of deliveries come back into memory, as tails of their buckets: pages that were written
//! since the snapshot are not looked at. So recovery reads one log and no bucket.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsmx::operand_store::{OperandFileKind, Token};
use lsmx::{Error, Malformed, Result, SeqNo};
use lsmx_base::coding::len_u64;
use lsmx_base::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

use crate::bucket::Bucket;
use crate::bucket::tail::Tail;
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

/// Largest id of a bucket: no store makes as many.
const ID_MAX: u64 = 1 << 62;

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
        if entry.id > ID_MAX {
            let (what, expected) = ("id of a bucket", "at most 2^62");
            return Err(Malformed::Field { what, found: entry.id, expected });
        }
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

/// What a log says up to a token.
pub(crate) fn read_again(shared: &Arc<Shared>, token: Token) -> Result<View> {
    Ok(recover(shared, token)?.0)
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
        return Err(Error::malformed(Malformed::Truncated { what, needed, found }, &path, found));
    }
    let first = crate::files::read_exactly(&*file, &path, 0, HEADER_BYTES)?;
    let found =
        header::decode(&first, LOG_MAGIC).map_err(|what| Error::malformed(what, &path, 0))?;
    if found != position.uid {
        let what = "uid of a log of operands";
        return Err(Error::malformed(
            Malformed::Identity { what, expected: position.uid, found },
            &path,
            0,
        ));
    }
    let mut reader = LogReader::new(path.clone(), file, position.uid, position.end);
    let mut replay = Replay::default();
    loop {
        let at = reader.at;
        let Some((kind, contents)) = reader.frame()? else { break };
        replay
            .take(kind, &contents, &place.keyspace)
            .map_err(|what| Error::malformed(what, &path, at))?;
    }
    let wrong = |what: Malformed| Error::malformed(what, &path, position.end);
    if replay.stage != Stage::Whole || !replay.is_between() || !replay.entries.is_empty() {
        return Err(wrong(Malformed::Order { what: "the end of a log that a token names" }));
    }
    let mut buckets = Vec::with_capacity(replay.buckets.len());
    for (entry, mut records) in replay.buckets.into_values() {
        let mut tail = Tail::decode(&entry.tail, &shared.memory).map_err(wrong)?;
        if !records.is_empty() {
            records.extend(tail.records());
            records.sort_by(Record::order);
            // What is there twice could be written to the next log, and not be read again.
            if !records.is_sorted_by(|a, b| a.order(b).is_lt()) {
                return Err(wrong(Malformed::Order { what: "records of a log" }));
            }
            tail = Tail::new(&records, &shared.memory)?;
        }
        buckets.push(Arc::new(Bucket::from_entry(&entry, tail, &shared.table)));
    }
    let (ranges, through) = (replay.ranges.into(), replay.through);
    let view = View { buckets, ranges, through, ..View::empty(shared.clone()) };
    Ok((view, replay.id_max + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::index::decode_index;
    use crate::format::log::{Collected, ExtentSpan, SortedSpan};

    const KEYSPACE: &str = "default";

    /// A log with a frame of each kind.
    fn frames() -> Vec<(FrameKind, Vec<u8>)> {
        let mut frames = Vec::new();
        let mut put = |kind, fill: &dyn Fn(&mut Vec<u8>)| {
            let mut contents = Vec::new();
            fill(&mut contents);
            frames.push((kind, contents));
        };
        let entry = |id, smallest: &'static str| BucketEntry {
            id,
            smallest: smallest.into(),
            made_through: SeqNo(4),
            sorted: Some(SortedSpan { number: 2, uid: 3, index_offset: 90, end: 200 }),
            extents: vec![ExtentSpan { number: 2, uid: 3, from: 200, to: 300 }],
            tail: {
                let mut tail = Vec::new();
                record::put(&mut tail, b"key", (SeqNo(2), SeqNo(3)), Some(b"operand"));
                tail.into()
            },
        };
        let ranges = [RangeAnchor { start: "a".into(), end: Some("b".into()), seq: SeqNo(9) }];
        put(FrameKind::Name, &|out| out.extend(KEYSPACE.as_bytes()));
        put(FrameKind::Snapshot, &|out| log::put_snapshot(out, SeqNo(4), &ranges));
        put(FrameKind::Bucket, &|out| log::put_bucket(out, &entry(1, "")));
        put(FrameKind::Bucket, &|out| log::put_bucket(out, &entry(2, "m")));
        put(FrameKind::SnapshotEnd, &|out| lsmx_base::coding::put_varint(out, 2));
        put(FrameKind::Records, &|out| {
            record::put(out, b"a", (SeqNo(5), SeqNo(5)), Some(b"x"));
            record::put(out, b"z", (SeqNo(6), SeqNo(6)), None);
        });
        put(FrameKind::Ranges, &|out| log::put_ranges(out, &ranges));
        put(FrameKind::Delivered, &|out| log::put_delivered(out, SeqNo(7), 2));
        put(FrameKind::Bucket, &|out| log::put_bucket(out, &entry(3, "")));
        put(FrameKind::Collected, &|out| {
            let collected = Collected { made: 1, gone: vec![1, 2], ranges: ranges.to_vec() };
            log::put_collected(out, &collected);
        });
        put(FrameKind::Collected, &|out| {
            let collected = Collected { made: 0, gone: vec![3], ranges: Vec::new() };
            log::put_collected(out, &collected);
        });
        put(FrameKind::Made, &|out| log::put_made(out, &[(4, "".into()), (5, "k".into())]));
        put(FrameKind::Delivered, &|out| log::put_delivered(out, SeqNo(7), 0));
        frames
    }

    fn replay(frames: &[(FrameKind, Vec<u8>)]) -> Result<Replay, Malformed> {
        let mut replay = Replay::default();
        for (kind, contents) in frames {
            replay.take(*kind, &Bytes::copy_from_slice(contents), KEYSPACE)?;
        }
        Ok(replay)
    }

    #[test]
    fn each_kind_of_frame_is_taken_in_its_place_and_nowhere_else() {
        let frames = frames();
        let replayed = replay(&frames).unwrap();
        assert_eq!((replayed.buckets.len(), replayed.through), (2, SeqNo(7)));
        for at in 0..frames.len() {
            let mut fewer = frames.clone();
            let (kind, _) = fewer.remove(at);
            let whole = |replay: &Replay| replay.is_between() && replay.entries.is_empty();
            let same = replay(&fewer).is_ok_and(|replay| whole(&replay));
            // Range anchors are whole without their count, a log is without what comes last, and no
            // bucket at all is a store too.
            let may = matches!(kind, FrameKind::Ranges | FrameKind::Delivered | FrameKind::Made)
                || at + 3 >= frames.len();
            assert!(!same || may, "without the {}", kind.name());
        }
    }

    proptest! {
        #[test]
        fn wrong_contents_with_right_checksums_are_taken_or_refused(
            frame in 0..13_usize,
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            let mut frames = frames();
            let contents = &mut frames[frame].1;
            for (at, byte) in changes {
                let at = at.index(contents.len());
                contents[at] = byte;
            }
            if let Some(cut) = cut {
                contents.truncate(cut.index(contents.len()));
            }
            // Neither panics; what is taken keeps buckets in order from the empty key on.
            if let Ok(replay) = replay(&frames) {
                prop_assert!(replay.buckets.keys().next().is_none_or(|smallest| smallest.is_empty()));
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = Bytes::from(bytes);
            if let Ok(index) = decode_index(&bytes, 1000) {
                prop_assert!(index.iter().all(|page| page.offset + page.bytes <= 1000));
            }
            let _ = log::decode_bucket(&bytes);
            let _ = log::decode_collected(&bytes);
            let _ = log::decode_made(&bytes);
            let _ = log::decode_snapshot(&bytes);
            let _ = record::decode_all(&bytes);
            let _ = crate::format::frame::decode_frame(&bytes, (1, 2));
            let _ = header::decode(&bytes, LOG_MAGIC);
        }
    }
}
