//! The HTTP client of a node.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// An HTTP client. Clones share their connections.
pub type Client = legacy::Client<HttpConnector, Body>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns a client whose connections have `source` as their local address.
#[must_use]
pub fn new_client(source: Option<IpAddr>) -> Client {
    let mut connector = HttpConnector::new();
    connector.set_local_address(source.filter(|address| !address.is_unspecified()));
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    legacy::Client::builder(TokioExecutor::new()).build(connector)
}

/// Sends a request and returns the status and the body of the response.
///
/// # Errors
/// The response did not arrive completely. The request may have been executed.
pub async fn send(client: &Client, request: Request<Body>) -> io::Result<(StatusCode, Bytes)> {
    let response = client.request(request).await.map_err(io::Error::other)?;
    let status = response.status();
    let body = to_bytes(Body::new(response.into_body()), usize::MAX).await;
    Ok((status, body.map_err(io::Error::other)?))
}
