//! The service: what a request does, and what it is answered.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Method, Request, Response, StatusCode};
use lsmx::env::Env;
use lsmx::merge_operator::Counter;
use lsmx::tokio::{Db, Keyspace};
use lsmx::{Durability, KeyspaceOptions, WriteOptions};

use crate::Outcome;
use crate::meter::{awaiting, calling};

/// Longest body of a request.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Bytes at which a piece of a scan is sent.
const PIECE_BYTES: usize = 16 << 10;

/// Which handle is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// The asynchronous one.
    Tasks,
    /// The blocking one, from the tasks: not to be imitated.
    Blocking,
}

pub(crate) type Body = UnsyncBoxBody<Bytes, lsmx::Error>;

/// The keyspaces that requests are about.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    calls: Calls,
    pub(crate) db: Db,
    pub(crate) values: Keyspace,
    pub(crate) counters: Keyspace,
}

impl Service {
    pub(crate) async fn open(db: Db, calls: Calls) -> Outcome<Service> {
        let counting = KeyspaceOptions::default().merge_operator(Counter);
        let counters = db.keyspace("counters", counting).await?;
        Ok(Service { calls, values: db.default_keyspace(), counters, db })
    }

    /// Answers a request; what goes wrong in the database is an answer, too.
    pub(crate) async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, hyper::http::Error> {
        let answered = self.try_answer(request).await;
        let (status, body) = answered.unwrap_or_else(|error| {
            let status = match error.downcast_ref::<lsmx::Error>() {
                Some(lsmx::Error::TooLarge { .. }) => StatusCode::PAYLOAD_TOO_LARGE,
                Some(_) => StatusCode::SERVICE_UNAVAILABLE,
                None => StatusCode::BAD_REQUEST,
            };
            (status, whole(error.to_string()))
        });
        Response::builder().status(status).body(body)
    }

    async fn try_answer(&self, request: Request<Incoming>) -> Outcome<(StatusCode, Body)> {
        let env = self.db.as_blocking().env();
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let mut path = uri.path()[1..].splitn(2, '/');
        let (what, key) = (path.next().unwrap_or_default(), path.next().unwrap_or_default());
        let durability = match uri.query() {
            Some("sync") => Durability::Sync,
            _ => Durability::Buffered,
        };
        Ok(match (what, method) {
            ("kv", Method::GET) => found(self.get(&self.values, key).await?),
            ("kv", Method::PUT) => {
                let value = body(request).await?;
                self.put(key, &value, durability).await?;
                (StatusCode::NO_CONTENT, whole(""))
            }
            ("kv", Method::DELETE) => {
                let (tasks, blocking) = (&self.values, self.values.as_blocking());
                match self.calls {
                    Calls::Tasks => {
                        awaiting(env, tasks.with_write_options(durability).delete(key)).await?
                    }
                    Calls::Blocking => {
                        calling(env, || blocking.with_write_options(durability).delete(key))?
                    }
                }
                (StatusCode::NO_CONTENT, whole(""))
            }
            ("counters", Method::GET) => {
                let count = self.get(&self.counters, key).await?;
                let count = count.map(|count| count.as_ref().try_into().map(u64::from_le_bytes));
                found(count.transpose()?.map(|count| count.to_string()))
            }
            ("counters", Method::POST) => {
                let by: u64 = std::str::from_utf8(&body(request).await?)?.trim().parse()?;
                let operand = by.to_le_bytes();
                let (tasks, blocking) = (&self.counters, self.counters.as_blocking());
                match self.calls {
                    Calls::Tasks => awaiting(env, tasks.merge(key, operand)).await?,
                    Calls::Blocking => calling(env, || blocking.merge(key, operand))?,
                }
                (StatusCode::NO_CONTENT, whole(""))
            }
            ("scan", Method::GET) => (StatusCode::OK, self.scan(key)),
            _ => (StatusCode::NOT_FOUND, whole("")),
        })
    }

    async fn get(&self, keyspace: &Keyspace, key: &str) -> lsmx::Result<Option<lsmx::Slice>> {
        let env = self.db.as_blocking().env();
        match self.calls {
            Calls::Tasks => awaiting(env, keyspace.get(key)).await,
            Calls::Blocking => calling(env, || keyspace.as_blocking().get(key)),
        }
    }

    async fn put(&self, key: &str, value: &[u8], durability: Durability) -> lsmx::Result<()> {
        let (env, options) = (self.db.as_blocking().env(), WriteOptions::from(durability));
        let (tasks, blocking) = (&self.values, self.values.as_blocking());
        match self.calls {
            Calls::Tasks => awaiting(env, tasks.with_write_options(options).put(key, value)).await,
            Calls::Blocking => {
                calling(env, || blocking.with_write_options(options).put(key, value))
            }
        }
    }

    /// All entries with a prefix, a line each, sent while they are read.
    fn scan(&self, prefix: &str) -> Body {
        match self.calls {
            Calls::Tasks => {
                let (env, entries) =
                    (self.db.as_blocking().env().clone(), Some(self.values.prefix(prefix)));
                let lines = Lines { env, entries, line: Vec::new() };
                StreamBody::new(lines).boxed_unsync()
            }
            Calls::Blocking => {
                let mut text = Vec::new();
                calling(self.db.as_blocking().env(), || {
                    for entry in self.values.as_blocking().prefix(prefix) {
                        match entry {
                            Ok((key, value)) => write_line(&mut text, &key, &value),
                            Err(error) => text.extend_from_slice(error.to_string().as_bytes()),
                        }
                    }
                });
                whole(text)
            }
        }
    }
}

fn write_line(text: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    text.extend_from_slice(key);
    text.push(b'\t');
    text.extend_from_slice(value);
    text.push(b'\n');
}

/// Entries as lines, as many at a time as are there and fit in a piece.
struct Lines {
    env: Env,
    /// There until this is dropped.
    entries: Option<lsmx::tokio::Range>,
    line: Vec<u8>,
}

impl Stream for Lines {
    type Item = lsmx::Result<Frame<Bytes>>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Lines { env, entries, line } = &mut *self;
        let Some(entries) = entries else { return Poll::Ready(None) };
        // Writing the lines counts as well: it is little beside reading the entries.
        let ended = calling(env, || {
            while line.len() < PIECE_BYTES {
                match Pin::new(&mut *entries).poll_next(task) {
                    Poll::Ready(Some(Ok((key, value)))) => write_line(line, &key, &value),
                    Poll::Ready(Some(Err(error))) => return Some(Poll::Ready(Some(Err(error)))),
                    Poll::Pending if line.is_empty() => return Some(Poll::Pending),
                    Poll::Ready(None) if line.is_empty() => return Some(Poll::Ready(None)),
                    Poll::Pending | Poll::Ready(None) => break,
                }
            }
            None
        });
        ended.unwrap_or_else(|| {
            let piece = Bytes::from(std::mem::take(line));
            Poll::Ready(Some(Ok(Frame::data(piece))))
        })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // What it holds of the database goes with it, and that takes its time, too.
        calling(&self.env, || drop(self.entries.take()));
    }
}

async fn body(request: Request<Incoming>) -> Outcome<Bytes> {
    Ok(Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await?.to_bytes())
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

fn found(value: Option<impl AsRef<[u8]>>) -> (StatusCode, Body) {
    match value {
        Some(value) => (StatusCode::OK, whole(Bytes::copy_from_slice(value.as_ref()))),
        None => (StatusCode::NOT_FOUND, whole("")),
    }
}
