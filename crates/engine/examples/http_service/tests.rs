//! What the service answers, and that the load comes to its end.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::handshake;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use lsmx::Options;
use tokio::net::{TcpListener, TcpStream};

use super::*;

#[test]
fn values_counters_and_scans_are_served() {
    let dir = tempfile::tempdir().unwrap();
    for calls in [Calls::Tasks, Calls::Blocking] {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let path = dir.path().join(format!("{calls:?}"));
            let db = lsmx::tokio::Db::open(path, Options::default()).await.unwrap();
            let service = Service::open(db.clone(), calls).await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let serving = tokio::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = service_fn(|request| service.answer(request));
                let stream = TokioIo::new(stream);
                http1::Builder::new().serve_connection(stream, answer).await.unwrap();
            });
            let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
            let (mut connection, driver) = handshake::<_, Full<Bytes>>(stream).await.unwrap();
            tokio::spawn(driver);
            let mut ask = async |method: &str, path: &str, body: &str| {
                let request = Request::builder().method(method).uri(path).header("host", "here");
                let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
                connection.ready().await.unwrap();
                let response = connection.send_request(request).await.unwrap();
                let status = response.status();
                let body = response.into_body().collect().await.unwrap().to_bytes();
                (status, String::from_utf8(body.to_vec()).unwrap())
            };
            assert_eq!(ask("GET", "/kv/apple", "").await.0, StatusCode::NOT_FOUND);
            assert_eq!(ask("PUT", "/kv/apple", "red").await.0, StatusCode::NO_CONTENT);
            assert_eq!(ask("PUT", "/kv/apricot?sync", "orange").await.0, StatusCode::NO_CONTENT);
            assert_eq!(ask("PUT", "/kv/plum", "blue").await.0, StatusCode::NO_CONTENT);
            assert_eq!(ask("GET", "/kv/apple", "").await, (StatusCode::OK, "red".to_owned()));
            db.run_blocking(lsmx::Db::flush).await.unwrap();
            let lines = "apple\tred\napricot\torange\n".to_owned();
            assert_eq!(ask("GET", "/scan/ap", "").await, (StatusCode::OK, lines));
            assert_eq!(ask("DELETE", "/kv/apple", "").await.0, StatusCode::NO_CONTENT);
            assert_eq!(ask("GET", "/kv/apple", "").await.0, StatusCode::NOT_FOUND);
            for by in ["3", "4"] {
                assert_eq!(ask("POST", "/counters/c", by).await.0, StatusCode::NO_CONTENT);
            }
            assert_eq!(ask("GET", "/counters/c", "").await, (StatusCode::OK, "7".to_owned()));
            assert_eq!(ask("POST", "/counters/c", "many").await.0, StatusCode::BAD_REQUEST);
            assert_eq!(ask("GET", "/nothing", "").await.0, StatusCode::NOT_FOUND);
            db.close(None).await.unwrap();
            assert_eq!(ask("GET", "/kv/plum", "").await.0, StatusCode::SERVICE_UNAVAILABLE);
            serving.abort();
        });
    }
}

#[test]
fn under_load_every_count_that_was_acknowledged_is_there() {
    for calls in [Calls::Tasks, Calls::Blocking] {
        let dir = tempfile::tempdir().unwrap();
        let load = Load {
            duration: Duration::from_millis(300),
            values: 5_000,
            cache_bytes: 64 << 10,
            read_delay: Duration::from_micros(10),
            ..Load::default()
        };
        let report = load.run(dir.path(), calls).unwrap();
        assert!(report.found > 0 && report.counted > 0 && report.beats.count() > 0, "{report}");
        assert!(report.to_string().lines().count() == report.requests.len() + 8, "{report}");
    }
}
