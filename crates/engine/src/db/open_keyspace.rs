//! Opens and creates keyspaces, and changes their options.

use lsmx_base::sync::Arc;

use crate::db::inner::DbInner;
use crate::db::open::kept_log;
use crate::db::operand_store::{OpenedStore, attach, open_operand_store, stored_token};
use crate::error::{Error, Result};
use crate::format::version_edit::{Change, KEYSPACE_NAME_BYTES_MAX};
use crate::options::keyspace::KeyspaceOptions;
use crate::options::memory_plan::limit_store_memtable;
use crate::options::policy::StoredPolicy;
use crate::options::stored::{StoredOperandStore, StoredOptions};
use crate::state::work_queue::WorkKind;
use crate::tree::keyspace_name::KeyspaceName;
use crate::tree::operand_store_slot::AttachedStore;
use crate::tree::version::Version;
use crate::tree::{Tree, TreeContext};
use crate::write::backpressure;

/// Opens a keyspace. Creates it if it does not exist and `create` is true.
pub(crate) fn open_keyspace(
    inner: &DbInner,
    name: &str,
    options: KeyspaceOptions,
    create: bool,
) -> Result<Arc<Tree>> {
    inner.check_open()?;
    inner.begin_operation();
    check_keyspace_name(name)?;
    inner.options.check_keyspace_options(name, &options)?;
    let options = inner.options.memory_plan().limit_sizes(options);
    inner.state.error_state.check_writable()?;
    if inner.is_follower() {
        check_has_no_store(inner, name, &options)?;
    }
    loop {
        if !create {
            inner.existing_tree(name)?;
        }
        let shared_name = KeyspaceName::new(name);
        let opened = open_operand_store(inner, &shared_name, &options)?;
        if let Some(OpenedStore { tree: Some(id), attached }) = &opened {
            let tree = inner.state.trees.read().by_id(*id).cloned();
            tree.map_or(Ok(()), |tree| kept_log::deliver(inner, &tree, attached, &options))?;
        }
        let tree = open_with_store(inner, &shared_name, &options, opened, create);
        inner.state.emit_pending_events();
        inner.state.discard_unclaimed_files();
        if let Some(tree) = tree? {
            if inner.read_only.is_none() {
                // Called without a lock, because the policy and the event listener are user code.
                backpressure::refresh_write_limits(&inner.state, &inner.throttle, &tree);
            }
            return Ok(tree);
        }
    }
}

/// Fails if a keyspace of a follower has an operand store, or would get one.
fn check_has_no_store(inner: &DbInner, name: &str, options: &KeyspaceOptions) -> Result<()> {
    if let Some(tree) = inner.state.trees.read().by_name(name) {
        tree.operand_store.check()?;
    }
    match &options.operand_store {
        None => Ok(()),
        Some(store) => Err(Error::NoOperandStore {
            keyspace: name.to_owned(),
            store: store.name().to_owned(),
            cause: Some(Arc::new(Error::FollowerUnsupported { what: "operand stores" })),
        }),
    }
}

/// Fails if a keyspace cannot have this name.
pub(crate) fn check_keyspace_name(name: &str) -> Result<()> {
    if !name.is_empty() && name.len() <= KEYSPACE_NAME_BYTES_MAX {
        return Ok(());
    }
    Err(Error::InvalidOption {
        name: "keyspace name",
        value: format!("{} bytes", name.len()),
        must: "1 to 255 bytes",
    })
}

/// Opens or creates a keyspace with the operand store that was opened for it.
///
/// Returns `None` if the keyspace was replaced, or its operand store was replaced or changed, after `opened` was read. The
/// caller must then retry.
fn open_with_store(
    inner: &DbInner,
    shared_name: &Arc<KeyspaceName>,
    options: &KeyspaceOptions,
    opened: Option<OpenedStore>,
    create: bool,
) -> Result<Option<Arc<Tree>>> {
    let name = &*shared_name.get();
    let _changes = inner.keyspace_changes.lock();
    // `close` sets `closed`, and then acquires this lock once. After that, no keyspace changes.
    inner.check_open()?;
    let existing = inner.state.trees.read().by_name(name).cloned();
    let is_replaced = |opened: &OpenedStore| match &existing {
        Some(tree) if opened.tree == Some(tree.id) => {
            tree.operand_store.attached().is_none()
                && stored_token(&inner.state, tree.id) != opened.attached.opened
        }
        existing => opened.tree.is_some() || existing.is_some(),
    };
    let lacks_store = existing.as_ref().is_some_and(|tree| {
        opened.is_none()
            && options.operand_store.is_some()
            && tree.operand_store.attached().is_none()
    });
    if opened.as_ref().is_some_and(is_replaced) || (lacks_store && inner.read_only.is_none()) {
        return Ok(None);
    }
    let attached = opened.map(|opened| opened.attached);
    if attached.is_some() && inner.read_only.is_none() {
        let started = inner.scheduler.start_flush_threads(1);
        started.map_err(|error| Error::io("start a thread for", &inner.state.dir, error))?;
    }
    let options = options.clone();
    match existing {
        Some(tree) if inner.read_only.is_some() => {
            tree.check_default_ttl(&options)?;
            tree.check_delete_persistence(&options, &tree.settings().stored_policy)?;
            tree.merge_resolver.check_operator(options.merge_operator.as_ref())?;
            if let Some(operator) = options.merge_operator.clone() {
                tree.merge_resolver.set_operator(operator);
            }
            if let Some(attached) = attached {
                attach(&tree, attached);
            }
            // Only the options in memory change. The stored policy stays the same.
            let policy = tree.settings().stored_policy.clone();
            tree.set_settings(options, policy);
            tree.clear_awaits_options();
            Ok(Some(tree))
        }
        None if inner.read_only.is_some() => Err(Error::OpenedReadOnly),
        Some(tree) => {
            change_options(inner, &tree, options, attached)?;
            tree.clear_awaits_options();
            // Jobs that waited for the options may start.
            inner.state.work.push(WorkKind::Compaction, tree.id);
            Ok(Some(tree))
        }
        None if !create => Err(Error::UnknownKeyspace { name: name.to_owned() }),
        None => create_keyspace(inner, shared_name, options, attached).map(Some),
    }
}

/// Changes options of an open keyspace. `change` maps the current options to the new ones. It is called again if
/// another thread changes the options meanwhile.
pub(crate) fn set_options(
    inner: &DbInner,
    tree: &Arc<Tree>,
    mut change: impl FnMut(KeyspaceOptions) -> KeyspaceOptions,
) -> Result<()> {
    inner.check_writable()?;
    inner.begin_operation();
    inner.state.error_state.check_writable()?;
    let changed = loop {
        let settings = Arc::clone(&tree.settings());
        // Called without a lock, because it is user code.
        let options = change(settings.options.clone());
        if !options.has_same_operand_store(&settings.options) {
            return Err(Error::InvalidOption {
                name: "operand_store",
                value: "changed".to_owned(),
                must: "set with `Db::keyspace`",
            });
        }
        inner.options.check_keyspace_options(&tree.name(), &options)?;
        let options = inner.options.memory_plan().limit_sizes(options);
        let _changes = inner.keyspace_changes.lock();
        if Arc::ptr_eq(&settings, &tree.settings()) {
            let checked = inner.check_open().and_then(|()| tree.check_accepts_writes());
            break checked.and_then(|()| change_options(inner, tree, options, None));
        }
    };
    inner.state.emit_pending_events();
    changed?;
    backpressure::refresh_write_limits(&inner.state, &inner.throttle, tree);
    inner.scheduler.run_inline();
    Ok(())
}

/// Creates a keyspace. The caller holds `keyspace_changes`.
fn create_keyspace(
    inner: &DbInner,
    name: &Arc<KeyspaceName>,
    options: KeyspaceOptions,
    attached: Option<Arc<AttachedStore>>,
) -> Result<Arc<Tree>> {
    let state = &inner.state;
    let policy = options.stored_policy().unwrap_or_default();
    let id = state.manifest.with_state(|manifest| manifest.keyspace_id_next);
    let persisted = StoredOptions::new(&options).encode();
    let create = Change::CreateKeyspace { id, name: name.get(), options: persisted };
    inner.append_edit(vec![create])?;
    let first_seq = inner.committer.next_seq();
    let version = Arc::new(Version::empty(&state.tables.deferred_drop));
    let latencies = Arc::clone(&state.latencies);
    let origin = TreeContext { open_id: inner.open_id, env: state.env.clone(), latencies };
    let tree =
        Arc::new(Tree::new(origin, id, Arc::clone(name), options, policy, version, first_seq));
    if let Some(attached) = attached {
        attach(&tree, attached);
    }
    state.trees.write().insert(Arc::clone(&tree));
    Ok(tree)
}

/// Changes the options of an existing keyspace and stores the persistent ones.
///
/// The caller holds `keyspace_changes`. `attached` is ignored if the keyspace has an open store.
fn change_options(
    inner: &DbInner,
    tree: &Arc<Tree>,
    mut options: KeyspaceOptions,
    attached: Option<Arc<AttachedStore>>,
) -> Result<()> {
    let attached = attached.filter(|_| tree.operand_store.attached().is_none());
    let adds_store = attached.is_some() && !tree.operand_store.is_used();
    let settings = tree.settings();
    let stored_policy = settings.stored_policy.clone();
    let policy = options.stored_policy().unwrap_or_else(|| stored_policy.clone());
    if !matches!(policy, StoredPolicy::Spec(_)) && options.custom_policy().is_none() {
        tree.check_policy()?;
        // The custom policy of the previous call still applies.
        options.policy = settings.options.policy.clone();
    }
    drop(settings);
    tree.check_default_ttl(&options)?;
    let store = attached.clone().or_else(|| tree.operand_store.attached());
    if store.is_some() {
        // The call may omit the store, which stays open.
        limit_store_memtable(&mut options);
    }
    options.check_delete_persistence(&policy, store.as_ref().map(|store| &store.factory))?;
    let operator = options.merge_operator.clone();
    let adds_separation = options.value_separation.is_some() && !tree.has_separated_values();
    let adds_operator = tree.merge_resolver.check_operator(operator.as_ref())?;
    if adds_operator || policy != stored_policy || adds_store || adds_separation {
        let operator_name = operator.as_ref().map(|operator| operator.name());
        let persisted = StoredOptions {
            policy: policy.to_string(),
            merge_operator: tree.merge_resolver.name().or(operator_name).map(str::to_owned),
            operand_store: attached
                .as_ref()
                .map(|attached| StoredOperandStore::Name(attached.factory.name().to_owned()))
                .or_else(|| tree.operand_store.stored_options()),
            value_separation: tree.has_separated_values() || adds_separation,
        };
        let options = persisted.encode();
        inner.append_edit(vec![Change::SetOptions { keyspace: tree.id, options }])?;
    }
    if let Some(operator) = operator {
        tree.merge_resolver.set_operator(operator);
    }
    if let Some(attached) = attached {
        attach(tree, attached);
    }
    tree.set_settings(options, policy);
    // The new policy may be able to run jobs, even if the previous policy was blocked.
    tree.jobs.lock().blocked = None;
    inner.state.work.push(WorkKind::Compaction, tree.id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use lsmx_compaction::{PolicySpec, Preset};

    use super::*;
    use crate::db::{Db, Keyspace};
    use crate::env::Background;
    use crate::memtable::MemtableKind;
    use crate::options::db::DEFAULT_KEYSPACE;
    use crate::options::db::Options;
    use crate::options::value_separation::ValueSeparation;
    use crate::vfs::MemVfs;
    use crate::vfs::call::VfsCall;
    use crate::vfs::fault::{Errno, Fault, FaultRule, FaultVfs};

    /// Bug: all memtables of a keyspace had the kind of its first memtable.
    #[test]
    fn changed_memtable_kind_applies_to_the_next_memtable() {
        let vfs = Arc::new(MemVfs::new());
        let open = || Db::open("db", Options::default().vfs(vfs.clone())).unwrap();
        let options = |kind| KeyspaceOptions::default().memtable_kind(kind);
        let active_kind = |keyspace: &Keyspace| keyspace.tree().super_version().active.kind();
        let [tree, list] = [MemtableKind::BLinkTree, MemtableKind::SkipList];
        let db = open();
        drop(db.keyspace("a", options(tree)).unwrap());
        drop(db);
        let db = open();
        let keyspace = db.keyspace("a", options(list)).unwrap();
        keyspace.put("key", "1").unwrap();
        db.flush().unwrap();
        assert_eq!((keyspace.options().memtable_kind, active_kind(&keyspace)), (list, list));
        keyspace.set_options(|options| options.memtable_kind(tree)).unwrap();
        keyspace.put("key", "2").unwrap();
        assert_eq!((keyspace.options().memtable_kind, active_kind(&keyspace)), (tree, list));
        db.flush().unwrap();
        assert_eq!(active_kind(&keyspace), tree);
        assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"2"[..]));
    }

    /// Bug: the memtables that a resume created had the kinds of those before it.
    #[test]
    fn changed_memtable_kind_applies_to_the_memtable_after_a_resume() {
        let disk = FaultVfs::new(Arc::new(MemVfs::new()), 1);
        let options = Options::default().background(Background::Inline);
        let db = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
        let keyspace = db.default_keyspace();
        keyspace.put("key", "value").unwrap();
        keyspace.set_options(|options| options.memtable_kind(MemtableKind::SkipList)).unwrap();
        let failing = FaultRule::new(Fault::Error(Errno::Io)).for_calls(&[VfsCall::Append]);
        disk.add_rule(failing.path_contains(".wal").nth(0));
        assert!(matches!(keyspace.put("lost", "value"), Err(Error::ReadOnly { .. })));
        db.resume().unwrap();
        assert_eq!(keyspace.tree().super_version().active.kind(), MemtableKind::SkipList);
        keyspace.put("later", "value").unwrap();
        assert_eq!(keyspace.iter().count(), 2);
    }

    /// Bug: a change of other options ended the wait for the options for separated values. The next compactions moved all
    /// values from blob files into tables.
    #[test]
    fn set_options_of_keyspace_that_awaits_options_keeps_value_pointers() {
        let vfs = Arc::new(MemVfs::new());
        let open = || {
            let options = Options::default().background(Background::Inline).vfs(vfs.clone());
            Db::open("db", options).unwrap()
        };
        let separation = ValueSeparation { threshold_bytes: 100, ..ValueSeparation::default() };
        let overwrite = |db: &Db, side: &Keyspace| {
            for run in 0..2 {
                side.put("small", format!("{run}")).unwrap();
                db.flush().unwrap();
            }
            side.compact_range::<&[u8]>(..).unwrap();
        };
        let blob_files = |db: &Db| db.metrics().keyspaces["side"].value_log.blob_files;
        let db = open();
        let with_separation = KeyspaceOptions::default().value_separation(separation);
        let side = db.keyspace("side", with_separation).unwrap();
        side.put("large", [7; 1000]).unwrap();
        overwrite(&db, &side);
        drop((side, db));

        let db = open();
        let side = db.open_keyspace("side", None).unwrap();
        side.set_policy(PolicySpec::new(Preset::Tiering)).unwrap();
        side.set_options(|options| options.block_bytes(1 << 10)).unwrap();
        overwrite(&db, &side);
        assert!(side.tree().awaits_value_separation() && side.tree().keeps_covered_tombstones());
        assert_eq!(blob_files(&db), 1);
        drop((side, db));

        // `set_options` can enable value separation, and then disable it.
        let db = open();
        let side = db.open_keyspace("side", None).unwrap();
        side.set_options(|options| options.value_separation(separation)).unwrap();
        assert!(!side.tree().awaits_value_separation());
        side.set_options(|options| options.value_separation(None)).unwrap();
        overwrite(&db, &side);
        assert_eq!((blob_files(&db), side.get("large").unwrap().unwrap().len()), (0, 1000));
    }

    /// Returns the file system of a closed database that stores `policy` for the keyspaces `names`.
    fn database_with_policy(policy: &str, names: &[&str]) -> Arc<MemVfs> {
        let vfs = Arc::new(MemVfs::new());
        let db = Db::open("db", Options::default().vfs(vfs.clone())).unwrap();
        for name in names {
            let keyspace = db.keyspace(name, KeyspaceOptions::default()).unwrap();
            keyspace.put("key", "value").unwrap();
            let stored =
                StoredOptions { policy: policy.to_owned(), ..keyspace.tree().stored_options() };
            let (keyspace, options) = (keyspace.tree().id, stored.encode());
            db.inner().append_edit(vec![Change::SetOptions { keyspace, options }]).unwrap();
        }
        db.close(None).unwrap();
        vfs
    }

    /// Bug: the database could not be opened. Earlier versions accepted and stored such numbers.
    #[test]
    fn stored_policy_with_number_outside_of_range_is_used() {
        let policy = "{name = \"mine\", layout = \"leveling\", stop = 20, tables = 18446744073709551615, \
            grandparents = 18446744073709551615, rule = [{trigger = \"run-count\", runs = 4, wait = 0}, \
            {trigger = \"level-full\"}]}";
        let vfs = database_with_policy(policy, &[DEFAULT_KEYSPACE, "side"]);
        let db = Db::open("db", Options::default().vfs(vfs)).unwrap();
        for name in [DEFAULT_KEYSPACE, "side"] {
            let keyspace = db.open_keyspace(name, None).unwrap();
            assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"value"[..]));
            let policy = keyspace.options().policy.to_string();
            assert!(policy.contains("wait = 1}") || policy.contains("wait = 1,"), "{policy}");
        }
    }

    /// Bug: the database could not be opened.
    #[test]
    fn unreadable_stored_policy_is_error_of_its_keyspace_until_another_is_set() {
        let vfs = database_with_policy("later(T=3)", &["side"]);
        let open = || Db::open("db", Options::default().vfs(vfs.clone()));
        let is_unreadable = |result: Result<Keyspace>| matches!(result, Err(Error::UnreadablePolicy { policy, .. }) if policy == "later(T=3)");
        for _ in 0..2 {
            let db = open().unwrap();
            assert!(is_unreadable(db.open_keyspace("side", None)));
            assert!(is_unreadable(db.keyspace("side", KeyspaceOptions::default())));
            db.close(None).unwrap();
        }
        let db = open().unwrap();
        let tiering = || KeyspaceOptions::default().policy(PolicySpec::new(Preset::Tiering));
        let side = db.keyspace("side", tiering()).unwrap();
        assert_eq!(side.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        drop((side, db));
        let side = open().unwrap().open_keyspace("side", None).unwrap();
        assert_eq!(side.options().policy.to_string(), "tiering");

        // The default keyspace is always open, so the open of the database fails without another policy.
        let vfs = database_with_policy("later(T=3)", &[DEFAULT_KEYSPACE]);
        let open = |options: Options| Db::open("db", options.vfs(vfs.clone()));
        assert!(matches!(open(Options::default()), Err(Error::UnreadablePolicy { .. })));
        open(Options::default().keyspace_defaults(tiering())).unwrap();
    }
}
