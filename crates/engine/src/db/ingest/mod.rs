//! Ingest of external tables and of the tables of bulk loads.
//!
//! 1. *Preparation.* Each file is linked into the database directory, or copied, and synced. The linked or copied file
//!    is verified completely. The tables of a bulk load are written there directly. The manifest names none of the files
//!    yet, so a crash leaves orphans, which the next open removes.
//! 2. *Flush.* Memtables that overlap the files are flushed, because reads search memtables first.
//! 3. *Installation*, by the thread that holds the lead of the commit pipeline. All earlier commits are visible, and
//!    later commits wait. If a memtable overlaps the files again, the ingest returns to step 2, and from then on writes
//!    to its keyspaces wait in the admission. Otherwise the log is synced, and one manifest edit adds the files to the
//!    trees of all keyspaces, each to the deepest level without overlap. All entries have the sequence number of this
//!    position in the commit order.
//! 4. *Publication.* The files become visible together, when the sequence number is published.
//!
//! No job of an affected tree starts during the installation, so that the choice of the levels stays valid. Running jobs
//! continue; a file that lies between their inputs is added above them.

pub(crate) mod bulk_load;
mod entry_buffer;
mod external_sort;
pub(crate) mod external_table;
pub(crate) mod files;
pub(crate) mod install;
mod load_tables;
mod prepare;
pub(crate) mod prepared;
