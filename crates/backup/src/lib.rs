//! Incremental backups of [`lsmx`] databases in directories and object stores.
//!
//! A [`BackupRepository`] stores backups in any store of the crate [`object_store`], such as a directory. The following features add
//! stores: `aws` for Amazon S3 and compatible services, `gcp` for Google Cloud Storage, and `azure` for Azure Blob Storage.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let home = dir.path();
//! use std::sync::Arc;
//!
//! use lsmx::{Db, Options};
//! use lsmx_backup::{BackupOptions, BackupRepository, RestoreOptions, Selection};
//! use object_store::local::LocalFileSystem;
//!
//! let db = Db::open(home.join("data"), Options::default())?;
//! db.put("ada", "1815")?;
//!
//! std::fs::create_dir(home.join("backups"))?;
//! // The directory is synced after each write.
//! let store = LocalFileSystem::new_with_prefix(home.join("backups"))?.with_fsync(true);
//! let repository = BackupRepository::new(Arc::new(store));
//! // On the file system of the database, so that tables can be linked.
//! let options = BackupOptions::new(home.join("data.staging"));
//! let first = repository.create(&db, &options).await?;
//!
//! db.put("ada", "1816")?;
//! repository.create(&db, &options).await?;
//!
//! let target = home.join("restored");
//! repository.restore(Selection::Id(first.id), &target, &RestoreOptions::default()).await?;
//! let restored = Db::open(&target, Options::default())?;
//! assert_eq!(restored.get("ada")?.as_deref(), Some(&b"1815"[..]));
//! # Ok(())
//! # }
//! ```

mod archiver;
mod blocking;
mod catalog;
mod create;
mod error;
mod log_chunk;
mod manifest;
mod prune;
mod read_only;
mod record;
mod repository;
mod restore;
mod restore_marker;
mod restore_point;
mod source_file;
mod staging;
#[cfg(test)]
mod tests;
mod transfer;
mod upload;

pub use archiver::{ArchiveOptions, ArchiveSummary, Archiver, BackupReason};
pub use catalog::{ArchivedLog, BackupInfo};
pub use create::BackupOptions;
pub use error::Error;
pub use prune::{PruneSummary, Retention};
pub use repository::{BackupRepository, Selection, VerifyDepth};
pub use restore::RestoreOptions;
pub use restore_point::RestorePoint;
pub use transfer::{Progress, ProgressCallback, TransferOptions};
