//! Search of the files of a store for the records of one key.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use lsmx::operand_store::{OperandFileKind, StoreToken, StoredRecord, StoredRecordKind};
use lsmx::vfs::File;
use lsmx::{Error, Result, SeqNo};
use lsmx_base::malformed::Malformed;
use lsmx_base::sync::Arc;

use crate::bucket::Bucket;
use crate::files::frame_reader::FrameReader;
use crate::files::io::{io_error, read_exactly};
use crate::format::frame::FrameKind;
use crate::format::header::{BUCKET_HEADER, HEADER_BYTES, LOG_HEADER, decode_header};
use crate::format::log::{
    RangeMarker, decode_bucket, decode_collection_end, decode_range_markers, decode_snapshot,
};
use crate::format::record::for_each_record;
use crate::log::LogPosition;
use crate::store::DeltaStore;

/// Returns the records of a key in all files of a store, and the range delete markers that cover the key.
///
/// Searches whole files, including obsolete records and data after the committed end of a file.
pub(crate) fn search_key(
    store: &DeltaStore,
    token: StoreToken,
    key: &[u8],
) -> Result<Vec<StoredRecord>> {
    let view = store.state.committed_view();
    let files = &store.state.resources.files.context.files;
    let log = LogPosition::from_store_token(token);
    let mut search =
        StoreKeySearch { key, path: files.path(OperandFileKind::Log, log.number), found: vec![] };
    search.search_file(files.vfs().open(&search.path), log.end)?;
    let mut numbers: Vec<u64> = view.files().map(|file| file.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        let ends = view.buckets.iter().filter_map(|bucket| committed_end(bucket, number));
        search.path = files.path(OperandFileKind::Bucket, number);
        search.search_file(files.vfs().open(&search.path), ends.max().unwrap_or(0))?;
    }
    Ok(search.found)
}

/// Returns the offset at which the pages of a bucket end in a file.
fn committed_end(bucket: &Bucket, number: u64) -> Option<u64> {
    let sorted = bucket.sorted.iter().map(|sorted| (sorted.file.number, sorted.end));
    let extents = bucket.extents.iter().map(|extent| (extent.file.number, extent.end));
    sorted.chain(extents).filter(|(file, _)| *file == number).map(|(_, end)| end).max()
}

struct StoreKeySearch<'a> {
    key: &'a [u8],
    /// File that is searched.
    path: PathBuf,
    found: Vec<StoredRecord>,
}

impl StoreKeySearch<'_> {
    /// Searches all frames of a file. An invalid frame before `committed_end` is an error. An invalid frame after it
    /// ends the search.
    fn search_file(&mut self, opened: io::Result<Arc<dyn File>>, committed_end: u64) -> Result<()> {
        let path: &Path = &self.path;
        let file = opened.map_err(|error| io_error("open", path, error))?;
        let end = file.len().map_err(|error| io_error("read the size of", path, error))?;
        let header = read_exactly(&*file, path, 0, HEADER_BYTES)?;
        let uid = match decode_header(&header, BUCKET_HEADER) {
            Err(Malformed::Magic { .. }) => decode_header(&header, LOG_HEADER),
            decoded => decoded,
        };
        let uid = uid.map_err(|malformed| Error::malformed(malformed, path, 0))?;
        let mut reader = FrameReader::new(self.path.clone(), file, uid, end);
        loop {
            let offset = reader.offset;
            match reader.next_frame() {
                Ok(None) => return Ok(()),
                Ok(Some((kind, contents))) => self
                    .search_frame(offset, kind, &contents)
                    .map_err(|malformed| Error::malformed(malformed, &self.path, offset))?,
                Err(Error::Corrupt { .. }) if offset >= committed_end => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn search_frame(
        &mut self,
        offset: u64,
        kind: FrameKind,
        contents: &Bytes,
    ) -> Result<(), Malformed> {
        match kind {
            FrameKind::SortedPage | FrameKind::UnsortedPage | FrameKind::Records => {
                self.search_records(offset, contents)
            }
            FrameKind::Bucket => self.search_records(offset, &decode_bucket(contents)?.tail),
            FrameKind::Snapshot => {
                self.search_range_markers(offset, &decode_snapshot(contents)?.1);
                Ok(())
            }
            FrameKind::RangeMarkers => {
                self.search_range_markers(offset, &decode_range_markers(contents)?);
                Ok(())
            }
            FrameKind::CollectionEnd => {
                let collection = decode_collection_end(contents)?;
                self.search_range_markers(offset, &collection.range_markers);
                Ok(())
            }
            FrameKind::Index
            | FrameKind::Filter
            | FrameKind::Keyspace
            | FrameKind::SnapshotEnd
            | FrameKind::FirstBuckets
            | FrameKind::DeliveryEnd => Ok(()),
        }
    }

    fn search_records(&mut self, offset: u64, records: &[u8]) -> Result<(), Malformed> {
        let key = self.key;
        for_each_record(records, |_, record| {
            if record.key == key {
                let kind = match record.operand {
                    Some(_) => StoredRecordKind::Operand,
                    None => StoredRecordKind::DeleteMarker,
                };
                self.add_record(offset, kind, record.last);
            }
        })
    }

    fn search_range_markers(&mut self, offset: u64, markers: &[RangeMarker]) {
        for marker in markers {
            let is_before_end = marker.end.as_ref().is_none_or(|end| self.key < &**end);
            if *marker.start <= *self.key && is_before_end {
                self.add_record(offset, StoredRecordKind::RangeDeleteMarker, marker.seq);
            }
        }
    }

    fn add_record(&mut self, offset: u64, kind: StoredRecordKind, seq: SeqNo) {
        self.found.push(StoredRecord { path: self.path.clone(), offset, kind, seq });
    }
}
