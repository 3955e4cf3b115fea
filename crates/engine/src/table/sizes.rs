//! How much of a table lies before a key, from its top index alone.

use lsmx_base::coding::len_u64;
use lsmx_base::key::SeqNo;

use crate::error::{Error, Result};

use crate::table::access::Access;
use crate::table::reader::{FillCache, Table};

impl Table {
    /// Bytes of the file before `user_key`, in steps of what one index block covers: keys of one
    /// index block have the same answer, the middle of it.
    ///
    /// # Errors
    /// When the top index cannot be read or is damaged.
    pub(crate) fn bytes_before(&self, user_key: &[u8]) -> Result<u64> {
        let bytes = self.identity.bytes;
        let Some(top) = self.top_index(&mut Access::of(FillCache::Yes))? else {
            return Ok(bytes / 2);
        };
        let at = |what: lsmx_base::malformed::Malformed| Error::malformed(what, &self.path, 0);
        let count = len_u64(top.count()).max(1);
        let Some((ordinal, _)) = top.seek(user_key, SeqNo::MAX).map_err(at)? else {
            return Ok(bytes);
        };
        // Of 2 × count halves, those before the middle of this index block.
        let halves = u128::from(2 * len_u64(ordinal) + 1);
        let before = u128::from(bytes) * halves / u128::from(2 * count);
        Ok(u64::try_from(before).unwrap_or(bytes))
    }
}
