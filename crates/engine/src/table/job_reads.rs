//! Reads of data blocks by background jobs.
//!
//! A job reads the blocks of a table in order, so one read fetches several blocks. If compactions bypass the page
//! cache, the job uses direct reads. Direct reads do not evict pages that lookups use, and do not drop pages that are
//! already cached.

use lsmx_base::slice::BlockBytes;

use crate::error::Result;
use crate::format::block::BlockHandle;
use crate::table::block_window::{BlockWindow, WINDOW_BYTES_MAX};
use crate::table::fd_cache::JobFile;
use crate::table::read_context::{ReadContext, ReadPurpose};
use crate::table::reader::Table;

/// Alignment of the offsets and memory addresses of reads. Direct reads with this alignment need no copy.
const ALIGNMENT: u16 = 4096;

/// Data blocks of a table that a job has read.
#[derive(Debug, Default)]
pub(super) struct JobReads {
    /// Opened by the first read.
    file: Option<JobFile>,
    window: BlockWindow,
}

impl JobReads {
    /// Returns the contents of a data block from the block cache, from the last read, or from the file.
    pub(super) fn read_block(
        &mut self,
        table: &Table,
        handle: BlockHandle,
        context: &mut ReadContext,
    ) -> Result<BlockBytes> {
        if let Some(block) = table.peek_data_block(handle, context) {
            return Ok(block);
        }
        let JobReads { file, window } = self;
        window.read_block(table, handle, ReadPurpose::Job, |window| {
            let start = handle.offset - handle.offset % u64::from(ALIGNMENT);
            let data_bytes = table.properties().data_bytes.min(table.identity().bytes);
            let end = data_bytes.min(start + WINDOW_BYTES_MAX).max(handle.offset + handle.bytes);
            let file = match &mut *file {
                Some(file) => file,
                none => none.insert(table.file.open_for_job()?),
            };
            window.fill(table, (start, end), usize::from(ALIGNMENT), |buffer| {
                table.file.read_for_job(file, start, buffer)
            })
        })
    }
}
