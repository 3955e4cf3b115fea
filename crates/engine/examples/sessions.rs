//! A session store: each session expires by itself, also after a crash, and compactions free its space.
//!
//! ```sh
//! cargo run --release -p lsmx --example sessions
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;

use lsmx::env::ManualClock;
use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Options, Update, WriteBatch};
use rand::TryRng;
use rand::rngs::SysRng;

/// Lifetime of a session without use.
const LIFETIME: Duration = Duration::from_secs(30 * 60);
/// Lifetime of a session of a user who stays logged in.
const LONG_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);

type SessionResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Sessions by token. A session is a byte, 1 if the user stays logged in and otherwise 0, and the name of the user.
#[derive(Clone)]
struct SessionStore {
    db: Db,
    sessions: Keyspace,
}

/// Returns 128 random bits as text.
fn draw_token() -> SessionResult<String> {
    Ok(format!("{:016x}{:016x}", SysRng.try_next_u64()?, SysRng.try_next_u64()?))
}

fn encode_session(user: &str, stays_logged_in: bool) -> Vec<u8> {
    [&[u8::from(stays_logged_in)], user.as_bytes()].concat()
}

/// Returns the name of the user.
fn user_of(session: &[u8]) -> &[u8] {
    session.get(1..).unwrap_or_default()
}

fn is_long_session(session: &[u8]) -> bool {
    session.first() == Some(&1)
}

fn lifetime(stays_logged_in: bool) -> Duration {
    if stays_logged_in { LONG_LIFETIME } else { LIFETIME }
}

impl SessionStore {
    fn open(options: Options, path: &str) -> SessionResult<SessionStore> {
        let db = Db::open(path, options)?;
        // Every session expires, even if its write sets no time to live.
        let options = KeyspaceOptions::default().default_ttl(LIFETIME);
        let sessions = db.keyspace("sessions", options)?;
        Ok(SessionStore { db, sessions })
    }

    /// Starts a session and returns its token.
    fn log_in(&self, user: &str, stays_logged_in: bool) -> SessionResult<String> {
        let token = draw_token()?;
        let session = encode_session(user, stays_logged_in);
        self.sessions.put_with_ttl(&token, session, lifetime(stays_logged_in))?;
        Ok(token)
    }

    /// Returns the user of a session. Returns `None` if the session has expired or ended.
    fn user(&self, token: &str) -> SessionResult<Option<String>> {
        let session = self.sessions.get(token)?;
        let user = session.map(|session| String::from_utf8(user_of(&session).to_vec()));
        Ok(user.transpose()?)
    }

    /// Extends a session: its lifetime begins again. Returns false if the session has expired or ended.
    ///
    /// The update is atomic. It never restores a session that another client ends at the same time.
    fn extend(&self, token: &str) -> SessionResult<bool> {
        let session = self.sessions.update_fetch(token, |session| match session {
            Some(session) => {
                Update::PutWithTtl(session.to_vec(), lifetime(is_long_session(session)))
            }
            None => Update::Keep,
        })?;
        Ok(session.is_some())
    }

    /// Changes the user of a session, for example after a renaming. The session ends at the same time as before.
    /// Returns false if the session has expired or ended.
    fn set_user(&self, token: &str, user: &str) -> SessionResult<bool> {
        let session = self.sessions.update_fetch(token, |session| match session {
            Some(session) => Update::PutKeepExpiry(encode_session(user, is_long_session(session))),
            None => Update::Keep,
        })?;
        Ok(session.is_some())
    }

    fn log_out(&self, token: &str) -> SessionResult<()> {
        Ok(self.sessions.delete(token)?)
    }

    /// Ends all sessions of a user, atomically. Returns their number.
    fn log_out_everywhere(&self, user: &str) -> SessionResult<usize> {
        let (mut batch, mut count) = (WriteBatch::new(), 0);
        // The iterator leaves out expired sessions.
        for session in self.sessions.iter() {
            let (token, session) = session?;
            if user_of(&session) == user.as_bytes() {
                batch.delete(&self.sessions, &token);
                count += 1;
            }
        }
        self.db.write(batch, Durability::Sync)?;
        Ok(count)
    }

    /// Returns the number of bytes in table files, and the number of expired sessions that compactions have dropped.
    fn space(&self) -> (u64, u64) {
        let metrics = self.db.metrics();
        let sessions = &metrics.keyspaces[&self.sessions.name()];
        (sessions.levels.iter().map(|level| level.bytes).sum(), sessions.expired.entries)
    }
}

fn run(store: &SessionStore, pass_minutes: impl Fn(u64)) -> SessionResult<()> {
    let ada = store.log_in("ada", false)?;
    let alan = store.log_in("alan", false)?;
    let grace = store.log_in("grace", true)?;
    let mary = store.log_in("mary", false)?;
    store.log_out(&mary)?;
    assert_eq!(store.user(&mary)?, None);

    pass_minutes(20);
    assert_eq!(store.user(&ada)?.as_deref(), Some("ada"));
    assert!(store.extend(&ada)?);

    // The session of Alan ends after 30 minutes, and that of Ada 30 minutes after its extension.
    pass_minutes(10);
    assert_eq!(store.user(&ada)?.as_deref(), Some("ada"));
    assert_eq!(store.user(&alan)?, None);
    assert!(!store.extend(&alan)?);
    pass_minutes(20);
    assert_eq!(store.user(&ada)?, None);

    // Grace stays logged in for 30 days after the extension.
    assert!(store.extend(&grace)?);
    pass_minutes(24 * 60);
    assert!(store.set_user(&grace, "grace hopper")?);
    assert_eq!(store.user(&grace)?.as_deref(), Some("grace hopper"));

    // A table of many sessions is rewritten when half of them have expired.
    for number in 0..20_000 {
        store.log_in(&format!("user {number}"), false)?;
    }
    store.db.flush()?;
    let (bytes_before, _) = store.space();
    pass_minutes(31);
    store.log_in("ada", false)?;
    store.log_in("ada", true)?;
    store.db.flush()?;
    store.db.wait_idle()?;
    let (bytes_after, dropped) = store.space();
    assert!(dropped >= 20_000 && bytes_after < bytes_before / 10, "{dropped}, {bytes_after}");
    println!("{dropped} expired sessions dropped; tables: {bytes_before} -> {bytes_after} bytes");

    assert_eq!(store.log_out_everywhere("ada")?, 2);
    assert_eq!(store.user(&grace)?.as_deref(), Some("grace hopper"));
    Ok(())
}

fn main() -> SessionResult<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("sessions");
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    // This program advances the clock by itself. Without the option, the database uses the clock of the system.
    let clock = ManualClock::new(1_800_000_000_000_000);
    let store = SessionStore::open(Options::default().clock(clock.clone()), path)?;
    run(&store, |minutes| clock.advance_us(minutes * 60_000_000))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lsmx::vfs::{CrashImage, MemVfs};

    use super::*;

    #[test]
    fn sessions_expire_and_their_space_returns() {
        main().unwrap();
    }

    #[test]
    fn session_keeps_its_expiry_after_a_crash() {
        let disk = MemVfs::new();
        let clock = ManualClock::new(1_800_000_000_000_000);
        let open = |disk: &MemVfs| {
            let options = Options::default().clock(clock.clone());
            SessionStore::open(options.vfs(Arc::new(disk.clone())), "sessions").unwrap()
        };
        let store = open(&disk);
        let token = store.log_in("ada", false).unwrap();
        store.db.sync().unwrap();
        for image in CrashImage::ALL {
            let store = open(&disk.crash(image, 1));
            assert_eq!(store.user(&token).unwrap().as_deref(), Some("ada"));
        }
        let stores = CrashImage::ALL.map(|image| open(&disk.crash(image, 1)));
        clock.advance_us(1_800_000_000);
        for store in stores {
            assert_eq!(store.user(&token).unwrap(), None);
        }
    }

    /// Bug: an extension gave every session the short lifetime.
    #[test]
    fn extension_and_change_of_a_session_keep_its_kind_of_lifetime() {
        let clock = ManualClock::new(1_800_000_000_000_000);
        let options = Options::default().clock(clock.clone());
        let options = options.vfs(Arc::new(MemVfs::new()));
        let store = SessionStore::open(options, "sessions").unwrap();
        let pass_days = |days: u64| clock.advance_us(days * 24 * 3_600_000_000);
        let is_live = |token: &str| store.user(token).unwrap().is_some();
        let short = store.log_in("ada", false).unwrap();
        let [extended, changed] = ["ada", "ada"].map(|user| store.log_in(user, true).unwrap());
        for token in [&short, &extended] {
            assert!(store.extend(token).unwrap());
        }
        assert!(store.set_user(&changed, "bob").unwrap());
        pass_days(1);
        assert_eq!([&short, &extended, &changed].map(|token| is_live(token)), [false, true, true]);
        pass_days(19);
        assert!(store.extend(&extended).unwrap());
        assert!(store.set_user(&changed, "carol").unwrap());
        assert_eq!(store.user(&changed).unwrap().as_deref(), Some("carol"));
        pass_days(11);
        assert_eq!([&extended, &changed].map(|token| is_live(token)), [true, false]);
        pass_days(20);
        assert!(!is_live(&extended));
        assert!(!store.extend(&extended).unwrap() && !store.set_user(&changed, "ada").unwrap());
    }

    #[test]
    fn session_expires_one_minute_after_an_open_at_the_latest() {
        let disk = MemVfs::new();
        let clock = ManualClock::new(1_800_000_000_000_000);
        let open = || {
            let options = Options::default().clock(clock.clone());
            SessionStore::open(options.vfs(Arc::new(disk.clone())), "sessions").unwrap()
        };
        let store = open();
        let old = store.log_in("ada", false).unwrap();
        store.db.close(None).unwrap();
        drop(store);
        clock.advance_us(3_600_000_000);
        let store = open();
        let new = store.log_in("ada", false).unwrap();
        assert_eq!(store.user(&new).unwrap().as_deref(), Some("ada"));
        clock.advance_us(61_000_000);
        assert_eq!(store.user(&old).unwrap(), None);
        assert_eq!(store.user(&new).unwrap().as_deref(), Some("ada"));
        clock.advance_us(1_740_000_000);
        assert_eq!(store.user(&new).unwrap(), None);
    }
}
