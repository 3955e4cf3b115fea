//! Comparison of a database with its model.

use std::fmt;

use lsmx::{Error, Keyspace, Result, Slice, Transaction};

use super::change::{Bytes, Pairs};

/// Reason why a comparison failed.
#[derive(Debug)]
pub enum Trouble {
    /// A read failed. An injected fault may be the cause.
    Failed(Error),
    /// A read returned a wrong result. This is an error even if faults are injected.
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Failed(error)
    }
}

impl From<Trouble> for String {
    fn from(trouble: Trouble) -> String {
        match trouble {
            Trouble::Failed(error) => format!("{error:?}"),
            Trouble::Wrong(what) => what,
        }
    }
}

/// Bytes with a short debug format.
#[derive(PartialEq, Eq)]
pub(super) struct Text<'a>(pub(super) &'a [u8]);

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(60)];
        write!(f, "\"{}\" ({} bytes)", shown.escape_ascii(), self.0.len())
    }
}

/// Compares the pairs of a range with the expected pairs. `read` names the range in error messages.
///
/// # Errors
/// Returns the first difference, or the first error of a read.
pub fn compare_pairs<'a>(
    read: &str,
    mut found: impl Iterator<Item = Result<(Slice, Slice)>>,
    mut expected: impl Iterator<Item = (&'a Bytes, &'a Bytes)>,
) -> Result<(), Trouble> {
    loop {
        let found = found.next().transpose()?;
        let found = found.as_ref().map(|(key, value)| (Text(key), Text(value)));
        let expected = expected.next().map(|(key, value)| (Text(key), Text(value)));
        if found != expected {
            return Err(Trouble::Wrong(format!("{read}: {found:?}, expected {expected:?}")));
        }
        if expected.is_none() {
            return Ok(());
        }
    }
}

/// Compares a keyspace with its model by scans in both directions and by lookups of keys.
///
/// # Errors
/// Returns the first difference, or the first error of a read.
pub fn compare_keyspace(
    keyspace: &Keyspace,
    pairs: &Pairs,
    keys: impl IntoIterator<Item = impl AsRef<[u8]>>,
) -> Result<(), Trouble> {
    compare_pairs("scan", keyspace.iter(), pairs.iter())?;
    compare_pairs("backward scan", keyspace.iter().rev(), pairs.iter().rev())?;
    for key in keys {
        let (key, found) = (key.as_ref(), keyspace.get(key.as_ref())?);
        compare_value(key, found, pairs)?;
    }
    Ok(())
}

/// Compares the contents of a keyspace in a transaction with the expected pairs: all pairs in both directions, those
/// that begin like `key`, and the value of `key`.
///
/// # Errors
/// Returns the first difference, or the first error of a read.
pub(super) fn compare_transaction(
    tx: &Transaction,
    keyspace: &Keyspace,
    key: &[u8],
    pairs: &Pairs,
) -> Result<(), Trouble> {
    let range = || tx.range::<Bytes>(keyspace, ..);
    compare_pairs("scan in a transaction", range(), pairs.iter())?;
    compare_pairs("backward scan in a transaction", range().rev(), pairs.iter().rev())?;
    let prefix = &key[..key.len() / 2];
    let expected = pairs.iter().filter(|(key, _)| key.starts_with(prefix));
    compare_pairs("prefix in a transaction", tx.prefix(keyspace, prefix), expected)?;
    compare_value(key, tx.get_for_update(keyspace, key)?, pairs)
}

pub(super) fn compare_value(
    key: &[u8],
    found: Option<Slice>,
    pairs: &Pairs,
) -> Result<(), Trouble> {
    let (found, expected) = (found.as_deref().map(Text), pairs.get(key).map(|it| Text(it)));
    if found == expected {
        return Ok(());
    }
    Err(Trouble::Wrong(format!("value of {:?}: {found:?}, expected {expected:?}", Text(key))))
}
