//! A table of users with an index by city: two keyspaces that a batch changes together, so they never
//! disagree, not even after a crash.
//!
//! ```sh
//! cargo run --release -p lsmx --example secondary_index
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::path::Path;

use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Options, Snapshot, WriteBatch};

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct User {
    name: String,
    city: String,
}

/// Users by number, and their numbers by city.
struct Users {
    db: Db,
    rows: Keyspace,
    by_city: Keyspace,
}

impl Users {
    fn open(path: &Path) -> lsmx::Result<Users> {
        let db = Db::open(path, Options::default())?;
        let rows = db.keyspace("users", KeyspaceOptions::default())?;
        // Index entries are keys without values: small blocks keep lookups cheap.
        let by_city = db.keyspace("users by city", KeyspaceOptions::default().block_bytes(1024))?;
        Ok(Users { db, rows, by_city })
    }

    /// Adds or changes a user. If somebody else changed the same one meanwhile, it is done again on
    /// top of that.
    fn set(&self, number: u64, user: &User) -> Result<(), Box<dyn Error>> {
        let key = number.to_be_bytes();
        loop {
            let seen = self.db.snapshot();
            let mut batch = WriteBatch::new();
            // What the index says of the old row goes in the same batch: the guard makes sure that
            // it is still the row.
            batch.guard(&self.rows, key, seen.seq());
            if let Some(old) = self.row(&seen, number)? {
                batch.delete(&self.by_city, index_key(&old.city, number));
            }
            batch.put(&self.rows, key, serde_json::to_vec(user)?);
            batch.put(&self.by_city, index_key(&user.city, number), b"");
            match self.db.write(batch, Durability::Buffered) {
                Err(lsmx::Error::Conflict { .. } | lsmx::Error::ConflictUnknown { .. }) => {
                    continue;
                }
                done => return Ok(done?),
            }
        }
    }

    fn row(&self, at: &Snapshot, number: u64) -> Result<Option<User>, Box<dyn Error>> {
        let row = at.get(&self.rows, number.to_be_bytes())?;
        Ok(row.map(|row| serde_json::from_slice(&row)).transpose()?)
    }

    /// Users of a city by number. Index and rows are read as of one moment.
    fn of_city(&self, city: &str) -> Result<Vec<(u64, User)>, Box<dyn Error>> {
        let now = self.db.snapshot();
        let mut users = Vec::new();
        let first = index_key(city, 0);
        for item in now.range(&self.by_city, first..=index_key(city, u64::MAX)) {
            let (key, _) = item?;
            let number = key.last_chunk().map(|bytes| u64::from_be_bytes(*bytes));
            let number = number.ok_or("an index key ends with the user's number")?;
            let user =
                self.row(&now, number)?.ok_or("the index names no user that is not there")?;
            users.push((number, user));
        }
        Ok(users)
    }
}

/// City, a byte that no city has, number: sorts by city, then by number.
fn index_key(city: &str, number: u64) -> Vec<u8> {
    let mut key = city.as_bytes().to_vec();
    key.push(0);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn run(path: &Path) -> Result<(), Box<dyn Error>> {
    let users = Users::open(path)?;
    let user = |name: &str, city: &str| User { name: name.to_owned(), city: city.to_owned() };
    users.set(1, &user("Ada", "London"))?;
    users.set(2, &user("Alan", "London"))?;
    users.set(3, &user("Emmy", "Erlangen"))?;
    // Moving takes her out of one city and into the other, in one step.
    users.set(3, &user("Emmy", "Göttingen"))?;

    for city in ["London", "Erlangen", "Göttingen"] {
        println!("{city}: {:?}", users.of_city(city)?);
    }
    assert_eq!(users.of_city("London")?.len(), 2);
    assert!(users.of_city("Erlangen")?.is_empty());
    assert_eq!(users.of_city("Göttingen")?, [(3, user("Emmy", "Göttingen"))]);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let home = tempfile::tempdir()?;
    run(home.path())
}

#[test]
fn runs() -> Result<(), Box<dyn Error>> {
    main()
}
