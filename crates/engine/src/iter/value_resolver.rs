//! Values in the value log, for who walks over keys.

use lsmx_base::key::SeqNo;
use lsmx_base::slice::Slice;
use lsmx_base::sync::Arc;

use crate::error::Result;
use crate::iter::read_purpose;
use crate::options::read::ReadOptions;
use crate::table::ReadContext;
use crate::tree::version::BlobSet;
use crate::value_log::BlobScan;

/// The blob files of a view, and what a walk has read ahead of them.
#[derive(Debug)]
pub(crate) struct PointedValues {
    blobs: Arc<BlobSet>,
    scan: BlobScan,
    access: ReadContext,
}

impl PointedValues {
    /// Those of a view, for a walk of this kind. It takes what is cached, and does not wash it out.
    pub(crate) fn new(blobs: &Arc<BlobSet>, options: &ReadOptions) -> PointedValues {
        let fill = read_purpose(options);
        let (blobs, scan) = (Arc::clone(blobs), BlobScan::default());
        PointedValues { blobs, scan, access: ReadContext::new(fill) }
    }

    /// The value that an entry points to.
    ///
    /// # Errors
    /// When it cannot be read; [`Error::WouldBlock`](crate::Error::WouldBlock).
    pub(crate) fn read(&mut self, entry: (&[u8], SeqNo), pointer: &[u8]) -> Result<Slice> {
        self.blobs.next_value(&mut self.scan, entry, pointer, &mut self.access)
    }
}

#[cfg(test)]
impl Default for PointedValues {
    fn default() -> PointedValues {
        PointedValues::new(&Arc::default(), &ReadOptions::default())
    }
}
