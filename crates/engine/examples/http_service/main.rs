//! An HTTP service over the asynchronous handle: values, counters that are merged without being read, and
//! scans that are streamed.
//!
//! ```sh
//! cargo run --release -p lsmx --example http_service -- DIRECTORY 127.0.0.1:8080
//! curl -X PUT --data red 'http://127.0.0.1:8080/kv/apple?sync'
//! curl http://127.0.0.1:8080/kv/apple
//! curl -X POST --data 3 http://127.0.0.1:8080/counters/visits
//! curl http://127.0.0.1:8080/counters/visits
//! curl http://127.0.0.1:8080/scan/app
//! ```
//!
//! With `--load SECONDS` it puts itself under load instead, and measures how long it keeps other tasks
//! of its runtime waiting; with `--blocking` the same service calls the blocking handle from its tasks, to
//! compare. `--read-delay-us N` makes every read of a table take that much longer, as on a disk that is
//! not in the machine.
//!
//! ```sh
//! cargo run --release -p lsmx --example http_service -- --load 10
//! cargo run --release -p lsmx --example http_service -- --load 10 --blocking
//! ```

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "it shows and measures")]

mod load;
mod meter;
mod service;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use lsmx::Options;
use tokio::net::TcpListener;

use load::Load;
use service::{Calls, Service};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let mut load = None;
    let (mut calls, mut read_delay) = (Calls::Tasks, Duration::ZERO);
    let mut places = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().unwrap_or_default().parse::<u64>();
        match argument.as_str() {
            "--load" => load = Some(Duration::from_secs(number()?)),
            "--read-delay-us" => read_delay = Duration::from_micros(number()?),
            "--blocking" => calls = Calls::Blocking,
            _ => places.push(argument),
        }
    }
    if let Some(duration) = load {
        let dir = tempfile::tempdir()?;
        let load = Load { duration, read_delay, ..Load::default() };
        println!("{}", load.run(dir.path(), calls)?);
        return Ok(());
    }
    let [directory, address] = places.as_slice() else {
        return Err("DIRECTORY ADDRESS, or --load SECONDS".into());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let db = lsmx::tokio::Db::open(directory, Options::default()).await?;
        let service = Arc::new(Service::open(db, calls).await?);
        let listener = TcpListener::bind(address).await?;
        println!("serving {directory} at {}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            let service = Arc::clone(&service);
            tokio::spawn(async move {
                let answer = service_fn(|request| service.answer(request));
                let served = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
                // A client that goes away is no matter of ours.
                let _ = served.await;
            });
        }
    })
}
