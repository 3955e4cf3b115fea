//! Quarantine of files that background work cannot read.
//!
//! 1. A job that cannot read a table or a blob file of its tree, or a collection that cannot read a file
//!    of its operand store, has the file quarantined. The other inputs of the job are free again.
//! 2. No job takes a quarantined table. Pointers into a quarantined blob file are copied unread. An operand
//!    store leaves its quarantined files out of collections.
//! 3. The file is read again from the device, whole, after increasing pauses. The first such read that
//!    succeeds ends the quarantine. So does a change of the tree after which no version needs the file.
//!
//! Nothing of this is stored: after an open no file is quarantined.

use std::path::PathBuf;

use lsmx_base::failpoint::{self, Failpoint};
use lsmx_base::sync::Arc;
use lsmx_compaction::FileId;

use crate::env::rate_limit::IoPriority;
use crate::error::{Error, Result};
use crate::event::{Event, FileQuarantined, QuarantineEnd};
use crate::format::file_name::FileName;
use crate::operand_store::OperandFileKind;
use crate::state::{DbState, Work};
use crate::table::Table;
use crate::tree::counters::add;
use crate::tree::operands::Attached;
use crate::tree::version::SuperVersion;
use crate::tree::{Retry, Tree, TreeJobs};
use crate::value_log::Blob;
use crate::vfs::out_of_descriptors;

/// Whether an error says that a file which was written whole cannot be read.
fn is_unreadable(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } | Error::UnsupportedVersion { .. } => true,
        Error::Io { action, source, .. } => {
            matches!(*action, "open" | "read" | "read the size of") && !out_of_descriptors(source)
        }
        _ => false,
    }
}

/// The file of this tree that an error names, if it is one that can be quarantined.
fn named_file(tree: &Tree, view: &SuperVersion, error: &Error) -> Option<FileName> {
    let name = FileName::parse(error.path()?.file_name()?.to_str()?)?;
    is_there(tree, view, name).then_some(name)
}

/// Whether a view of the tree needs this file.
fn is_there(tree: &Tree, view: &SuperVersion, name: FileName) -> bool {
    match name {
        FileName::Table(number) => view.version.table(FileId(number)).is_some(),
        FileName::Blob(number) => view.version.blobs().file(FileId(number)).is_some(),
        FileName::Bucket(_) | FileName::Operands(_) => tree.beside.attached().is_some(),
        _ => false,
    }
}

/// Quarantines the table or blob file that an error of background work names. False if the error names no
/// such file of the tree, or one that is quarantined already: then the work has to pause.
pub(crate) fn admit(store: &DbState, tree: &Tree, error: &Error) -> bool {
    let name = if is_unreadable(error) { named_file(tree, &tree.pin(), error) } else { None };
    match name {
        Some(name @ (FileName::Table(_) | FileName::Blob(_))) => insert(store, tree, name, error),
        _ => false,
    }
}

/// As [`admit`], of the file of an operand store that [`recheck_operands`] could not read.
pub(crate) fn admit_operands(store: &DbState, tree: &Tree, error: &Error) -> bool {
    let name = if is_unreadable(error) { named_file(tree, &tree.pin(), error) } else { None };
    name.is_some_and(|name| insert(store, tree, name, error))
}

fn insert(store: &DbState, tree: &Tree, name: FileName, error: &Error) -> bool {
    let Some(path) = error.path().filter(|_| !failpoint::is_on(Failpoint::DamagedInputsStayBusy))
    else {
        return false;
    };
    let (path, cause) = (path.to_owned(), Arc::new(error.clone()));
    {
        let mut jobs = tree.jobs.lock();
        let now_us = store.env.now_us();
        if !jobs.quarantine.add(name, path.clone(), Arc::clone(&cause), now_us) {
            return false;
        }
        if let FileName::Table(number) = name {
            jobs.busy.block_file(FileId(number));
        }
        store.set_failing(tree.id, true);
    }
    add(&tree.counters.quarantines, 1);
    tell_store(tree);
    store.tell(&Event::FileQuarantined(FileQuarantined {
        keyspace: tree.name.clone(),
        path,
        error: cause,
    }));
    true
}

/// Whether an error names a file that is quarantined.
pub(crate) fn is_known(tree: &Tree, error: &Error) -> bool {
    let name = named_file(tree, &tree.pin(), error);
    name.is_some_and(|name| tree.jobs.lock().quarantine.contains(name))
}

/// Reads the files again that are due.
pub(crate) fn reread_due(store: &DbState, tree: &Tree) {
    if tree.jobs.lock().quarantine.is_empty() {
        return;
    }
    prune(store, tree);
    loop {
        let name = tree.jobs.lock().quarantine.take_due(store.env.now_us());
        let Some(name) = name else { return };
        reread(store, tree, name);
        if store.is_closing() {
            return;
        }
    }
}

/// Reads all quarantined files of a tree again, whether or not they are due; returns whether none is left.
pub(crate) fn reread_all(store: &DbState, tree: &Tree) -> bool {
    prune(store, tree);
    let names: Vec<_> = tree.jobs.lock().quarantine.files().map(|(name, _)| name).collect();
    for name in names {
        reread(store, tree, name);
    }
    tree.jobs.lock().quarantine.is_empty()
}

/// Ends the quarantine of files that the tree does not need any more.
pub(crate) fn prune(store: &DbState, tree: &Tree) {
    let view = tree.pin();
    let mut ended = Vec::new();
    {
        let mut jobs = tree.jobs.lock();
        let names = jobs.quarantine.files().map(|(name, _)| name);
        let unneeded: Vec<_> = names.filter(|name| !is_there(tree, &view, *name)).collect();
        ended.extend(unneeded.into_iter().filter_map(|name| end(&mut jobs, name)));
    }
    for path in ended {
        report_end(store, tree, path);
    }
}

/// Ends the quarantine of one file; returns its path if it was quarantined.
fn end(jobs: &mut TreeJobs, name: FileName) -> Option<PathBuf> {
    let path = jobs.quarantine.remove(name)?;
    // The next look at the tree decides anew.
    jobs.blocked = None;
    match name {
        FileName::Table(number) => jobs.busy.unblock_file(FileId(number)),
        FileName::Bucket(_) | FileName::Operands(_) => jobs.collection = Retry::default(),
        _ => {}
    }
    Some(path)
}

fn report_end(store: &DbState, tree: &Tree, path: PathBuf) {
    tell_store(tree);
    {
        let jobs = tree.jobs.lock();
        if jobs.next_try_us().is_none() {
            store.set_failing(tree.id, false);
        }
    }
    store.tell(&Event::QuarantineEnd(QuarantineEnd { keyspace: tree.name.clone(), path }));
    store.make_ready(Work::Compaction, tree.id);
}

/// Reads one file from the device and ends its quarantine if it is as it should be.
fn reread(store: &DbState, tree: &Tree, name: FileName) {
    let start_us = store.env.now_us();
    let read = check(store, tree, name);
    let now_us = store.env.now_us();
    let ended = {
        let mut jobs = tree.jobs.lock();
        match read {
            Ok(()) => end(&mut jobs, name),
            Err(error) => {
                let took_us = now_us.saturating_sub(start_us);
                jobs.quarantine.read_failed(name, Arc::new(error), now_us, took_us);
                None
            }
        }
    };
    if let Some(path) = ended {
        report_end(store, tree, path);
    }
}

/// Reads a file of a tree from the device, whole, and checks it.
fn check(store: &DbState, tree: &Tree, name: FileName) -> Result<()> {
    let view = tree.pin();
    let vfs = store.vfs.as_ref();
    let bytes = match name {
        FileName::Table(number) => {
            let Some(table) = view.version.table(FileId(number)) else { return Ok(()) };
            let (path, identity) = (table.path(), table.table().identity());
            Table::open_from_device(vfs, path, identity)?.verify()?;
            identity.bytes
        }
        FileName::Blob(number) => {
            let Some(file) = view.version.blobs().file(FileId(number)) else { return Ok(()) };
            Blob::open_from_device(vfs, file.blob().path(), tree.id, file.record())?.verify()?;
            file.record().bytes
        }
        FileName::Bucket(number) => check_operands(tree, OperandFileKind::Bucket, number)?,
        FileName::Operands(number) => check_operands(tree, OperandFileKind::Log, number)?,
        _ => 0,
    };
    // Paid for afterwards: the read is not to take longer than the device needs, for closing waits for it.
    store.tables.rate.acquire(IoPriority::Compaction, bytes);
    Ok(())
}

/// As [`check`], of a file of an operand store; returns the bytes read.
fn check_operands(tree: &Tree, kind: OperandFileKind, number: u64) -> Result<u64> {
    match tree.beside.attached() {
        Some(attached) => attached.store.check_file(kind, number).unwrap_or(Ok(0)),
        None => Ok(0),
    }
}

/// Reads the file of an operand store that an error names from the device and checks it. `None` if the error
/// names no such file, or the store has no such check.
pub(crate) fn recheck_operands(attached: &Attached, error: &Error) -> Option<Result<u64>> {
    match FileName::parse(error.path()?.file_name()?.to_str()?)? {
        FileName::Bucket(number) => attached.store.check_file(OperandFileKind::Bucket, number),
        FileName::Operands(number) => attached.store.check_file(OperandFileKind::Log, number),
        _ => None,
    }
}

/// Has the operand store leave its quarantined files out of collections.
fn tell_store(tree: &Tree) {
    let Some(attached) = tree.beside.attached() else { return };
    let jobs = tree.jobs.lock();
    let files = jobs.quarantine.files().filter_map(|(name, _)| match name {
        FileName::Bucket(number) => Some((OperandFileKind::Bucket, number)),
        FileName::Operands(number) => Some((OperandFileKind::Log, number)),
        _ => None,
    });
    let files: Vec<_> = files.collect();
    drop(jobs);
    attached.store.leave_out(&files);
}

/// The first of these tables that is quarantined, and the error that says so.
pub(crate) fn blocking(
    tree: &Tree,
    jobs: &TreeJobs,
    mut inputs: impl Iterator<Item = FileId>,
) -> Option<(FileId, Error)> {
    inputs.find_map(|input| {
        let file = jobs.quarantine.get(FileName::Table(input.0))?;
        let error = Error::CompactionBlocked {
            keyspace: tree.name.clone(),
            file: file.path.clone(),
            cause: Arc::clone(&file.cause),
        };
        Some((input, error))
    })
}
