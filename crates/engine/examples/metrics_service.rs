//! A small HTTP service with the endpoint `/metrics` for Prometheus and the endpoint `/health` for a load balancer.
//!
//! ```sh
//! cargo run --release -p lsmx --example metrics_service -- DIRECTORY 127.0.0.1:8080
//! curl -X PUT --data red http://127.0.0.1:8080/kv/apple
//! curl http://127.0.0.1:8080/kv/apple
//! curl http://127.0.0.1:8080/metrics
//! curl http://127.0.0.1:8080/health
//! ```
//!
//! Prometheus reads `/metrics`, and Grafana shows the values with the dashboard `docs/grafana/lsmx.json`. While the
//! service runs, `lsmx db DIRECTORY top` shows the same values in a terminal.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::convert::Infallible;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use lsmx::Options;
use lsmx::metrics::LatencySampling;
use lsmx::tokio::Db;
use tokio::net::TcpListener;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;
type Answer = Response<Full<Bytes>>;

/// Longest value that a client can put.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// Text format of Prometheus.
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4";

async fn open(directory: &Path) -> lsmx::Result<Db> {
    let options = Options::default()
        // Measures one of 100 operations.
        .latency_sampling(LatencySampling::OneIn(100))
        // For `lsmx db DIRECTORY top`.
        .metrics_file(Duration::from_secs(1));
    Db::open(directory, options).await
}

/// Serves requests until the process ends.
async fn serve(db: Db, listener: TcpListener) -> Outcome {
    loop {
        let (stream, _) = listener.accept().await?;
        let db = db.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request| {
                let db = db.clone();
                async move { Ok::<_, Infallible>(answer(&db, request).await) }
            });
            // An error means that the client has closed the connection.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// Answers a request. An error of the database becomes an answer, too.
async fn answer(db: &Db, request: Request<Incoming>) -> Answer {
    try_answer(db, request).await.unwrap_or_else(|error| {
        let status = match error.downcast_ref::<lsmx::Error>() {
            Some(_) => StatusCode::SERVICE_UNAVAILABLE,
            None => StatusCode::BAD_REQUEST,
        };
        text(status, error.to_string())
    })
}

async fn try_answer(db: &Db, request: Request<Incoming>) -> Outcome<Answer> {
    let values = db.default_keyspace();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    Ok(match (method, path.strip_prefix("/kv/")) {
        (Method::GET, Some(key)) => match values.get(key).await? {
            Some(value) => text(StatusCode::OK, value.to_vec()),
            None => text(StatusCode::NOT_FOUND, ""),
        },
        (Method::PUT, Some(key)) => {
            let value = Limited::new(request.into_body(), VALUE_BYTES_MAX).collect().await?;
            values.put(key, value.to_bytes()).await?;
            text(StatusCode::NO_CONTENT, "")
        }
        (Method::GET, None) if path == "/metrics" => {
            // Neither call waits for a device, so both can run on a task.
            let metrics = db.as_blocking().metrics().to_prometheus(&[]);
            let mut answer = text(StatusCode::OK, metrics);
            answer.headers_mut().insert(CONTENT_TYPE, PROMETHEUS_TEXT.parse()?);
            answer
        }
        (Method::GET, None) if path == "/health" => {
            let health = db.as_blocking().health();
            match health.is_good() {
                true => text(StatusCode::OK, "good\n"),
                false => text(StatusCode::SERVICE_UNAVAILABLE, format!("{health:?}\n")),
            }
        }
        _ => text(StatusCode::NOT_FOUND, ""),
    })
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, address] = arguments.as_slice() else {
        return Err("usage: metrics_service DIRECTORY ADDRESS".into());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let db = open(Path::new(directory)).await?;
        let listener = TcpListener::bind(address).await?;
        println!("metrics are at http://{}/metrics", listener.local_addr()?);
        serve(db, listener).await
    })
}

#[cfg(test)]
mod tests {
    use hyper::client::conn::http1::handshake;
    use tokio::net::TcpStream;

    use super::*;

    #[test]
    fn service_answers_values_metrics_and_health() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let db = open(&dir.path().join("data")).await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = tokio::spawn(serve(db.clone(), listener));
            let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
            let (mut connection, driver) = handshake::<_, Full<Bytes>>(stream).await.unwrap();
            tokio::spawn(driver);
            let mut send = async |method: &str, path: &str, body: &str| {
                let request = Request::builder().method(method).uri(path).header("host", "here");
                let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
                connection.ready().await.unwrap();
                let response = connection.send_request(request).await.unwrap();
                let status = response.status();
                let body = response.into_body().collect().await.unwrap().to_bytes();
                (status, String::from_utf8(body.to_vec()).unwrap())
            };
            assert_eq!(send("GET", "/kv/apple", "").await.0, StatusCode::NOT_FOUND);
            assert_eq!(send("PUT", "/kv/apple", "red").await.0, StatusCode::NO_CONTENT);
            assert_eq!(send("GET", "/kv/apple", "").await, (StatusCode::OK, "red".to_owned()));
            assert_eq!(send("GET", "/health", "").await, (StatusCode::OK, "good\n".to_owned()));
            let (status, metrics) = send("GET", "/metrics", "").await;
            assert_eq!(status, StatusCode::OK);
            for line in [
                "# TYPE lsmx_puts_total counter",
                "lsmx_puts_total{keyspace=\"default\"} 1",
                "lsmx_gets_found_total{keyspace=\"default\"} 1",
                "lsmx_gets_absent_total{keyspace=\"default\"} 1",
            ] {
                assert!(metrics.lines().any(|it| it == line), "{line} is not in:\n{metrics}");
            }
            serving.abort();
            db.close(None).await.unwrap();
        });
    }
}
