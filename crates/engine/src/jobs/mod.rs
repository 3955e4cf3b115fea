//! Background jobs: flushes, compactions and other jobs, and their scheduling.

pub(crate) mod compaction;
pub(crate) mod delete_persistence;
pub(crate) mod flush;
pub(crate) mod flush_trigger;
pub(crate) mod obsolete_files;
pub(crate) mod operand_store;
pub(crate) mod quarantine;
pub(crate) mod scheduler;
pub(crate) mod value_log;
pub(crate) mod version_installer;
pub(crate) mod worker_pool;
