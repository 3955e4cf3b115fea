//! A bank: transactions transfer money between accounts and add an entry to a journal. The sum of all balances never
//! changes, neither under concurrent transfers nor after a crash.
//!
//! ```sh
//! cargo run --release -p lsmx --example bank
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Options, Snapshot, Transaction};

const ACCOUNTS: u32 = 10;
const FIRST_BALANCE: u64 = 1_000;

/// Error of a bank, or of its database.
type BankResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Balances by account number, and a journal of the transfers from each account: the key is the account number, followed by
/// the number of the transfer.
#[derive(Clone)]
struct Bank {
    db: Db,
    balances: Keyspace,
    journal: Keyspace,
}

fn decode(bytes: &[u8]) -> BankResult<u64> {
    Ok(u64::from_be_bytes(bytes.try_into()?))
}

/// Returns the account number and the number of the transfer in a key of the journal.
fn decode_journal_key(key: &[u8]) -> BankResult<(u32, u64)> {
    let (account, number) = key.split_first_chunk().ok_or("the key is too short")?;
    Ok((u32::from_be_bytes(*account), decode(number)?))
}

impl Bank {
    fn open(options: Options, path: &str) -> BankResult<Bank> {
        let db = Db::open(path, options)?;
        let balances = db.keyspace("balances", KeyspaceOptions::default())?;
        let journal = db.keyspace("journal", KeyspaceOptions::default())?;
        Ok(Bank { db, balances, journal })
    }

    /// Creates all accounts, unless they exist.
    fn create_accounts(&self) -> BankResult<()> {
        self.db.transact(Durability::Sync, |tx: &Transaction| {
            // The commit fails if another client has created an account meanwhile.
            if tx.range::<&[u8]>(&self.balances, ..).next().transpose()?.is_some() {
                return Ok(());
            }
            (0..ACCOUNTS).try_for_each(|account| {
                tx.put(&self.balances, account.to_be_bytes(), FIRST_BALANCE.to_be_bytes())
            })
        })?;
        Ok(())
    }

    fn balance(&self, tx: &Transaction, account: u32) -> BankResult<u64> {
        let balance = tx.get(&self.balances, account.to_be_bytes())?;
        decode(&balance.ok_or_else(|| format!("account {account} does not exist"))?)
    }

    /// Transfers money. Returns false if the balance is too low.
    fn transfer(&self, from: u32, to: u32, amount: u64) -> BankResult<bool> {
        self.db.transact(Durability::Buffered, |tx: &Transaction| {
            let Some(left) = self.balance(tx, from)?.checked_sub(amount) else { return Ok(false) };
            tx.put(&self.balances, from.to_be_bytes(), left.to_be_bytes())?;
            // This read shows the write above, also if both accounts are the same.
            let balance = self.balance(tx, to)? + amount;
            tx.put(&self.balances, to.to_be_bytes(), balance.to_be_bytes())?;
            // The commit fails if another transfer from this account is added meanwhile.
            let last = tx.prefix(&self.journal, from.to_be_bytes()).next_back().transpose()?;
            let number = last.map_or(Ok((from, 0)), |(key, _)| decode_journal_key(&key))?.1 + 1;
            let key = [&from.to_be_bytes()[..], &number.to_be_bytes()].concat();
            tx.put(&self.journal, key, format!("{amount} to {to}"))?;
            Ok(true)
        })
    }

    /// Returns the sum of all balances and the number of transfers in a snapshot. Fails if the journal has a gap.
    fn audit(&self, snapshot: &Snapshot) -> BankResult<(u64, u64)> {
        let mut sum = 0;
        for entry in snapshot.iter(&self.balances) {
            sum += decode(&entry?.1)?;
        }
        let (mut transfers, mut last) = (0, (0, 0));
        for entry in snapshot.iter(&self.journal) {
            let (account, number) = decode_journal_key(&entry?.0)?;
            let expected = if account == last.0 { last.1 + 1 } else { 1 };
            if number != expected {
                return Err(format!("transfer {expected} from {account} is missing").into());
            }
            (transfers, last) = (transfers + 1, (account, number));
        }
        Ok((sum, transfers))
    }
}

/// Makes `count` transfers on each of four threads while the calling thread checks the sum of all balances. Returns the number
/// of successful transfers.
fn make_transfers(bank: &Bank, count: u32) -> BankResult<u64> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    let mut done = 0;
                    for number in 0..count {
                        let (from, to) = ((number + thread) % ACCOUNTS, number * 7 % ACCOUNTS);
                        done += u64::from(bank.transfer(from, to, 70)?);
                    }
                    BankResult::Ok(done)
                })
            })
            .collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            let (sum, _) = bank.audit(&bank.db.snapshot())?;
            assert_eq!(sum, u64::from(ACCOUNTS) * FIRST_BALANCE);
        }
        let done =
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?);
        done.sum()
    })
}

fn main() -> BankResult<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("bank");
    let path = path.to_str().ok_or("the path is not UTF-8")?;
    let bank = Bank::open(Options::default(), path)?;
    bank.create_accounts()?;
    let done = make_transfers(&bank, 500)?;
    let (sum, transfers) = bank.audit(&bank.db.snapshot())?;
    assert_eq!(transfers, done);
    let metrics = bank.db.metrics().transactions;
    println!(
        "{transfers} transfers, {} retries; the sum of all balances is {sum}",
        metrics.retries
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lsmx::vfs::{CrashImage, MemVfs};

    use super::*;

    #[test]
    fn concurrent_transfers_keep_sum() {
        main().unwrap();
    }

    /// Takes images of the disk during transfers, as a power loss or a killed process leaves them.
    #[test]
    fn crash_keeps_sum_and_first_transfers() {
        let disk = MemVfs::new();
        let open = |disk: &MemVfs| {
            Bank::open(Options::default().vfs(Arc::new(disk.clone())), "bank").unwrap()
        };
        let bank = open(&disk);
        bank.create_accounts().unwrap();
        let images: Vec<MemVfs> = std::thread::scope(|scope| {
            let transfers = scope.spawn(|| make_transfers(&bank, 100).unwrap());
            let mut images = Vec::new();
            for seed in 0..10 {
                images.extend(CrashImage::ALL.map(|image| disk.crash(image, seed)));
            }
            transfers.join().unwrap();
            images
        });
        for image in images {
            let bank = open(&image);
            let (sum, _) = bank.audit(&bank.db.snapshot()).unwrap();
            assert_eq!(sum, u64::from(ACCOUNTS) * FIRST_BALANCE);
        }
    }
}
