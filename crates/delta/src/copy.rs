//! A copy of all that a view holds, for a checkpoint.
//!
//! Files are copied byte by byte as far as they count, under new numbers and with their uids, so that
//! their checksums stay right; each frame is checked on the way. The log of the copy is a snapshot.

use std::collections::BTreeMap;

use bytes::Bytes;
use lsmx::Result;
use lsmx::operand_store::{OperandFileKind, OperandFiles, Token};
use lsmx_base::coding::len_u64;

use crate::bucket::reading::{Reading, for_each_frame};
use crate::files::{BucketFile, io_error};
use crate::format::header::{self, BUCKET_MAGIC, HEADER_BYTES};
use crate::format::log::BucketEntry;
use crate::log::LogWriter;
use crate::view::View;

/// Writes the copy into `target`.
pub(crate) fn copy(view: &View, target: &dyn OperandFiles) -> Result<Token> {
    let again = if view.has_lost() { view.read_again()? } else { None };
    let view = again.as_deref().unwrap_or(view);
    let mut ends: BTreeMap<u64, (&BucketFile, u64)> = BTreeMap::new();
    for bucket in &view.buckets {
        let sorted = bucket.sorted.iter().map(|sorted| (&sorted.file, sorted.end));
        let extents = bucket.extents.iter().map(|extent| (&extent.file, extent.to));
        for (file, to) in sorted.chain(extents) {
            let end = &mut ends.entry(file.number).or_insert((file, 0)).1;
            *end = (*end).max(to);
        }
    }
    let mut numbers = BTreeMap::new();
    for (number, (file, end)) in ends {
        numbers.insert(number, copy_file(file, end, target)?);
    }
    let number = |number: u64| numbers.get(&number).copied().unwrap_or(number);
    let mut log = LogWriter::create(target, view.shared.table.place.env.random_u64())?;
    log.put_snapshot(view, |bucket| {
        let mut entry: BucketEntry = bucket.entry();
        if let Some(sorted) = &mut entry.sorted {
            sorted.number = number(sorted.number);
        }
        for extent in &mut entry.extents {
            extent.number = number(extent.number);
        }
        entry
    })?;
    log.sync()?;
    Ok(log.token())
}

fn copy_file(file: &BucketFile, end: u64, target: &dyn OperandFiles) -> Result<u64> {
    let from = len_u64(HEADER_BYTES);
    let bytes: Bytes = Reading::uncounted().read(file, from, end)?;
    for_each_frame(&bytes, file, from, |_, _, _, _| Ok(()))?;
    let (number, copy) = target.create(OperandFileKind::Bucket)?;
    let path = target.path(OperandFileKind::Bucket, number);
    let failed = |e| io_error("append to", &path, e);
    copy.append(&header::encode(BUCKET_MAGIC, file.uid)).map_err(failed)?;
    copy.append(&bytes).map_err(failed)?;
    copy.sync().map_err(|e| io_error("sync", &path, e))?;
    Ok(number)
}
