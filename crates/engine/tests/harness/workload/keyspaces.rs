//! Steps of a run that create, rename, clone and drop keyspaces.

use std::sync::Arc;

use lsmx::{Durability, Error, Keyspace};

use super::Run;
use crate::harness::history::{KEYSPACES, ttl_expiry_us};
use crate::harness::oracle::Trouble;
use crate::harness::passing::{self, CLONE, Cloned, NAMES, Passing};
use crate::harness::recorder::Presence;
use crate::harness::{Outcome, options};

impl Run<'_> {
    pub(super) fn create_keyspace(&mut self) -> Outcome {
        let policy = options::draw_policy(&mut self.rng);
        let options = options::draw_keyspace(&mut self.rng).policy(policy.clone());
        {
            let mut promises = self.recorder.promises();
            promises.other = Presence::Maybe;
            promises.policies[1].push(policy.to_string());
        }
        let made = self.opened()?.db.keyspace(KEYSPACES[1], options);
        match made {
            Ok(keyspace) => {
                self.coverage.add("calls", "create keyspace");
                self.recorder.promises().other = Presence::Yes;
                self.recorder.promises().policies[1] = vec![policy.to_string()];
                self.all_synced();
                if let Some(open) = &mut self.open {
                    open.keyspaces.push(keyspace);
                }
                Ok(())
            }
            Err(error) => self.excuse("making a keyspace", &error),
        }
    }

    /// Creates the keyspace [`NAMES`], writes to it, renames it, or drops it.
    pub(super) fn come_and_go(&mut self) -> Outcome {
        let Some(keyspace) = self.opened()?.passing.clone() else { return self.come() };
        match self.rng.below(6) {
            0..2 => self.go(&keyspace),
            2 => self.rename(&keyspace),
            _ => self.stay(&keyspace),
        }
    }

    pub(super) fn come(&mut self) -> Outcome {
        let may_expire = self.rng.is_one_in(3);
        let options = match may_expire {
            true => options::draw_expiring(&mut self.rng),
            false => options::draw_keyspace(&mut self.rng),
        };
        {
            let passing = &mut self.recorder.promises().passing;
            let life = passing.life + 1;
            let presence = Presence::Maybe;
            *passing = Passing { presence, life, may_expire, ..Passing::default() };
        }
        match self.opened()?.db.keyspace(NAMES[0], options) {
            Ok(keyspace) => {
                self.recorder.promises().passing.presence = Presence::Yes;
                self.all_synced();
                if let Some(open) = &mut self.open {
                    open.passing = Some(keyspace);
                }
                Ok(())
            }
            Err(error) => self.excuse("making a keyspace", &error),
        }
    }

    pub(super) fn stay(&mut self, keyspace: &Keyspace) -> Outcome {
        let count = 1 + self.rng.below(20);
        let Passing { life, written, may_expire, name, .. } =
            self.recorder.promises().passing.clone();
        if may_expire && self.rng.is_one_in(2) {
            let options = options::draw_expiring(&mut self.rng);
            if let Err(error) = self.opened()?.db.keyspace(NAMES[name], options) {
                return self.excuse("changing options", &error);
            }
        }
        let ttl = keyspace.options().default_ttl;
        if ttl.is_some() {
            self.coverage.add("calls", "puts with a default time to live");
        }
        let sync = may_expire || self.rng.is_one_in(4);
        let durability = if sync { Durability::Sync } else { Durability::Buffered };
        for number in written..written + count {
            let seq = self.number_given(1)?;
            let now_us = self.opened()?.db.env().now_us();
            let before = {
                let mut promises = self.recorder.promises();
                let before = promises.seq_largest;
                promises.seq_largest = before.max(seq);
                promises.passing.written = number + 1;
                let expiry_us = ttl.map_or(u64::MAX, |_| ttl_expiry_us(0, now_us));
                promises.passing.expiry_us.push(expiry_us);
                before
            };
            match keyspace
                .with_write_options(durability)
                .put(passing::key(number), life.to_le_bytes())
            {
                Ok(()) if sync => self.all_synced(),
                Ok(()) => {}
                Err(error @ Error::ReadOnly { .. }) => return self.excuse("a commit", &error),
                Err(error @ Error::Background { .. }) => {
                    {
                        let mut promises = self.recorder.promises();
                        promises.seq_largest = before;
                        promises.passing.written = number;
                        promises.passing.expiry_us.pop();
                    }
                    return self.excuse_background(&error);
                }
                Err(error) => return Err(format!("a write fails: {error:?}")),
            }
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, keyspace: &Keyspace) -> Outcome {
        let name = {
            let passing = &mut self.recorder.promises().passing;
            passing.is_renaming = true;
            passing.name
        };
        match self.opened()?.db.rename_keyspace(NAMES[name], NAMES[1 - name]) {
            Ok(()) => {
                self.coverage.add("calls", "rename keyspace");
                {
                    let passing = &mut self.recorder.promises().passing;
                    (passing.name, passing.is_renaming) = (1 - name, false);
                }
                self.all_synced();
                if self.opened()?.db.keyspace_exists(NAMES[name]) {
                    return Err("a renamed keyspace has its old name".to_owned());
                }
                match keyspace.name() {
                    found if found == NAMES[1 - name] => Ok(()),
                    found => Err(format!("a renamed keyspace has the name {found:?}")),
                }
            }
            Err(error) => self.excuse("renaming a keyspace", &error),
        }
    }

    pub(super) fn go(&mut self, keyspace: &Keyspace) -> Outcome {
        let db = &self.opened()?.db;
        let (snapshot, now_us) = (db.snapshot(), db.env().now_us());
        let name = {
            let passing = &mut self.recorder.promises().passing;
            passing.presence = Presence::Maybe;
            passing.name
        };
        match self.opened()?.db.drop_keyspace(NAMES[name]) {
            Ok(()) => {
                self.coverage.add("calls", "drop keyspace");
                self.recorder.promises().passing.presence = Presence::No;
                self.all_synced();
                if let Some(open) = &mut self.open {
                    open.passing = None;
                }
                match keyspace.put("k", "v") {
                    Err(Error::KeyspaceDropped { .. } | Error::ReadOnly { .. }) => {}
                    other => return Err(format!("a write to what was dropped: {other:?}")),
                }
                // A snapshot from before the drop can still read the keyspace.
                let known = self.recorder.promises().passing.clone();
                let visible = known.visible_keys(known.written, now_us).len();
                let seen = snapshot.iter(keyspace).collect::<Result<Vec<_>, _>>();
                match seen {
                    Ok(seen) if seen.len() == visible => Ok(()),
                    Ok(seen) => Err(format!("a snapshot sees {} of {visible} keys", seen.len())),
                    Err(error) => self.excuse("a snapshot", &error),
                }
            }
            Err(error) => self.excuse("dropping a keyspace", &error),
        }
    }

    /// Clones a keyspace, or drops the clone.
    pub(super) fn clone_or_drop_clone(&mut self) -> Outcome {
        let known = self.recorder.promises().cloned.clone();
        if known.presence == Presence::Yes {
            self.recorder.promises().cloned.presence = Presence::Maybe;
            return match self.opened()?.db.drop_keyspace(CLONE) {
                Ok(()) => {
                    self.recorder.promises().cloned.presence = Presence::No;
                    self.all_synced();
                    Ok(())
                }
                Err(error) => self.excuse("dropping a clone", &error),
            };
        }
        let source = self.rng.below(self.opened()?.keyspaces.len());
        let options = options::draw_clone(&mut self.rng);
        let history = self.history();
        let now_us = self.opened()?.db.env().now_us();
        let contents = Arc::new(history.state(history.last())[source].clone_at(now_us));
        self.recorder.promises().cloned = Cloned { presence: Presence::Maybe, contents };
        match self.opened()?.db.clone_keyspace(KEYSPACES[source], CLONE, options) {
            Ok(_) => {
                self.coverage.add("calls", "clone keyspace");
                self.recorder.promises().cloned.presence = Presence::Yes;
                self.all_synced();
                self.check_clone().map(drop)
            }
            Err(error) => {
                if !matches!(error, Error::ReadOnly { .. }) {
                    self.recorder.promises().cloned.presence = Presence::No;
                }
                self.excuse("a clone", &error)
            }
        }
    }

    /// Compares the clone with its known contents. Returns whether it exists.
    pub(super) fn check_clone(&mut self) -> Outcome<bool> {
        let known = self.recorder.promises().cloned.clone();
        match passing::check_clone(&self.opened()?.db, &known) {
            Err(Trouble::Failed(error)) => {
                self.excuse("a read", &error)?;
                self.disarm();
                Ok(passing::check_clone(&self.opened()?.db, &known)?)
            }
            checked => Ok(checked?),
        }
    }
}
