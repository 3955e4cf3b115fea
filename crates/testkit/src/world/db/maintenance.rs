//! Executes jobs, compares copies of the database, changes keyspaces, and checks databases without merge operators.

use std::sync::Arc;

use lsmx::compaction::Preset;
use lsmx::env::Background;
use lsmx::vfs::CrashImage;
use lsmx::{Db, Error, KeyspaceOptions, Options, PolicySpec};

use super::super::change::Bytes;
use super::super::compare::{Text, compare_pairs};
use super::super::operations::{KEYSPACES, OTHER_NAMES, Operation, Place, Write, time_to_live};
use super::super::settings::KeyspaceSettings;
use super::observation::read_metrics;
use super::{ExpiringValue, ModelledDb, operators};
use crate::simple_store::SimpleStore;

impl ModelledDb {
    /// Executes a job, a sync or a copy, which do not change the contents.
    pub(super) fn maintain(&mut self, operation: &Operation) {
        match operation {
            Operation::Flush => {
                self.db().flush().unwrap();
                let metrics = self.db().metrics();
                assert!(metrics.keyspaces.values().all(|keyspace| keyspace.memtables_sealed == 0));
                self.note_synced();
            }
            Operation::WaitIdle => {
                self.db().wait_idle().unwrap();
                self.check_metrics_file();
            }
            Operation::Sync => {
                self.db().sync().unwrap();
                self.note_synced();
            }
            Operation::CompactRange(span) => {
                let (_, keyspace, bounds) = self.span(*span);
                keyspace.compact_range::<Bytes>(bounds).unwrap();
            }
            Operation::OperandsToTree(keyspace) => {
                let (index, keyspace) = self.keyspace(*keyspace);
                match keyspace.operands_to_tree() {
                    Ok(()) => {
                        self.counts.stores_removed += u64::from(self.has_store[index]);
                        self.has_store[index] = false;
                    }
                    Err(Error::SnapshotsHeld { .. }) if self.db().metrics().snapshots > 0 => {}
                    Err(error) => panic!("operands to the tree: {error}"),
                }
            }
            Operation::Checkpoint => {
                let path = format!("copy-{}", self.clock);
                self.db().checkpoint(&path).unwrap();
                // An open changes files, so this test opens a copy of the disk.
                let disk = Arc::new(self.disk.crash(CrashImage::Keep, self.clock));
                assert_eq!(read_metrics(&disk, &path), None, "a checkpoint has a metrics file");
                self.compare_copy(&Db::open(&path, self.copy_options().vfs(disk)).unwrap());
            }
            Operation::OpenReadOnly => {
                let disk = self.disk.crash(CrashImage::Keep, self.clock);
                let before = disk.snapshot_all();
                let options = self.copy_options().read_only(true);
                let copy = Db::open("db", options.vfs(Arc::new(disk.clone()))).unwrap();
                self.compare_copy(&copy);
                assert!(disk.snapshot_all() == before, "a read-only open has changed a file");
            }
            _ => {}
        }
    }

    /// Creates a keyspace or changes its options.
    pub(super) fn open_keyspace(
        &mut self,
        index: usize,
        settings: &KeyspaceSettings,
        is_creation: bool,
    ) {
        let (name, existed) = (self.names[index], self.contents[index].is_some());
        if !existed {
            self.operator_indexes[index] = index;
        }
        // If the options have no merge operator, an open keyspace keeps its current merge operator.
        let settings = &self.supported_settings(index, settings);
        let given = settings.options_with_store(false).default_ttl(settings.default_ttl);
        let given = match existed && self.has_store[index] {
            true => given.delete_persistence(settings.bound(true)),
            false => given,
        };
        let options = match existed && is_creation {
            true => given,
            false => self.add_operator(index, given),
        };
        let keyspace = self.db().keyspace(name, options).unwrap();
        self.has_store[index] = settings.store.is_some() || (existed && self.has_store[index]);
        let other = operators(self.operator_indexes[index] + 1);
        let other = settings.options().merge_operator(other);
        // Without a merge operator, any operator is accepted, but not with a default time to live.
        let other = match self.has_operands(index) {
            true => other,
            false => other.default_ttl(time_to_live(0)),
        };
        let refused = self.db().keyspace(name, other);
        assert!(matches!(refused, Err(Error::Contradiction { .. })), "{refused:?}");
        assert_eq!(keyspace.name(), name);
        match &settings.policy {
            Some(policy) if existed => self.note_policy(index, policy),
            Some(policy) => self.policies[index].clone_from(policy),
            None if existed => {}
            None => "leveled".clone_into(&mut self.policies[index]),
        }
        assert_eq!(keyspace.options().policy.to_string(), self.policies[index]);
        self.note_default_ttl(index, &keyspace, settings.default_ttl);
        if !existed {
            self.contents[index] = Some(Arc::default());
            self.apply(&[], true);
        }
        self.keyspaces[index] = Some(keyspace);
    }

    pub(super) fn note_policy(&mut self, index: usize, policy: &str) {
        let preset = |text: &str| {
            let preset = text.parse::<PolicySpec>().ok()?.preset()?;
            Preset::ALL.iter().position(|known| *known == preset)
        };
        if let (Some(old), Some(new)) = (preset(&self.policies[index]), preset(policy)) {
            self.counts.policy_changes[old] |= 1 << new;
        }
        policy.clone_into(&mut self.policies[index]);
    }

    pub(super) fn drop_keyspace(&mut self, index: usize) {
        let dropped = self.db().drop_keyspace(self.names[index]);
        if index == 0 {
            assert!(matches!(dropped, Err(Error::DefaultKeyspace)));
            return;
        }
        let Some(keyspace) = self.keyspaces[index].take() else {
            assert!(matches!(dropped, Err(Error::UnknownKeyspace { .. })));
            return;
        };
        dropped.unwrap();
        assert!(matches!(keyspace.get("k"), Err(Error::KeyspaceDropped { .. })));
        assert!(matches!(keyspace.put("k", "v"), Err(Error::KeyspaceDropped { .. })));
        self.contents[index] = None;
        self.expiring[index].clear();
        self.has_store[index] = false;
        self.written.retain(|(keyspace, _), _| *keyspace != index);
        self.counts.dropped_keyspaces += 1;
        self.apply(&[], true);
    }

    /// Clones a keyspace. The name of the clone may be taken.
    pub(super) fn clone_keyspace(
        &mut self,
        source: usize,
        target: usize,
        settings: &KeyspaceSettings,
    ) {
        let (from, to) = (self.names[source], self.names[target]);
        let ttl = self.supported_settings(source, settings).default_ttl;
        let cloned = self.db().clone_keyspace(from, to, settings.options().default_ttl(ttl));
        let Some(pairs) = self.contents[source].clone() else {
            assert!(matches!(cloned, Err(Error::UnknownKeyspace { .. })), "{cloned:?}");
            return;
        };
        if self.contents[target].is_some() {
            assert!(matches!(cloned, Err(Error::KeyspaceExists { .. })), "{cloned:?}");
            return;
        }
        let keyspace = cloned.unwrap();
        compare_pairs("clone", keyspace.iter(), pairs.iter()).unwrap();
        self.operator_indexes[target] = self.operator_indexes[source];
        self.has_store[target] = false;
        self.note_default_ttl(target, &keyspace, ttl);
        settings.policy.as_deref().unwrap_or("leveled").clone_into(&mut self.policies[target]);
        assert_eq!(keyspace.options().policy.to_string(), self.policies[target]);
        // In the clone, a merged value expires at the time at which its base value expires.
        let expiring = self.expiring[source].iter().filter(|(key, _)| pairs.contains_key(*key));
        let expiring = expiring.map(|(key, value)| {
            let (expiry_us, operands) = (value.expiry_us, Vec::new());
            (Arc::clone(key), ExpiringValue { expiry_us, operands })
        });
        self.expiring[target] = expiring.collect();
        // The clone counts as a write of each key, so guards with older snapshots fail.
        let keys = pairs.keys().map(|key| ((target, Arc::clone(key)), self.clock));
        self.written.extend(keys);
        self.contents[target] = Some(pairs);
        self.keyspaces[target] = Some(keyspace);
        self.counts.cloned_keyspaces += 1;
        self.apply(&[], true);
    }

    /// Renames a keyspace to a name that may be taken.
    pub(super) fn rename_keyspace(&mut self, index: usize, name: usize) {
        let new = *KEYSPACES.iter().chain(&OTHER_NAMES).cycle().nth(name).expect("a cycle");
        let old = self.names[index];
        let renamed = self.db().rename_keyspace(old, new);
        let owner = self.names.iter().position(|name| *name == new);
        if self.contents[index].is_none() {
            assert!(matches!(renamed, Err(Error::UnknownKeyspace { .. })), "{renamed:?}");
            return;
        }
        if owner == Some(index) {
            return renamed.unwrap();
        }
        if index == 0 {
            assert!(matches!(renamed, Err(Error::DefaultKeyspace)), "{renamed:?}");
            return;
        }
        if owner.is_some_and(|owner| self.contents[owner].is_some()) {
            assert!(matches!(renamed, Err(Error::KeyspaceExists { .. })), "{renamed:?}");
            return;
        }
        renamed.unwrap();
        if let Some(owner) = owner {
            self.names[owner] = old;
        }
        self.names[index] = new;
        let keyspace = self.keyspaces[index].as_ref().expect("it exists");
        assert_eq!(keyspace.name(), new);
        assert!(!self.db().keyspace_exists(old));
        self.counts.renamed_keyspaces += 1;
        self.apply(&[], true);
    }

    /// Returns options with which a copy of a keyspace can be opened without a change.
    fn copied_keyspace_options(&self, index: usize) -> KeyspaceOptions {
        let options = self.add_operator(index, KeyspaceOptions::default());
        match self.has_store[index] {
            true => options.operand_store(SimpleStore::default().or_delta()),
            false => options,
        }
    }

    /// Returns options with which a copy of the database can be opened without a change.
    fn copy_options(&self) -> Options {
        Options::default()
            .background(Background::Inline)
            .seed(self.seed)
            .keyspace_defaults(self.copied_keyspace_options(0))
    }

    fn compare_copy(&mut self, copy: &Db) {
        self.advance_clock_of(copy);
        for (index, name) in self.names.iter().enumerate() {
            match (&self.contents[index], copy.open_keyspace(name, None)) {
                (None, Err(Error::UnknownKeyspace { .. })) => {}
                (Some(pairs), Ok(_)) => {
                    let options = self.copied_keyspace_options(index);
                    let keyspace = copy.keyspace(name, options).unwrap();
                    compare_pairs("copy", keyspace.iter(), pairs.iter()).unwrap();
                }
                (model, copy) => panic!("{name}: {:?}, copy {copy:?}", model.is_some()),
            }
        }
        self.counts.compared_copies += 1;
    }

    /// Checks a database that was opened without merge operators. Merges must fail, jobs must succeed, and each read
    /// must be correct or fail.
    pub(super) fn check_without_operators(&mut self, deletes: &[Place]) {
        for round in 0..2 {
            for (index, keyspace) in self.keyspaces.iter().enumerate() {
                let Some(keyspace) = keyspace else { continue };
                let refused = keyspace.merge("k", "v");
                assert!(matches!(refused, Err(Error::NoMergeOperator { .. })), "{refused:?}");
                for key in &self.keys {
                    match keyspace.get(key) {
                        Ok(found) => {
                            let expected = self.model_value(index, key).map(|value| Text(value));
                            assert_eq!(found.as_deref().map(Text), expected);
                        }
                        Err(Error::NoMergeOperator { .. }) => {
                            self.counts.reads_without_operator += 1;
                        }
                        Err(error) => panic!("without an operator: {error}"),
                    }
                }
            }
            if round == 0 {
                for place in deletes {
                    self.write(Write::Delete(*place), false);
                    let (_, keyspace, key) = self.place(*place);
                    assert!(keyspace.get(&key).unwrap().is_none(), "a deleted key is readable");
                }
                self.db().flush().unwrap();
                self.db().wait_idle().unwrap();
            }
        }
        self.counts.restarts_without_operators += 1;
    }
}
