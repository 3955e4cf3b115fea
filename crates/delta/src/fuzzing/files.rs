//! Targets for whole files, and for a store that is opened from one of them.

use std::io;

use bytes::Bytes;
use lsmx::operand_store::Cursor;
use lsmx::operand_store::{
    Operand, OperandFileKind, OperandReadTier, OperandStore, OperandView, StoreToken,
};
use lsmx::{Result, SeqNo};
use lsmx_base::coding::len_u64;
use lsmx_base::sync::Arc;

use super::contents::PROBES;
use super::memory::{Uncounted, disk, is_missing, path_of, place, token};
use super::repair::{self, frames, uid_of};
use crate::bucket::Bucket;
use crate::bucket::lookup::{KeyQuery, find_records};
use crate::bucket::reader::BucketReader;
use crate::bucket::tail::Tail;
use crate::bucket::verify::BucketVerifier;
use crate::files::FileTable;
use crate::format::frame::{FrameKind, decode_frame};
use crate::format::log::{BucketEntry, ExtentSpan, RangeMarker, SortedSpan};
use crate::format::record::{self, Record};
use crate::log::LogWriter;
use crate::memory::MemoryUsage;
use crate::options::DeltaOptions;
use crate::recovery::{recover, recover_view};
use crate::store::DeltaStore;
use crate::view::{StoreCounters, StoreResources, StoreView};

/// More keys of a file than are looked up one by one.
const KEYS_MAX: usize = 64;
/// More collections one after the other than any store needs.
const COLLECTIONS_MAX: usize = 64;

/// What a view has, as a log tells it.
fn told(view: &StoreView) -> (Vec<BucketEntry>, Vec<RangeMarker>, SeqNo) {
    let buckets = view.buckets.iter().map(|bucket| bucket.to_entry()).collect();
    (buckets, view.range_markers.to_vec(), view.through)
}

/// A snapshot of what a log says, in a log of its own, says the same.
fn snapshot_comes_back(view: &StoreView, id_next: u64) {
    let shared = &view.resources;
    let mut log = LogWriter::create(&*shared.files.context.files, 5).expect("in memory");
    log.put_snapshot(view, Bucket::to_entry).expect("as long as it was");
    let (again, id_again) = recover(shared, log.token()).expect("a snapshot recovers");
    assert_eq!(told(&again), told(view));
    assert!(id_again <= id_next);
}

/// A log, up to each of the places where a token may end.
pub fn log(bytes: &[u8]) {
    let vfs = disk(OperandFileKind::Log, bytes);
    let shared = Arc::new(StoreResources {
        recover_view,
        options: DeltaOptions::default(),
        files: FileTable::new(place(&vfs, 0)),
        cache: None,
        memory: MemoryUsage::default(),
        counters: StoreCounters::default(),
    });
    let whole = recover(&shared, token(bytes, bytes.len()));
    if whole.is_ok() {
        let shown = crate::dump(&vfs, &path_of(OperandFileKind::Log), &mut io::sink());
        shown.expect("what recovers can be shown");
    }
    let mut through = SeqNo::ZERO;
    for (from, to) in frames(bytes) {
        let ends = [FrameKind::SnapshotEnd, FrameKind::DeliveryEnd, FrameKind::CollectionEnd];
        if ends.iter().any(|kind| *kind as u8 == bytes[from + 12])
            && let Ok((view, id_next)) = recover(&shared, token(bytes, to))
        {
            assert!(through <= view.through, "numbers go back");
            through = view.through;
            snapshot_comes_back(&view, id_next);
        }
    }
}

/// As [`log`], with the right checksums.
pub fn log_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::file(&mut bytes);
    log(&bytes);
}

/// What a bucket file may be to a log: a sorted part if it begins with one, and behind it two extents.
fn parts(bytes: &[u8]) -> (Option<SortedSpan>, Vec<ExtentSpan>) {
    let (number, uid) = (super::memory::NUMBER, uid_of(bytes));
    let frames = frames(bytes);
    let kind = |at: usize| bytes[frames[at].0 + 12];
    let index = (0..frames.len()).find(|at| kind(*at) == FrameKind::Index as u8);
    let sorted = index.map(|index| {
        let filter = frames.get(index + 1).unwrap_or(&frames[index]);
        let (index_offset, end) = (len_u64(frames[index].0), len_u64(filter.1));
        SortedSpan { number, uid, index_offset, end }
    });
    let from = sorted.map_or(len_u64(crate::format::header::HEADER_BYTES), |sorted| sorted.end);
    let ends = frames.iter().map(|frame| len_u64(frame.1)).filter(|end| *end > from);
    let middle = ends.clone().nth(ends.count() / 2).unwrap_or(from);
    let to = len_u64(bytes.len()).max(middle);
    let extents = [(from, middle), (middle, to)];
    (sorted, extents.map(|(from, to)| ExtentSpan { number, uid, start: from, end: to }).into())
}

/// The records of all pages of such a kind, read one after the other.
fn walked(bytes: &[u8], wanted: FrameKind) -> Vec<Record> {
    let mut records = Vec::new();
    for (from, to) in frames(bytes) {
        let place = (uid_of(bytes), len_u64(from));
        let (kind, contents, _) = decode_frame(&bytes[from..to], place).expect("verified");
        if kind == wanted {
            let contents = Bytes::copy_from_slice(contents);
            records.append(&mut record::decode_records(&contents).expect("verified"));
        }
    }
    records
}

/// A bucket file that a log names.
pub fn bucket_file(bytes: &[u8]) {
    let vfs = disk(OperandFileKind::Bucket, bytes);
    let (table, memory) = (FileTable::new(place(&vfs, 0)), MemoryUsage::default());
    let (sorted, extents) = parts(bytes);
    let (smallest_key, collected_through, tail) = (Bytes::new(), SeqNo::MAX, Bytes::new());
    let entry = BucketEntry { id: 1, smallest_key, collected_through, sorted, extents, tail };
    let tail = Tail::new(&[], &memory).expect("empty");
    let bucket = Bucket::from_entry(&entry, tail, &table);
    assert_eq!(bucket.to_entry(), entry);
    let find = |wanted: KeyQuery<'_>, reads: OperandReadTier| {
        let found =
            find_records(&bucket, wanted, &mut BucketReader::for_user(reads, &Uncounted), &memory)?;
        let shown = found.into_iter().map(|it| (it.last, it.first, it.operand));
        Ok::<_, lsmx::Error>(shown.collect::<std::collections::BTreeSet<_>>())
    };
    for key in PROBES {
        let wanted = KeyQuery { key, after: None, at: SeqNo::MAX, void_below: SeqNo(20) };
        let _ = find(wanted, OperandReadTier::Memory);
        let _ = find(wanted, OperandReadTier::Storage);
        let _ = bucket.may_contain(key);
    }
    let all = bucket.read_records(&mut BucketReader::without_counters());
    if (BucketVerifier { bucket: &bucket, end: None, memory: &memory }).verify_files().is_err() {
        return;
    }
    crate::dump(&vfs, &path_of(OperandFileKind::Bucket), &mut io::sink()).expect("verified");
    // What `verify` has nothing against must be found, whichever way it is asked for.
    let unsorted = walked(bytes, FrameKind::UnsortedPage);
    let mut records = [walked(bytes, FrameKind::SortedPage), unsorted.clone()].concat();
    records.sort_by(Record::cmp_order);
    assert_eq!(all.expect("verified"), records);
    let middle = records.get(records.len() / 2).map_or(SeqNo::ZERO, |record| record.last);
    let keys = records.chunk_by(|a, b| a.key == b.key).map(|group| &*group[0].key);
    for key in keys.take(KEYS_MAX).chain(PROBES) {
        let own = || records.iter().filter(|record| record.key == key);
        let (all, none) = (SeqNo::MAX, SeqNo::ZERO);
        for (after, at, void_below) in [
            (None, all, none),
            (None, middle, none),
            (Some(middle), all, none),
            (None, all, middle),
        ] {
            let wanted = KeyQuery { key, after, at, void_below };
            let mut found = find(wanted, OperandReadTier::Storage).expect("verified");
            // Of what is void some may be there.
            found.retain(|(last, ..)| *last >= void_below);
            let is_wanted = |record: &&Record| {
                let after = after.is_none_or(|after| record.last > after);
                after && (void_below..=at).contains(&record.last)
            };
            let expected = own().filter(is_wanted);
            let expected = expected.map(|it| (it.last, it.first, it.operand.clone()));
            assert_eq!(found, expected.collect(), "{wanted:?}");
        }
        assert!(bucket.may_contain(key) || own().next().is_none(), "{key:?} is ruled out");
        let came = unsorted.iter().any(|record| record.key == key && record.last > middle);
        assert!(!(came && bucket.is_unchanged_since(key, middle)), "{key:?} has changed");
    }
}

/// As [`bucket_file`], with the right checksums.
pub fn bucket_file_repaired(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::file(&mut bytes);
    bucket_file(&bytes);
}

/// Key, number and bytes of an operand.
type Entry = (Vec<u8>, SeqNo, Vec<u8>);

/// The entries of a cursor, from the first to the last.
fn entries(cursor: &mut dyn Cursor) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    cursor.first()?;
    while cursor.valid() {
        let key = cursor.key();
        entries.push((key.user_key.to_vec(), key.seq, cursor.value().to_vec()));
        cursor.next()?;
    }
    Ok(entries)
}

/// All that a view shows, which is the same whichever way it is asked.
fn shown(view: &Arc<dyn OperandView>) -> Result<Vec<Entry>> {
    let mut cursor = view.clone().cursor(SeqNo::MAX, OperandReadTier::Storage);
    let forward = entries(&mut *cursor)?;
    let mut backward = Vec::new();
    cursor.last()?;
    while cursor.valid() {
        let key = cursor.key();
        backward.push((key.user_key.to_vec(), key.seq, cursor.value().to_vec()));
        cursor.prev()?;
    }
    backward.reverse();
    assert_eq!(forward, backward);
    let mut alone = Vec::new();
    for group in forward.chunk_by(|a, b| a.0 == b.0) {
        let mut found: Vec<Operand> = Vec::new();
        view.read_operands(&group[0].0, SeqNo::MAX, OperandReadTier::Storage, &mut found)?;
        let own = |it: Operand| (group[0].0.clone(), it.last, it.bytes.to_vec());
        alone.extend(found.into_iter().map(own));
    }
    assert_eq!(alone, forward);
    Ok(forward)
}

/// What the store is given on top of what it has.
const KEY: &[u8] = b"key of the fuzzer";
const OPERAND: &[u8] = b"operand";

/// The largest number that is in memory.
fn newest(view: &StoreView) -> SeqNo {
    let buckets =
        view.buckets.iter().map(|bucket| bucket.tail.newest.max(bucket.collected_through));
    let ranges = view.range_markers.iter().map(|range| range.seq);
    buckets.chain(ranges).fold(view.through, SeqNo::max)
}

/// Delivers an operand, and collects until nothing is due; returns the last token, and what has left for
/// the tree.
fn go_on(store: &DeltaStore, through: SeqNo) -> Result<(StoreToken, Vec<Entry>)> {
    let mut delivery = store.deliver(through)?;
    delivery.add_operand(KEY, through, OPERAND)?;
    let mut token = delivery.prepare()?.token;
    store.mark_committed(token);
    let mut left = Vec::new();
    for _ in 0..COLLECTIONS_MAX {
        let Some(mut collection) = store.collect(&[through])? else { return Ok((token, left)) };
        if let Some(mut leaving) = collection.moved_operands()? {
            left.append(&mut entries(&mut *leaving)?);
        }
        token = collection.prepare()?.token;
        store.mark_committed(token);
    }
    panic!("collections do not end");
}

/// A log with right checksums, without the bucket files that it may name: a store that opens from it
/// shows the same after a delivery, collections and another opening, and what was delivered.
pub fn recovery(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    repair::file(&mut bytes);
    let vfs = disk(OperandFileKind::Log, &bytes);
    let options = DeltaOptions::default().bucket_bytes(1024).buckets_max(4);
    let options = options.log_bytes_max(1024).cache_bytes(2000);
    let open =
        |life: u64, token: StoreToken| DeltaStore::open(place(&vfs, life), Some(token), options);
    let Ok(store) = open(1, token(&bytes, bytes.len())) else { return };
    let before = shown(&store.view());
    store.metrics();
    store.live_files();
    let Some(through) = newest(&store.state.committed_view()).0.checked_add(1) else { return };
    if through > SeqNo::MAX.0 {
        return;
    }
    let through = SeqNo(through);
    match go_on(&store, through) {
        Ok((token, left)) => {
            let Ok(mut before) = before else { return };
            before.retain(|entry| entry.0 != KEY);
            let after = shown(&store.view()).expect("it was read before");
            let again = open(2, token).expect("what was written opens");
            assert_eq!(shown(&again.view()).expect("it was read before"), after);
            let mut all = [left, after].concat();
            assert!(all.iter().any(|it| it.0 == KEY && it.1 == through && it.2 == OPERAND));
            all.retain(|entry| entry.0 != KEY);
            all.sort();
            before.sort();
            assert_eq!(all, before, "operands are lost, or there twice");
        }
        Err(error) => assert!(before.is_err() || is_missing(&error), "{error:?}"),
    }
}
