//! Recovers a view of a store from its log.
//!
//! A log begins with a snapshot of the buckets, followed by deliveries and collections. Recovery adds delivered records
//! to the tails of their buckets, and ignores pages that deliveries wrote after the snapshot. It therefore reads one
//! log and no bucket file.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsmx::operand_store::{OperandFileKind, StoreToken};
use lsmx::{Error, Result};
use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::bucket::Bucket;
use crate::bucket::tail::Tail;
use crate::files::frame_reader::FrameReader;
use crate::files::io::{check_header, io_error};
use crate::format::frame::FrameKind;
use crate::format::header::LOG_HEADER;
use crate::format::invalid_field;
use crate::format::log::{
    BucketEntry, RangeMarker, decode_bucket, decode_collection_end, decode_count,
    decode_delivery_end, decode_first_buckets, decode_range_markers, decode_snapshot,
};
use crate::format::record::{Record, decode_records};
use crate::log::LogPosition;
use crate::view::{StoreResources, StoreView};

/// Maximum id of a bucket. A larger id in a log is treated as damage.
const BUCKET_ID_MAX: u64 = 1 << 62;

/// State after the frames that were replayed so far.
#[derive(Debug, Default)]
struct LogReplay {
    stage: ReplayStage,
    through: SeqNo,
    range_markers: Vec<RangeMarker>,
    /// State of each bucket, by smallest key. It consists of the newest log entry of the bucket and of the records
    /// delivered later.
    buckets: BTreeMap<Bytes, (BucketEntry, Vec<Record>)>,
    /// Smallest key of each bucket, by id.
    smallest_keys: BTreeMap<u64, Bytes>,
    largest_id: u64,
    // Entries of the current snapshot, delivery or collection. They take effect when its last frame is replayed.
    pending_entries: Vec<BucketEntry>,
    pending_first_buckets: Vec<(u64, Bytes)>,
    pending_records: Vec<Record>,
    pending_markers: Vec<RangeMarker>,
}

/// Progress of the replay in the first frames of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReplayStage {
    #[default]
    Start,
    InHeader,
    InSnapshot,
    AfterSnapshot,
}

impl LogReplay {
    /// Applies the next frame of the log.
    fn replay_frame(&mut self, kind: FrameKind, contents: &Bytes) -> Result<(), Malformed> {
        use ReplayStage as Stage;
        match (self.stage, kind) {
            (Stage::Start, FrameKind::Keyspace) => {
                // The name is not checked, because a rename may have changed the name of the keyspace since the log was
                // created.
                self.stage = Stage::InHeader;
            }
            (Stage::InHeader, FrameKind::Snapshot) => {
                (self.through, self.range_markers) = decode_snapshot(contents)?;
                self.stage = Stage::InSnapshot;
            }
            (Stage::InSnapshot | Stage::AfterSnapshot, FrameKind::Bucket) => {
                self.pending_entries.push(decode_bucket(contents)?);
            }
            (Stage::InSnapshot, FrameKind::SnapshotEnd) => {
                self.check_entry_count(decode_count(contents, "buckets of a snapshot")?)?;
                self.insert_entries()?;
                self.stage = Stage::AfterSnapshot;
            }
            (Stage::AfterSnapshot, FrameKind::FirstBuckets)
                if self.buckets.is_empty() && self.pending_first_buckets.is_empty() =>
            {
                self.pending_first_buckets = decode_first_buckets(contents)?;
            }
            (Stage::AfterSnapshot, FrameKind::Records) => {
                self.pending_records.append(&mut decode_records(contents)?);
            }
            (Stage::AfterSnapshot, FrameKind::RangeMarkers) => {
                self.pending_markers.append(&mut decode_range_markers(contents)?);
            }
            (Stage::AfterSnapshot, FrameKind::DeliveryEnd) if self.pending_entries.is_empty() => {
                let (through, record_count) = decode_delivery_end(contents)?;
                self.end_delivery(through, record_count)?;
            }
            (Stage::AfterSnapshot, FrameKind::CollectionEnd) if !self.is_in_delivery() => {
                let collection = decode_collection_end(contents)?;
                self.check_entry_count(collection.new_count)?;
                for id in &collection.removed_ids {
                    let smallest_key = self.smallest_keys.remove(id);
                    let removed = smallest_key.and_then(|key| self.buckets.remove(&key));
                    let what = "id of a removed bucket";
                    removed.ok_or(invalid_field(what, *id, "the id of a bucket"))?;
                }
                self.insert_entries()?;
                self.range_markers = collection.range_markers;
            }
            _ => {
                return Err(kind.unexpected_kind("a kind that can follow the previous frame"));
            }
        }
        Ok(())
    }

    /// Returns whether the replay is within a delivery.
    fn is_in_delivery(&self) -> bool {
        !(self.pending_first_buckets.is_empty()
            && self.pending_records.is_empty()
            && self.pending_markers.is_empty())
    }

    /// Returns whether a log may end after the replayed frames.
    fn is_complete(&self) -> bool {
        self.stage == ReplayStage::AfterSnapshot
            && !self.is_in_delivery()
            && self.pending_entries.is_empty()
    }

    fn check_entry_count(&self, count: u64) -> Result<(), Malformed> {
        if count == len_u64(self.pending_entries.len()) {
            return Ok(());
        }
        let expected = "the number of bucket frames before it";
        Err(invalid_field("number of buckets", count, expected))
    }

    fn insert_entry(&mut self, entry: BucketEntry) -> Result<(), Malformed> {
        // Copies the key and the tail, so that the entry does not keep a chunk of the log in memory.
        let smallest_key = Bytes::copy_from_slice(&entry.smallest_key);
        let tail = Bytes::copy_from_slice(&entry.tail);
        if entry.id > BUCKET_ID_MAX {
            return Err(invalid_field("id of a bucket", entry.id, "at most 2^62"));
        }
        self.largest_id = self.largest_id.max(entry.id);
        let is_known_id = self.smallest_keys.insert(entry.id, smallest_key.clone()).is_some();
        let entry = BucketEntry { smallest_key: smallest_key.clone(), tail, ..entry };
        if is_known_id || self.buckets.insert(smallest_key, (entry, Vec::new())).is_some() {
            return Err(Malformed::Order { what: "ids or ranges of buckets" });
        }
        Ok(())
    }

    fn insert_entries(&mut self) -> Result<(), Malformed> {
        for entry in std::mem::take(&mut self.pending_entries) {
            self.insert_entry(entry)?;
        }
        match self.buckets.first_key_value() {
            Some((smallest_key, _)) if !smallest_key.is_empty() => {
                Err(Malformed::Order { what: "the range of the first bucket" })
            }
            _ => Ok(()),
        }
    }

    fn end_delivery(&mut self, through: SeqNo, record_count: u64) -> Result<(), Malformed> {
        for (id, smallest_key) in std::mem::take(&mut self.pending_first_buckets) {
            self.insert_entry(BucketEntry::new(id, smallest_key, self.through))?;
        }
        self.insert_entries()?;
        if record_count != len_u64(self.pending_records.len()) || through < self.through {
            let expected = "the number of records before it, and no smaller sequence number";
            return Err(invalid_field("records of a delivery", record_count, expected));
        }
        for record in std::mem::take(&mut self.pending_records) {
            let bucket = self.buckets.range_mut::<Bytes, _>(..=&record.key).next_back();
            let (_, (_, records)) =
                bucket.ok_or(Malformed::Order { what: "records before the first bucket" })?;
            records.push(record);
        }
        self.range_markers.append(&mut self.pending_markers);
        self.through = through;
        Ok(())
    }
}

/// Recovers the view that `token` names.
pub fn recover_view(resources: &Arc<StoreResources>, token: StoreToken) -> Result<StoreView> {
    Ok(recover(resources, token)?.0)
}

/// Recovers the view that `token` names. Also returns the next unused bucket id.
pub fn recover(resources: &Arc<StoreResources>, token: StoreToken) -> Result<(StoreView, u64)> {
    let context = &resources.files.context;
    let position = LogPosition::from_store_token(token);
    let path = context.files.path(OperandFileKind::Log, position.number);
    let file = context.files.vfs().open(&path).map_err(|e| io_error("open", &path, e))?;
    let found = file.len().map_err(|e| io_error("read the size of", &path, e))?;
    if found < position.end {
        let (what, needed) = ("log of operands", position.end);
        return Err(Error::malformed(Malformed::Truncated { what, needed, found }, &path, found));
    }
    check_header(&*file, &path, LOG_HEADER, position.uid, "uid of a log of operands")?;
    let mut reader = FrameReader::new(path.clone(), file, position.uid, position.end);
    let mut replay = LogReplay::default();
    loop {
        let offset = reader.offset;
        let Some((kind, contents)) = reader.next_frame()? else { break };
        replay
            .replay_frame(kind, &contents)
            .map_err(|malformed| Error::malformed(malformed, &path, offset))?;
    }
    let at_end = |malformed: Malformed| Error::malformed(malformed, &path, position.end);
    if !replay.is_complete() {
        return Err(at_end(Malformed::Order { what: "the end of a log named by a token" }));
    }
    let mut buckets = Vec::with_capacity(replay.buckets.len());
    for (entry, mut records) in replay.buckets.into_values() {
        let mut tail = Tail::decode(&entry.tail, &resources.memory).map_err(at_end)?;
        if !records.is_empty() {
            records.extend(tail.records());
            records.sort_by(Record::cmp_by_key_and_seq);
            // Duplicates are an error, because the next log's snapshot would contain them and could not be recovered.
            if !records.is_sorted_by(|a, b| a.cmp_by_key_and_seq(b).is_lt()) {
                return Err(at_end(Malformed::Order { what: "records of a log" }));
            }
            tail = Tail::new(&records, &resources.memory)?;
        }
        buckets.push(Arc::new(Bucket::from_entry(&entry, tail, &resources.files)));
    }
    let (range_markers, through) = (replay.range_markers.into(), replay.through);
    let view = StoreView { buckets, range_markers, through, ..StoreView::empty(resources.clone()) };
    Ok((view, replay.largest_id + 1))
}

#[cfg(test)]
mod tests {
    use lsmx_base::coding::put_varint;

    use super::*;
    use crate::format::log::{
        CollectionEnd, ExtentSpan, SortedSpan, put_bucket, put_collection_end, put_delivery_end,
        put_first_buckets, put_range_markers, put_snapshot,
    };
    use crate::format::record::put_record;

    /// Returns the frames of a log that contains every kind of log frame.
    fn frames() -> Vec<(FrameKind, Vec<u8>)> {
        let mut frames = Vec::new();
        let mut put = |kind, fill: &dyn Fn(&mut Vec<u8>)| {
            let mut contents = Vec::new();
            fill(&mut contents);
            frames.push((kind, contents));
        };
        let entry = |id, smallest_key: &'static str| BucketEntry {
            id,
            smallest_key: smallest_key.into(),
            collected_through: SeqNo(4),
            sorted: Some(SortedSpan { number: 2, uid: 3, index_offset: 90, end: 200 }),
            extents: vec![ExtentSpan { number: 2, uid: 3, start: 200, end: 300 }],
            tail: {
                let mut tail = Vec::new();
                put_record(&mut tail, b"key", (SeqNo(2), SeqNo(3)), Some(b"operand"));
                tail.into()
            },
        };
        let marker = RangeMarker { start: "a".into(), end: Some("b".into()), seq: SeqNo(9) };
        let markers = [marker];
        put(FrameKind::Keyspace, &|out| out.extend(b"default"));
        put(FrameKind::Snapshot, &|out| put_snapshot(out, SeqNo(4), &markers));
        put(FrameKind::Bucket, &|out| put_bucket(out, &entry(1, "")));
        put(FrameKind::Bucket, &|out| put_bucket(out, &entry(2, "m")));
        put(FrameKind::SnapshotEnd, &|out| put_varint(out, 2));
        put(FrameKind::Records, &|out| {
            put_record(out, b"a", (SeqNo(5), SeqNo(5)), Some(b"x"));
            put_record(out, b"z", (SeqNo(6), SeqNo(6)), None);
        });
        put(FrameKind::RangeMarkers, &|out| put_range_markers(out, &markers));
        put(FrameKind::DeliveryEnd, &|out| put_delivery_end(out, SeqNo(7), 2));
        put(FrameKind::Bucket, &|out| put_bucket(out, &entry(3, "")));
        let collection = |new_count, removed_ids: &[u64], range_markers: &[RangeMarker]| {
            let (removed_ids, range_markers) = (removed_ids.to_vec(), range_markers.to_vec());
            CollectionEnd { new_count, removed_ids, range_markers }
        };
        put(FrameKind::CollectionEnd, &|out| {
            put_collection_end(out, &collection(1, &[1, 2], &markers));
        });
        put(FrameKind::CollectionEnd, &|out| put_collection_end(out, &collection(0, &[3], &[])));
        put(FrameKind::FirstBuckets, &|out| {
            put_first_buckets(out, &[(4, "".into()), (5, "k".into())]);
        });
        put(FrameKind::DeliveryEnd, &|out| put_delivery_end(out, SeqNo(7), 0));
        frames
    }

    fn replay_all(frames: &[(FrameKind, Vec<u8>)]) -> Result<LogReplay, Malformed> {
        let mut replay = LogReplay::default();
        for (kind, contents) in frames {
            replay.replay_frame(*kind, &Bytes::copy_from_slice(contents))?;
        }
        Ok(replay)
    }

    #[test]
    fn replay_missing_frame_is_rejected() {
        let frames = frames();
        let replay = replay_all(&frames).unwrap();
        assert_eq!((replay.buckets.len(), replay.through), (2, SeqNo(7)));
        for at in 0..frames.len() {
            let mut fewer = frames.clone();
            let (kind, _) = fewer.remove(at);
            let is_settled =
                |replay: &LogReplay| !replay.is_in_delivery() && replay.pending_entries.is_empty();
            let is_accepted = replay_all(&fewer).is_ok_and(|replay| is_settled(&replay));
            // These frames may be missing without an error. No count covers range delete markers. A log may end before
            // its last entries. A store may have no buckets.
            let is_optional = matches!(
                kind,
                FrameKind::RangeMarkers | FrameKind::DeliveryEnd | FrameKind::FirstBuckets
            ) || at + 3 >= frames.len();
            assert!(!is_accepted || is_optional, "without the {}", kind.name());
        }
    }
}
