//! Background work: flushes, compactions, and taking away what nobody needs.

pub(crate) mod compaction;
pub(crate) mod flush;
pub(crate) mod governor;
pub(crate) mod obsolete_files;
pub(crate) mod operand_store;
pub(crate) mod quarantine;
pub(crate) mod scheduler;
pub(crate) mod value_log;
pub(crate) mod version_installer;
pub(crate) mod worker_pool;

pub(crate) use crate::jobs::compaction::range_tombstones::SpanQueue;
