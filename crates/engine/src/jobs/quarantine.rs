//! Quarantine: excludes files that cannot be read from background jobs.
//!
//! 1. A table or a blob file is quarantined if a job of its tree cannot read it. A file of an operand store is
//!    quarantined if a collection cannot read it. The other inputs of the failed job can be used by other jobs again.
//! 2. A quarantined table is not used as an input of jobs. If an entry points to a quarantined blob file, jobs copy the
//!    pointer without reading the value. The operand store does not use its quarantined files in collections.
//! 3. After pauses of increasing length, the whole file is read again from the device. The quarantine ends when this
//!    read succeeds, or when no version needs the file any more.
//!
//! The quarantine is not durable. After an open, no file is quarantined.

use std::path::PathBuf;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::file_name::FileName;
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::env::rate_limit::IoPriority;
use crate::error::{Error, Result};
use crate::event::{Event, FileQuarantined, QuarantineEnd};
use crate::operand_store::OperandFileKind;
use crate::state::DbState;
use crate::state::work_queue::WorkKind;
use crate::table::{Table, verify_table};
use crate::tree::operand_store_slot::AttachedStore;
use crate::tree::super_version::SuperVersion;
use crate::tree::{RetryState, Tree, TreeJobState};
use crate::value_log::BlobReader;
use crate::vfs::is_out_of_descriptors;

/// Returns true if an error shows that a file is corrupt or cannot be read. Returns false for a lack of file
/// descriptors.
pub(crate) fn is_unreadable(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } | Error::UnsupportedVersion { .. } => true,
        Error::Io { action, source, .. } => {
            matches!(*action, "open" | "read" | "read the size of")
                && !is_out_of_descriptors(source)
        }
        _ => false,
    }
}

/// Returns the file whose path is in the error. Returns `None` if the tree does not use this file.
fn find_file_of_error(tree: &Tree, view: &SuperVersion, error: &Error) -> Option<FileName> {
    let name = FileName::parse(error.path()?.file_name()?.to_str()?)?;
    is_file_referenced(tree, view, name).then_some(name)
}

/// Returns whether a view of the tree uses this file.
fn is_file_referenced(tree: &Tree, view: &SuperVersion, name: FileName) -> bool {
    match name {
        FileName::Table(number) => view.version.table(FileId(number)).is_some(),
        FileName::Blob(number) => view.version.blobs().file(FileId(number)).is_some(),
        FileName::Bucket(_) | FileName::Operands(_) => tree.operand_store.attached().is_some(),
        _ => false,
    }
}

/// Quarantines the table or blob file whose path is in an error of a background job.
///
/// Returns false if the error does not contain such a path, or if the file is already quarantined. The caller must then
/// retry the work after a pause.
pub(crate) fn quarantine_file(state: &DbState, tree: &Tree, error: &Error) -> bool {
    let name = if is_unreadable(error) {
        find_file_of_error(tree, &tree.pin_super_version(), error)
    } else {
        None
    };
    match name {
        Some(name @ (FileName::Table(_) | FileName::Blob(_))) => {
            add_to_quarantine(state, tree, name, error)
        }
        _ => false,
    }
}

/// Quarantines a file of an operand store after [`recheck_operand_file`] has failed.
pub(crate) fn quarantine_operand_file(state: &DbState, tree: &Tree, error: &Error) -> bool {
    let name = if is_unreadable(error) {
        find_file_of_error(tree, &tree.pin_super_version(), error)
    } else {
        None
    };
    name.is_some_and(|name| add_to_quarantine(state, tree, name, error))
}

fn add_to_quarantine(state: &DbState, tree: &Tree, name: FileName, error: &Error) -> bool {
    let Some(path) = error.path().filter(|_| !failpoint::is_on(Failpoint::DamagedInputsStayBusy))
    else {
        return false;
    };
    let (path, cause) = (path.to_owned(), Arc::new(error.clone()));
    {
        let mut jobs = tree.jobs.lock();
        let now_us = state.env.now_us();
        if !jobs.quarantine.add(name, path.clone(), Arc::clone(&cause), now_us) {
            return false;
        }
        if let FileName::Table(number) = name {
            jobs.running.block_file(FileId(number));
        }
        state.set_compaction_failing(tree.id, true);
    }
    tree.counters.update(|counts| counts.compaction.quarantines += 1);
    exclude_from_collections(tree);
    state.emit(&Event::FileQuarantined(FileQuarantined {
        keyspace: tree.name(),
        path,
        error: cause,
    }));
    true
}

/// Returns whether the error contains the path of a quarantined file.
pub(crate) fn is_quarantined(tree: &Tree, error: &Error) -> bool {
    let name = find_file_of_error(tree, &tree.pin_super_version(), error);
    name.is_some_and(|name| tree.jobs.lock().quarantine.contains(name))
}

/// Reads all quarantined files again whose next retry is due.
pub(crate) fn recheck_due_files(state: &DbState, tree: &Tree) {
    if tree.jobs.lock().quarantine.is_empty() {
        return;
    }
    release_unneeded_files(state, tree);
    loop {
        let name = tree.jobs.lock().quarantine.take_due_file(state.env.now_us());
        let Some(name) = name else { return };
        read_quarantined_file_again(state, tree, name);
        if state.is_closing() {
            return;
        }
    }
}

/// Reads all quarantined files of a tree again. Returns true if no file is quarantined afterwards.
pub(crate) fn recheck_all_files(state: &DbState, tree: &Tree) -> bool {
    release_unneeded_files(state, tree);
    let names: Vec<_> = tree.jobs.lock().quarantine.files().map(|(name, _)| name).collect();
    for name in names {
        read_quarantined_file_again(state, tree, name);
    }
    tree.jobs.lock().quarantine.is_empty()
}

/// Ends the quarantine of files that the tree no longer uses.
pub(crate) fn release_unneeded_files(state: &DbState, tree: &Tree) {
    let view = tree.pin_super_version();
    let mut released = Vec::new();
    {
        let mut jobs = tree.jobs.lock();
        let names = jobs.quarantine.files().map(|(name, _)| name);
        let unneeded: Vec<_> =
            names.filter(|name| !is_file_referenced(tree, &view, *name)).collect();
        released.extend(unneeded.into_iter().filter_map(|name| release_file(&mut jobs, name)));
    }
    for path in released {
        report_release(state, tree, path);
    }
}

/// Ends the quarantine of a file. Returns its path, or `None` if the file was not quarantined.
fn release_file(jobs: &mut TreeJobState, name: FileName) -> Option<PathBuf> {
    let path = jobs.quarantine.remove(name)?;
    // The next pick of a job determines again whether compactions are blocked.
    jobs.blocked = None;
    match name {
        FileName::Table(number) => jobs.running.unblock_file(FileId(number)),
        FileName::Bucket(_) | FileName::Operands(_) => {
            jobs.collection_retry = RetryState::default()
        }
        _ => {}
    }
    Some(path)
}

fn report_release(state: &DbState, tree: &Tree, path: PathBuf) {
    exclude_from_collections(tree);
    {
        let jobs = tree.jobs.lock();
        if jobs.next_retry_us().is_none() {
            state.set_compaction_failing(tree.id, false);
        }
    }
    state.emit(&Event::QuarantineEnd(QuarantineEnd { keyspace: tree.name(), path }));
    state.work.push(WorkKind::Compaction, tree.id);
}

/// Reads a quarantined file from the device. Ends its quarantine if the file is intact.
fn read_quarantined_file_again(state: &DbState, tree: &Tree, name: FileName) {
    let start_us = state.env.now_us();
    let result = verify_file(state, tree, name);
    let now_us = state.env.now_us();
    let released = {
        let mut jobs = tree.jobs.lock();
        match result {
            Ok(()) => release_file(&mut jobs, name),
            Err(error) => {
                let took_us = now_us.saturating_sub(start_us);
                jobs.quarantine.record_failed_read(name, Arc::new(error), now_us, took_us);
                None
            }
        }
    };
    if let Some(path) = released {
        report_release(state, tree, path);
    }
}

/// Reads a whole file of a tree from the device and verifies it.
fn verify_file(state: &DbState, tree: &Tree, name: FileName) -> Result<()> {
    let view = tree.pin_super_version();
    let vfs = state.vfs.as_ref();
    let bytes = match name {
        FileName::Table(number) => {
            let Some(table) = view.version.table(FileId(number)) else { return Ok(()) };
            let (path, identity) = (table.path(), table.table().identity());
            verify_table(&Table::open_from_device(vfs, path, identity)?)?;
            identity.bytes
        }
        FileName::Blob(number) => {
            let Some(file) = view.version.blobs().file(FileId(number)) else { return Ok(()) };
            BlobReader::open_from_device(vfs, file.blob().path(), tree.id, file.record())?
                .verify()?;
            file.record().bytes
        }
        FileName::Bucket(number) => verify_operand_file(tree, OperandFileKind::Bucket, number)?,
        FileName::Operands(number) => verify_operand_file(tree, OperandFileKind::Log, number)?,
        _ => 0,
    };
    // The bytes are charged to the rate limiter after the read. A throttled read would delay `close`, which waits for
    // this read.
    state.tables.rate.acquire(IoPriority::Compaction, bytes);
    Ok(())
}

/// Verifies a file of an operand store. Returns the number of bytes that were read.
fn verify_operand_file(tree: &Tree, kind: OperandFileKind, number: u64) -> Result<u64> {
    match tree.operand_store.attached() {
        Some(attached) => attached.store.check_file(kind, number).unwrap_or(Ok(0)),
        None => Ok(0),
    }
}

/// Reads the operand store file whose path is in an error from the device, and verifies it. Returns `None` if the error
/// contains no such path, or if the store does not support this check.
pub(crate) fn recheck_operand_file(attached: &AttachedStore, error: &Error) -> Option<Result<u64>> {
    match FileName::parse(error.path()?.file_name()?.to_str()?)? {
        FileName::Bucket(number) => attached.store.check_file(OperandFileKind::Bucket, number),
        FileName::Operands(number) => attached.store.check_file(OperandFileKind::Log, number),
        _ => None,
    }
}

/// Passes the list of quarantined files to the operand store. The store excludes them from collections.
fn exclude_from_collections(tree: &Tree) {
    let Some(attached) = tree.operand_store.attached() else { return };
    let list_files = || {
        let jobs = tree.jobs.lock();
        let files = jobs.quarantine.files().filter_map(|(name, _)| match name {
            FileName::Bucket(number) => Some((OperandFileKind::Bucket, number)),
            FileName::Operands(number) => Some((OperandFileKind::Log, number)),
            _ => None,
        });
        files.collect::<Vec<_>>()
    };
    pass_current_value(list_files, |files| attached.store.exclude_files(files));
}

/// Passes the result of `current` to `pass`. Several threads may do so at the same time. The last value that is passed is
/// the current one.
fn pass_current_value<T: PartialEq>(current: impl Fn() -> T, pass: impl Fn(&T)) {
    loop {
        let value = current();
        pass(&value);
        // Another thread may have passed a newer value before this thread has passed the old one.
        if current() == value {
            return;
        }
    }
}

/// Returns the first quarantined table in `inputs`, and the error to report.
pub(crate) fn find_quarantined_input(
    tree: &Tree,
    jobs: &TreeJobState,
    mut inputs: impl Iterator<Item = FileId>,
) -> Option<(FileId, Error)> {
    inputs.find_map(|input| {
        let file = jobs.quarantine.get(FileName::Table(input.0))?;
        let error = Error::CompactionBlocked {
            keyspace: tree.name(),
            file: file.path.clone(),
            cause: Arc::clone(&file.cause),
        };
        Some((input, error))
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Bug: a thread that added a file to the quarantine of an operand store passed its list to the store after another
    /// thread had ended the quarantine of the file. The store excluded the file from collections until the next change
    /// of the quarantine.
    #[test]
    fn value_that_changes_before_it_is_passed_is_passed_again() {
        let (current, passed, calls) = (Cell::new(1), Cell::new(0), Cell::new(0));
        let pass = |value: &i32| {
            if calls.replace(calls.get() + 1) == 0 {
                // Another thread changes the value and passes it.
                current.set(2);
                passed.set(2);
            }
            passed.set(*value);
        };
        pass_current_value(|| current.get(), pass);
        assert_eq!((passed.get(), calls.get()), (2, 2));
    }
}
