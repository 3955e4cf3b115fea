//! Closes, drops and kills the database, and restarts it.

use std::collections::BTreeSet;
use std::sync::Arc;

use lsmx::vfs::CrashImage;
use lsmx::{Error, Event, Keyspace, Options, verify};

use super::super::change::{Bytes, Change};
use super::super::operations::RestartKind;
use super::super::settings::DbSettings;
use super::observation::read_metrics;
use super::{Contents, ModelledDb, expire_values};
use crate::simple_store::{all_stores, may_be_orphan};

impl ModelledDb {
    /// Adds the metrics of the database to the case counts, and checks that no job has failed.
    fn count_work(&mut self) {
        for keyspace in self.db().metrics().keyspaces.values() {
            self.counts.flushes += keyspace.flushes;
            self.counts.merges += keyspace.compaction.jobs;
            self.counts.subcompactions += keyspace.compaction.divided_jobs;
            self.counts.helped += keyspace.compaction.helper_subcompactions;
            self.counts.moves += keyspace.compaction.trivial_moves;
            self.counts.drops += keyspace.compaction.drops;
            let store = keyspace.operand_store.unwrap_or_default();
            self.counts.operands_in_stores += store.operands;
            self.counts.delete_markers += store.delete_markers;
            self.counts.keys_to_tree += store.to_tree;
            self.counts.folded_by_reads += keyspace.merges.reads.operands;
            self.counts.folded_by_jobs += keyspace.merges.jobs.operands;
            self.counts.write_backs += keyspace.merges.write_backs;
            self.counts.filtered += keyspace.compaction_filter.changed;
            self.counts.repeated_merges += keyspace.compaction_filter.repeated_merges;
            self.counts.blob_rewrites += keyspace.value_log.rewrites;
            self.counts.expired_dropped += keyspace.expired.entries;
            assert_eq!(keyspace.merges.failures, 0);
        }
        self.counts.restarts += 1;
        let is_failure = |event: &Event| matches!(event, Event::Failure(_) | Event::ReadOnly(_));
        let failures = self.events.select(|event| is_failure(event).then(|| event.to_string()));
        assert_eq!(failures, Vec::<String>::new());
    }

    pub(super) fn close(&mut self) {
        self.count_work();
        let db = self.db.take().expect("open between operations");
        db.close(None).unwrap();
        self.note_synced();
        self.traces.push(db.env().trace_hash());
        assert_eq!(read_metrics(&self.disk, "db"), None, "a closed database has a metrics file");
        assert!(matches!(db.put("k", "v"), Err(Error::Closed)));
        assert!(matches!(db.get("k"), Err(Error::Closed)));
        assert!(matches!(db.flush(), Err(Error::Closed)));
        assert!(matches!(db.default_keyspace().iter().next(), Some(Err(Error::Closed))));
        for held in self.snapshots.drain(..) {
            assert!(matches!(held.snapshot.get(&db.default_keyspace(), "k"), Err(Error::Closed)));
        }
        self.keyspaces.fill(None);
        // Open iterators stay readable after a close.
        for iterator in &mut self.iterators {
            iterator.steps(&[2, -2]);
            self.counts.iterators_over_closes += 1;
        }
    }

    /// Drops all handles except iterators.
    fn drop_handles(&mut self) {
        self.count_work();
        self.snapshots.clear();
        self.keyspaces.fill(None);
        let env = self.db().env().clone();
        self.db = None;
        self.traces.push(env.trace_hash());
        self.counts.iterators_over_closes += self.iterators.len() as u64;
    }

    pub(super) fn restart(&mut self, kind: RestartKind, settings: &DbSettings) {
        let image = match kind {
            RestartKind::Close | RestartKind::Drop => None,
            RestartKind::Kill => Some(self.disk.crash(CrashImage::Keep, self.seed)),
            RestartKind::PowerLoss(image, seed) => {
                self.counts.power_losses += 1;
                Some(self.disk.crash(image, seed))
            }
        };
        if image.is_some() {
            self.iterators.clear();
            self.counts.kills += 1;
        }
        match kind {
            RestartKind::Close => self.close(),
            _ => self.drop_handles(),
        }
        self.disk = image.unwrap_or(self.disk.clone());
        self.open(settings, true);
        if let RestartKind::PowerLoss(..) = kind {
            self.adopt_recovered_contents();
        }
    }

    /// Checks that the contents after a power loss equal those after the last sync or after a later commit. Sets the
    /// model to these contents.
    ///
    /// Several commits may have the same contents, but different expiry times of a key. The contents do not show which of
    /// these times the key has, so the key is deleted.
    fn adopt_recovered_contents(&mut self) {
        let pairs = |keyspace: &Keyspace| {
            let pairs = keyspace.iter().map(|pair| pair.unwrap());
            pairs.map(|(key, value)| (Bytes::from(&*key), Bytes::from(&*value))).collect()
        };
        let found: Contents = self
            .keyspaces
            .iter()
            .map(|keyspace| keyspace.as_ref().map(|keyspace| Arc::new(pairs(keyspace))))
            .collect();
        let now_us = self.db().env().now_us();
        let unsynced = self.unsynced.as_mut().expect("the history has a power loss");
        // Values may have expired since the commits, so expired values are removed before the comparison.
        for (contents, expiring) in unsynced.iter_mut() {
            expire_values(contents, expiring, &self.operator_indexes, now_us);
        }
        let index = unsynced.iter().rposition(|(contents, _)| *contents == found);
        let index = index.unwrap_or_else(|| panic!("not a state after the last sync: {found:?}"));
        let mut undecided = BTreeSet::new();
        for (_, expiring) in unsynced.iter().filter(|(contents, _)| *contents == found) {
            for (keyspace, (one, other)) in expiring.iter().zip(&unsynced[index].1).enumerate() {
                let keys = one.keys().chain(other.keys());
                let keys = keys.filter(|key| one.get(*key) != other.get(*key));
                undecided.extend(keys.map(|key| (keyspace, Arc::clone(key))));
            }
        }
        unsynced.truncate(index + 1);
        self.expiring.clone_from(&unsynced[index].1);
        self.contents = found;
        self.note_synced();
        for (index, key) in undecided {
            let Some(keyspace) = &self.keyspaces[index] else { continue };
            keyspace.delete(&key).unwrap();
            self.apply(&[(index, Change::Delete(key))], false);
        }
    }

    /// Compares all contents with the model, closes the database, verifies its files, reopens it and compares again.
    pub(in crate::world) fn finish(&mut self, settings: &DbSettings) {
        self.expire_model_values();
        self.check_all();
        for mut iterator in std::mem::take(&mut self.iterators) {
            iterator.steps(&[3, -3]);
            iterator.finish();
        }
        self.snapshots.clear();
        self.close();
        let options = Options::default().vfs(Arc::new(self.disk.clone()));
        let options = all_stores().into_iter().fold(options, Options::operand_store);
        let report = verify("db", &options).unwrap();
        let orphans = report.orphans.iter().filter(|orphan| !may_be_orphan(orphan));
        assert!(orphans.count() == 0 && report.wal_tail_bytes == 0, "{report:?}");
        self.open(settings, true);
        self.check_all();
        self.drop_handles();
    }
}
