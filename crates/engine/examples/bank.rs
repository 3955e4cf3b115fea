//! A bank: transactions transfer money between accounts and add an entry to a journal. The sum of all balances never
//! changes, and no acknowledged transfer is lost, neither under concurrent transfers nor when the process is killed.
//!
//! The program starts itself as a child process that makes transfers, kills the child, and checks the database.
//!
//! ```sh
//! cargo run --release -p lsmx --example bank
//! ```

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use lsmx::{Db, Durability, Keyspace, KeyspaceOptions, Options, Transaction};

const ACCOUNTS: u32 = 10;
const FIRST_BALANCE: u64 = 1_000;
/// The child process is killed after this number of transfers.
const TRANSFERS_BEFORE_KILL: usize = 500;

/// Error of a bank, or of its database.
type BankResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A transfer: the account that pays, and the number of the transfer among those of this account.
type TransferId = (u32, u64);

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

/// Returns the transfer in a key of the journal.
fn decode_journal_key(key: &[u8]) -> BankResult<TransferId> {
    let (account, number) = key.split_first_chunk().ok_or("the key is too short")?;
    Ok((u32::from_be_bytes(*account), decode(number)?))
}

impl Bank {
    fn open(options: Options, path: impl AsRef<Path>) -> BankResult<Bank> {
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

    /// Transfers money. Returns the number of the transfer, which is then durable, or `None` if the balance is too low.
    fn transfer(&self, from: u32, to: u32, amount: u64) -> BankResult<Option<u64>> {
        self.db.transact(Durability::Sync, |tx: &Transaction| {
            let Some(left) = self.balance(tx, from)?.checked_sub(amount) else { return Ok(None) };
            tx.put(&self.balances, from.to_be_bytes(), left.to_be_bytes())?;
            // This read shows the write above, also if both accounts are the same.
            let balance = self.balance(tx, to)? + amount;
            tx.put(&self.balances, to.to_be_bytes(), balance.to_be_bytes())?;
            // The commit fails if another transfer from this account is added meanwhile.
            let last = tx.prefix(&self.journal, from.to_be_bytes()).next_back().transpose()?;
            let number = last.map_or(Ok((from, 0)), |(key, _)| decode_journal_key(&key))?.1 + 1;
            let key = [&from.to_be_bytes()[..], &number.to_be_bytes()].concat();
            tx.put(&self.journal, key, format!("{amount} to {to}"))?;
            Ok(Some(number))
        })
    }

    /// Checks the sum of all balances and returns the transfers in the journal. Fails if the journal has a gap.
    fn audit(&self) -> BankResult<BTreeSet<TransferId>> {
        let snapshot = self.db.snapshot();
        let mut sum = 0;
        for entry in snapshot.iter(&self.balances) {
            sum += decode(&entry?.1)?;
        }
        if sum != u64::from(ACCOUNTS) * FIRST_BALANCE {
            return Err(format!("the sum of all balances is {sum}").into());
        }
        let mut transfers = BTreeSet::new();
        for entry in snapshot.iter(&self.journal) {
            let (account, number) = decode_journal_key(&entry?.0)?;
            if number > 1 && !transfers.contains(&(account, number - 1)) {
                return Err(format!("transfer {} from {account} is missing", number - 1).into());
            }
            transfers.insert((account, number));
        }
        Ok(transfers)
    }
}

/// Makes `count` transfers on each of four threads. The calling thread passes the successful ones to `acknowledge`, and
/// audits the bank meanwhile.
fn make_transfers(
    bank: &Bank,
    count: u32,
    mut acknowledge: impl FnMut(TransferId),
) -> BankResult<()> {
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(1);
        for thread in 0..4 {
            let sender = sender.clone();
            scope.spawn(move || {
                for number in 0..count {
                    let number = number % ACCOUNTS;
                    let (from, to) = ((number + thread) % ACCOUNTS, number * 7 % ACCOUNTS);
                    let done = bank.transfer(from, to, 70);
                    // The receiver ends at the first error.
                    if sender.send(done.map(|number| (from, number))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (position, done) in receiver.into_iter().enumerate() {
            if let (from, Some(number)) = done? {
                acknowledge((from, number));
            }
            if position % 50 == 0 {
                bank.audit()?;
            }
        }
        Ok(())
    })
}

/// Makes transfers and prints each successful one, until the process is killed.
fn run_until_killed(path: impl AsRef<Path>) -> BankResult<()> {
    let bank = Bank::open(Options::default(), path)?;
    bank.create_accounts()?;
    make_transfers(&bank, u32::MAX, |(from, number)| println!("transfer {from} {number}"))
}

/// Returns the transfer that the child process has acknowledged by this line.
fn decode_line(line: &str) -> Option<TransferId> {
    let (from, number) = line.strip_prefix("transfer ")?.split_once(' ')?;
    Some((from.parse().ok()?, number.parse().ok()?))
}

/// Starts a process that makes transfers, kills it, and opens its database. Returns the number of acknowledged and of all
/// transfers. Fails if an acknowledged transfer is missing.
fn kill_and_audit(mut command: Command, path: &Path) -> BankResult<(usize, usize)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let output = child.stdout.take().ok_or("the child process has no output")?;
    let mut acknowledged = BTreeSet::new();
    for line in BufReader::new(output).lines() {
        acknowledged.extend(decode_line(&line?));
        // The loop also reads the lines that the child process has printed before it ended.
        if acknowledged.len() == TRANSFERS_BEFORE_KILL {
            child.kill()?;
        }
    }
    child.wait()?;
    if acknowledged.len() < TRANSFERS_BEFORE_KILL {
        return Err("the child process ended by itself".into());
    }
    let transfers = Bank::open(Options::default(), path)?.audit()?;
    match acknowledged.difference(&transfers).next() {
        Some((from, number)) => Err(format!("transfer {number} from {from} is lost").into()),
        None => Ok((acknowledged.len(), transfers.len())),
    }
}

fn main() -> BankResult<()> {
    if let Some(path) = std::env::args_os().nth(1) {
        return run_until_killed(path);
    }
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("bank");
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(&path);
    let (acknowledged, transfers) = kill_and_audit(command, &path)?;
    println!("{acknowledged} transfers were acknowledged before the kill, {transfers} are found");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lsmx::vfs::{CrashImage, MemVfs};

    use super::*;

    /// Environment variable with the path of the database for the child process.
    const PATH: &str = "LSMX_TEST_BANK";

    /// The child process of the next test.
    #[test]
    fn transferring_process() {
        if let Some(path) = std::env::var_os(PATH) {
            run_until_killed(path).unwrap();
        }
    }

    #[test]
    fn kill_keeps_sum_and_acknowledged_transfers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bank");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["tests::transferring_process", "--exact", "--nocapture", "--quiet"]);
        command.env(PATH, &path);
        kill_and_audit(command, &path).unwrap();
    }

    /// Takes images of the disk during transfers, as a power loss leaves them.
    #[test]
    fn crash_keeps_sum_and_acknowledged_transfers() {
        let disk = MemVfs::new();
        let open = |disk: &MemVfs| {
            Bank::open(Options::default().vfs(Arc::new(disk.clone())), "bank").unwrap()
        };
        let bank = open(&disk);
        bank.create_accounts().unwrap();
        let (mut acknowledged, mut images) = (BTreeSet::new(), Vec::new());
        make_transfers(&bank, 100, |transfer| {
            acknowledged.insert(transfer);
            let number = acknowledged.len();
            if number.is_multiple_of(5) {
                let image = CrashImage::ALL[number / 5 % CrashImage::ALL.len()];
                images.push((acknowledged.clone(), disk.crash(image, number as u64)));
            }
        })
        .unwrap();
        let all = bank.audit().unwrap();
        assert_eq!(all, acknowledged);
        let mut incomplete = 0;
        for (acknowledged, image) in images {
            let found = open(&image).audit().unwrap();
            assert!(acknowledged.is_subset(&found) && found.is_subset(&all));
            incomplete += usize::from(!found.is_empty() && found.len() < all.len());
        }
        assert!(incomplete > 0);
    }
}
