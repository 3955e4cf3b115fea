//! The HTTP interface.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, FromRequest, Json, Path, Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use openraft::BasicNode;
use openraft::error::{ClientWriteError, RaftError};
use openraft::raft::ClientWriteResponse;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::commands::{
    Change, Command, KEY_BYTES_MAX, Outcome, RequestId, Types, VALUE_BYTES_MAX, get_value,
};
use crate::metrics::metrics_text;
use crate::node::Node;
use crate::testing::{Bug, is_on};

/// HTTP header of a write: the id of the client, which `POST /clients` returned.
pub const CLIENT_ID: &str = "client-id";
/// HTTP header of a write: the number of the request. The client increments it for each new request.
pub const REQUEST_NUMBER: &str = "request-number";
/// Header of a request that a node has forwarded. It is not forwarded again.
const FORWARDED: &str = "x-lsmx-forwarded";

const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// A new node receives the whole state.
const MEMBERSHIP_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest request of openraft: a full payload of log entries.
const RAFT_BODY_BYTES_MAX: usize = 16 << 20;

/// Response of a failed request: its status and its body.
type Failure = (StatusCode, String);

type Shared = State<Arc<Node>>;

pub(crate) fn router(node: Arc<Node>) -> Router {
    let on_leader = Router::new()
        .route("/kv/{key}", get(read).put(change).post(change).delete(change))
        .route("/clients", post(register_client))
        .route("/cluster/nodes/{id}", put(add_node))
        .route("/cluster/voters", put(change_voters))
        .layer(from_fn_with_state(Arc::clone(&node), route_to_leader))
        .layer(DefaultBodyLimit::max(VALUE_BYTES_MAX));
    let raft = Router::new()
        .route("/raft/append", post(append_entries))
        .route("/raft/vote", post(vote))
        .route("/raft/snapshot", post(install_snapshot))
        .layer(DefaultBodyLimit::max(RAFT_BODY_BYTES_MAX));
    let any_node = Router::new()
        .route("/cluster", get(status))
        .route("/cluster/init", post(initialize))
        .route("/metrics", get(metrics));
    on_leader.merge(raft).merge(any_node).with_state(node)
}

fn failure(status: StatusCode, error: impl Display) -> Failure {
    (status, format!("{error}\n"))
}

fn fail<T>(status: StatusCode, error: impl Display) -> Result<T, Failure> {
    Err(failure(status, error))
}

fn unavailable_failure(error: impl Display) -> Failure {
    failure(StatusCode::SERVICE_UNAVAILABLE, error)
}

/// Executes a request if this node is the leader. Otherwise forwards it to the leader.
async fn route_to_leader(State(node): Shared, request: Request, next: Next) -> Response {
    let is_membership = request.uri().path().starts_with("/cluster");
    let limit = if is_membership { MEMBERSHIP_TIMEOUT } else { REQUEST_TIMEOUT };
    let response = tokio::time::timeout(limit, node.route(request, next)).await;
    let response =
        response.unwrap_or_else(|_| Err(unavailable_failure("timeout, outcome unknown")));
    response.unwrap_or_else(IntoResponse::into_response)
}

impl Node {
    async fn route(&self, request: Request, next: Next) -> Result<Response, Failure> {
        if is_on(Bug::StaleRead) && request.method() == Method::GET {
            return Ok(next.run(request).await);
        }
        let waiting = self.raft.wait(Some(REQUEST_TIMEOUT));
        let known = waiting.metrics(|metrics| metrics.current_leader.is_some(), "leader known");
        let metrics = known.await.map_err(unavailable_failure)?;
        if metrics.current_leader == Some(self.id) {
            return Ok(next.run(request).await);
        }
        let membership = metrics.membership_config.membership();
        let leader = metrics.current_leader.and_then(|leader| membership.get_node(&leader));
        match leader {
            Some(leader) if !request.headers().contains_key(FORWARDED) => {
                self.forward(request, &leader.addr).await
            }
            _ => Err(unavailable_failure("the leader has changed")),
        }
    }

    async fn forward(&self, request: Request, address: &str) -> Result<Response, Failure> {
        let (mut parts, body) = request.into_parts();
        // The leader would close the connection before it has received a body above the limit, and its response could be lost.
        let body = Bytes::from_request(Request::from_parts(parts.clone(), body), &()).await;
        let body = body.map_err(|error| failure(error.status(), error.body_text()))?;
        let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
        parts.uri = format!("http://{address}{path}").parse().map_err(unavailable_failure)?;
        parts.headers.remove(CONNECTION);
        parts.headers.insert(FORWARDED, HeaderValue::from(self.id));
        let response = self.client.request(Request::from_parts(parts, Body::from(body))).await;
        let response = response.map_err(|error| {
            unavailable_failure(format_args!("the leader at {address} does not answer: {error}"))
        })?;
        Ok(response.map(Body::new))
    }

    async fn execute(&self, command: Command) -> Result<Response, Failure> {
        let written = self.raft.client_write(command).await.map_err(unavailable_failure)?;
        match written.data {
            Outcome::Applied => Ok(StatusCode::NO_CONTENT.into_response()),
            Outcome::Registered(client) => Ok(format!("{client}\n").into_response()),
            Outcome::UnknownClient => fail(StatusCode::GONE, "the client must register again"),
            Outcome::OldRequest => {
                fail(StatusCode::CONFLICT, "the client has sent a later request")
            }
            Outcome::ValueTooLong => {
                let error = format_args!("the value would be longer than {VALUE_BYTES_MAX} bytes");
                fail(StatusCode::PAYLOAD_TOO_LARGE, error)
            }
        }
    }
}

async fn read(State(node): Shared, Path(key): Path<String>) -> Result<Response, Failure> {
    if !is_on(Bug::StaleRead) {
        node.raft.ensure_linearizable().await.map_err(unavailable_failure)?;
    }
    let value = node.reader.read(move |view| get_value(view, &key)).await;
    match value.map_err(unavailable_failure)? {
        Some(value) => Ok(value.to_vec().into_response()),
        None => fail(StatusCode::NOT_FOUND, "not found"),
    }
}

/// Returns the ids in the headers, or `None` if there are none.
fn request_id(headers: &HeaderMap) -> Result<Option<RequestId>, Failure> {
    let number = |name| {
        let Some(value) = headers.get(name) else { return Ok(None) };
        match value.to_str().ok().and_then(|text| text.parse().ok()) {
            Some(number) if number > 0 => Ok(Some(number)),
            _ => fail(StatusCode::BAD_REQUEST, format_args!("{name} is not a positive number")),
        }
    };
    match (number(CLIENT_ID)?, number(REQUEST_NUMBER)?) {
        (Some(client), Some(number)) => Ok(Some(RequestId { client, number })),
        (None, None) => Ok(None),
        _ => {
            let error = format_args!("{CLIENT_ID} and {REQUEST_NUMBER} belong together");
            fail(StatusCode::BAD_REQUEST, error)
        }
    }
}

async fn change(
    State(node): Shared,
    Path(key): Path<String>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Failure> {
    if key.len() > KEY_BYTES_MAX {
        let error = format_args!("the key is longer than {KEY_BYTES_MAX} bytes");
        return fail(StatusCode::BAD_REQUEST, error);
    }
    let request = request_id(&headers)?;
    let change = match method {
        Method::PUT => Change::Put(body.into()),
        Method::POST => Change::Append(body.into()),
        _ => Change::Delete,
    };
    node.execute(Command::Write { key, change, request }).await
}

async fn register_client(State(node): Shared) -> Result<Response, Failure> {
    node.execute(Command::Register).await
}

/// Parses a body. Unlike the extractor of axum, it accepts any content type, such as the default of curl.
fn parse_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    serde_json::from_slice(body).map_err(|error| failure(StatusCode::BAD_REQUEST, error))
}

async fn initialize(State(node): Shared, body: Bytes) -> Result<StatusCode, Failure> {
    let members: BTreeMap<u64, String> = parse_json(&body)?;
    let members: BTreeMap<u64, BasicNode> =
        members.into_iter().map(|(id, address)| (id, BasicNode::new(address))).collect();
    let initialized = node.raft.initialize(members).await;
    initialized.map_err(|error| failure(StatusCode::CONFLICT, error))?;
    Ok(StatusCode::NO_CONTENT)
}

type MembershipResult =
    Result<ClientWriteResponse<Types>, RaftError<u64, ClientWriteError<u64, BasicNode>>>;

fn membership_response(result: MembershipResult) -> Result<StatusCode, Failure> {
    match result {
        Ok(_) => Ok(StatusCode::NO_CONTENT),
        Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(error))) => {
            fail(StatusCode::CONFLICT, error)
        }
        Err(error) => Err(unavailable_failure(error)),
    }
}

/// Adds a learner and waits until it has the log of the leader.
async fn add_node(
    State(node): Shared,
    Path(id): Path<u64>,
    address: String,
) -> Result<StatusCode, Failure> {
    let added = node.raft.add_learner(id, BasicNode::new(address.trim()), true).await;
    membership_response(added)
}

/// Makes the listed learners and voters the voters. Other voters are removed.
async fn change_voters(State(node): Shared, body: Bytes) -> Result<StatusCode, Failure> {
    let voters: BTreeSet<u64> = parse_json(&body)?;
    membership_response(node.raft.change_membership(voters, false).await)
}

async fn status(State(node): Shared) -> Response {
    let metrics = node.raft.metrics().borrow().clone();
    Json(metrics).into_response()
}

async fn metrics(State(node): Shared) -> Result<Response, Failure> {
    let engine = node.db.metrics().await.map_err(unavailable_failure)?;
    let text = metrics_text(&engine, &node.raft.metrics().borrow());
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, Failure> {
    postcard::from_bytes(body).map_err(|error| failure(StatusCode::BAD_REQUEST, error))
}

fn encode(result: impl Serialize) -> Result<Vec<u8>, Failure> {
    let encoded = postcard::to_stdvec(&result);
    encoded.map_err(|error| failure(StatusCode::INTERNAL_SERVER_ERROR, error))
}

async fn append_entries(State(node): Shared, body: Bytes) -> Result<Vec<u8>, Failure> {
    encode(node.raft.append_entries(decode(&body)?).await)
}

async fn vote(State(node): Shared, body: Bytes) -> Result<Vec<u8>, Failure> {
    encode(node.raft.vote(decode(&body)?).await)
}

/// The response contains the number of received bytes, so that the leader does not send them again.
async fn install_snapshot(State(node): Shared, body: Bytes) -> Result<Vec<u8>, Failure> {
    let response = node.raft.install_snapshot(decode(&body)?).await;
    let received_bytes = node.receipt.received_bytes().await;
    encode(response.map(|response| (response, received_bytes)))
}
