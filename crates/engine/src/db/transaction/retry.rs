//! Retries of transactions that conflict with other commits.

use crate::db::transaction::Transaction;
use crate::error::{Error, Result};
use crate::options::write::WriteOptions;

/// Maximum number of attempts of one call.
const ATTEMPTS_MAX: u32 = 24;
/// Maximum pause after the first attempt, in microseconds. It doubles with each further attempt.
const FIRST_PAUSE_US_MAX: u64 = 50;
/// Maximum pause between two attempts, in microseconds.
const PAUSE_US_MAX: u64 = 20_000;

/// Calls `body` with a new transaction and commits it, until the commit has no conflict or the attempts are exhausted.
pub(crate) fn transact<T, E: From<Error>>(
    begin: impl Fn() -> Transaction,
    options: WriteOptions,
    mut body: impl FnMut(&Transaction) -> Result<T, E>,
) -> Result<T, E> {
    let mut pause_us_max = FIRST_PAUSE_US_MAX;
    for _ in 1..ATTEMPTS_MAX {
        let transaction = begin();
        let env = transaction.env().clone();
        let value = body(&transaction)?;
        match transaction.commit(options) {
            Err(Error::Conflict { .. } | Error::ConflictUnknown { .. }) => {
                // A random pause keeps two transactions from repeating their conflict.
                env.pause_us(env.random_u64() % pause_us_max);
                pause_us_max = (pause_us_max * 2).min(PAUSE_US_MAX);
            }
            committed => return committed.map(|()| value).map_err(E::from),
        }
    }
    let transaction = begin();
    let value = body(&transaction)?;
    transaction.commit(options)?;
    Ok(value)
}
