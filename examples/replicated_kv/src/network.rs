//! The network of openraft over HTTP. Requests and responses are encoded by `postcard`.

use std::io;
use std::iter::repeat;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, StatusCode};
use lsmx_raft::SnapshotResume;
use openraft::error::{
    Infallible, InstallSnapshotError, RPCError, RaftError, RemoteError, Unreachable,
};
use openraft::network::{Backoff, RPCOption};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse,
    VoteRequest, VoteResponse,
};
use openraft::{BasicNode, RaftNetwork, RaftNetworkFactory};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::commands::Types;
use crate::http::{Client, send};

/// Time until a request to an unreachable node is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Creates connections to other nodes.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    pub(crate) client: Client,
}

/// Sends requests to one node.
#[derive(Debug)]
pub(crate) struct Connection {
    client: Client,
    target: u64,
    address: String,
    resume: SnapshotResume,
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Connection {
        let (client, address) = (self.client.clone(), node.addr.clone());
        Connection { client, target, address, resume: SnapshotResume::default() }
    }
}

type Failure<E = Infallible> = RPCError<u64, BasicNode, RaftError<u64, E>>;

impl Connection {
    /// Calls a function of the `Raft` of the target. openraft limits the time of the call.
    async fn call<Response: DeserializeOwned, E: std::error::Error + DeserializeOwned>(
        &self,
        function: &str,
        request: impl Serialize,
    ) -> Result<Response, Failure<E>> {
        let response = self.exchange(function, request).await;
        let result: Result<Response, RaftError<u64, E>> = response
            .and_then(|bytes| postcard::from_bytes(&bytes).map_err(io::Error::other))
            .map_err(|error| RPCError::Unreachable(Unreachable::new(&error)))?;
        result.map_err(|error| RPCError::RemoteError(RemoteError::new(self.target, error)))
    }

    async fn exchange(&self, function: &str, request: impl Serialize) -> io::Result<Bytes> {
        let body = postcard::to_stdvec(&request).map_err(io::Error::other)?;
        let uri = format!("http://{}/raft/{function}", self.address);
        let request = Request::post(&uri).body(body.into()).map_err(io::Error::other)?;
        match send(&self.client, request).await? {
            (StatusCode::OK, response) => Ok(response),
            (status, body) => {
                let text = String::from_utf8_lossy(&body);
                Err(io::Error::other(format!("POST {uri}: {status}: {text}")))
            }
        }
    }
}

impl RaftNetwork<Types> for Connection {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, Failure> {
        self.call("append", request).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _option: RPCOption,
    ) -> Result<VoteResponse<u64>, Failure> {
        self.call("vote", request).await
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _option: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, Failure<InstallSnapshotError>> {
        if self.resume.can_skip(&request) {
            return Ok(InstallSnapshotResponse { vote: request.vote });
        }
        let (response, received_bytes) = self.call("snapshot", &request).await?;
        self.resume.update(&request, received_bytes);
        Ok(response)
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(repeat(RETRY_INTERVAL))
    }
}
