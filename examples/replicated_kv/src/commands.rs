//! The commands in the Raft log, and their effects on the state.
//!
//! ```text
//! 'k' key           value
//! 'c' client id     number of the last executed request of the client, followed by a byte if the request was refused
//! 'n'               number of registered clients, which is the newest client id
//! ```
//!
//! Client ids and request numbers are u64. Ids in keys are big-endian, and values are little-endian.

use lsmx::Slice;
use lsmx_raft::{Application, SnapshotStream, State, StateView};
use serde::{Deserialize, Serialize};

use crate::testing::{Bug, is_on};

/// Longest key in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 1 << 10;
/// Longest value in bytes, also after an append.
pub(crate) const VALUE_BYTES_MAX: usize = 64 << 10;
/// Number of registered clients. The registration of another client ends the oldest one.
const CLIENTS_MAX: u64 = if cfg!(feature = "testing") { 100 } else { 10_000 };

const LAST_CLIENT: &[u8] = b"n";

openraft::declare_raft_types!(
    /// The types of the replicated service.
    pub(crate) Types: D = Command, R = Outcome, SnapshotData = SnapshotStream
);

/// A command in the Raft log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Registers a client.
    Register,
    /// Changes the value of a key.
    Write {
        /// The key.
        key: String,
        /// The change.
        change: Change,
        /// Identifies the request, so that a repetition has no effect.
        request: Option<RequestId>,
    },
}

/// A change of the value of a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Change {
    /// Sets the value.
    Put(Vec<u8>),
    /// Appends to the value. A missing value is empty.
    Append(Vec<u8>),
    /// Deletes the value.
    Delete,
}

/// Identifies a request of a registered client. A client sends one request at a time, and increments `number` for each.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RequestId {
    /// Result of the registration.
    pub client: u64,
    /// Number of the request, from 1 on.
    pub number: u64,
}

/// Response of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// The command was applied, now or when an earlier copy of the request was executed.
    Applied,
    /// The id of a new client.
    Registered(u64),
    /// The client is not registered, or its registration has ended.
    UnknownClient,
    /// The client has already sent a later request.
    OldRequest,
    /// The value would be longer than [`VALUE_BYTES_MAX`], now or when an earlier copy of the request was executed.
    ValueTooLong,
}

/// The state machine of the service.
#[derive(Debug)]
pub(crate) struct KeyValues;

fn value_key(key: &str) -> Vec<u8> {
    [b"k", key.as_bytes()].concat()
}

fn client_key(client: u64) -> Vec<u8> {
    [&b"c"[..], &client.to_be_bytes()].concat()
}

fn get_number(state: &State<'_>, key: &[u8]) -> lsmx::Result<Option<u64>> {
    let stored = state.get(key)?;
    // Only this module writes numbers, as `u64::to_le_bytes`.
    Ok(stored.map(|bytes| u64::from_le_bytes(bytes.as_ref().try_into().expect("eight bytes"))))
}

/// Returns the value of a key.
///
/// # Errors
/// See [`StateView::get`].
pub(crate) fn get_value(view: &StateView<Types>, key: &str) -> lsmx::Result<Option<Slice>> {
    view.get(value_key(key))
}

fn register(state: &State<'_>) -> lsmx::Result<Outcome> {
    let client = get_number(state, LAST_CLIENT)?.unwrap_or(0) + 1;
    state.put(LAST_CLIENT, client.to_le_bytes())?;
    put_last_request(state, RequestId { client, number: 0 }, Outcome::Applied)?;
    if let Some(oldest) = client.checked_sub(CLIENTS_MAX) {
        state.delete(client_key(oldest))?;
    }
    Ok(Outcome::Registered(client))
}

/// Returns the number and the outcome of the last executed request of a client.
fn get_last_request(state: &State<'_>, client: u64) -> lsmx::Result<Option<(u64, Outcome)>> {
    let stored = state.get(client_key(client))?;
    Ok(stored.map(|bytes| {
        let (number, refusal) = bytes.split_first_chunk().expect("written by put_last_request");
        let outcome = if refusal.is_empty() { Outcome::Applied } else { Outcome::ValueTooLong };
        (u64::from_le_bytes(*number), outcome)
    }))
}

fn put_last_request(state: &State<'_>, request: RequestId, outcome: Outcome) -> lsmx::Result<()> {
    let mut value = request.number.to_le_bytes().to_vec();
    if outcome == Outcome::ValueTooLong {
        value.push(1);
    }
    state.put(client_key(request.client), value)
}

/// Returns the outcome of a request that must not be executed. A late copy of a refused request must be refused, too.
fn check_request(state: &State<'_>, request: RequestId) -> lsmx::Result<Option<Outcome>> {
    if is_on(Bug::RetryAppliedTwice) {
        return Ok(None);
    }
    Ok(match get_last_request(state, request.client)? {
        None => Some(Outcome::UnknownClient),
        Some((last, _)) if request.number < last => Some(Outcome::OldRequest),
        Some((last, outcome)) if request.number == last => Some(outcome),
        Some(_) => None,
    })
}

fn apply_change(state: &State<'_>, key: &str, change: &Change) -> lsmx::Result<Outcome> {
    let key = value_key(key);
    match change {
        Change::Put(value) if value.len() > VALUE_BYTES_MAX => return Ok(Outcome::ValueTooLong),
        Change::Put(value) => state.put(key, value)?,
        Change::Append(tail) => {
            let mut value = state.get(&key)?.map_or_else(Vec::new, |value| value.to_vec());
            value.extend_from_slice(tail);
            if value.len() > VALUE_BYTES_MAX {
                return Ok(Outcome::ValueTooLong);
            }
            state.put(key, value)?;
        }
        Change::Delete => state.delete(key)?,
    }
    Ok(Outcome::Applied)
}

impl Application<Types> for KeyValues {
    fn apply(&self, state: &State<'_>, command: &Command) -> lsmx::Result<Outcome> {
        let Command::Write { key, change, request } = command else { return register(state) };
        if let Some(request) = request
            && let Some(outcome) = check_request(state, *request)?
        {
            return Ok(outcome);
        }
        let outcome = apply_change(state, key, change)?;
        if let Some(request) = request {
            put_last_request(state, *request, outcome)?;
        }
        Ok(outcome)
    }

    fn empty_response(&self) -> Outcome {
        Outcome::Applied
    }
}
