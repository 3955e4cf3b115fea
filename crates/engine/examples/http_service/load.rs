//! The service under load: clients over loopback, on a runtime of their own, and a heartbeat on that of
//! the service.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use lsmx::internals::vfs::{Fault, FaultRule, FaultVfs, VfsCall};
use lsmx::vfs::{OsVfs, Vfs};
use lsmx::{KeyspaceOptions, Options};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::Outcome;
use crate::meter::{Heartbeat, Meter, Polled, Polls};
use crate::service::{Calls, Service};

/// Counters that clients add to.
const COUNTERS: u64 = 100;
/// Entries that a scan comes to, about.
const SCANNED: u64 = 100;

/// What is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) duration: Duration,
    pub(crate) clients: u64,
    /// Values that are there before.
    pub(crate) values: u64,
    pub(crate) value_bytes: usize,
    /// Far less than the values, so that most reads are cold.
    pub(crate) cache_bytes: u64,
    /// Threads of the service's runtime.
    pub(crate) workers: usize,
    pub(crate) read_delay: Duration,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            duration: Duration::from_secs(10),
            clients: 16,
            values: 200_000,
            value_bytes: 400,
            cache_bytes: 8 << 20,
            workers: 2,
            read_delay: Duration::ZERO,
        }
    }
}

/// Kinds of requests, and how many of a hundred are of each.
const KINDS: [(&str, u64); 7] = [
    ("get", 45),
    ("get, one of a few", 15),
    ("put", 15),
    ("put, synced", 5),
    ("count", 12),
    ("read a counter", 3),
    ("scan", 5),
];

/// What was measured.
#[derive(Debug)]
pub(crate) struct Report {
    calls: Calls,
    seconds: f64,
    pub(crate) requests: Vec<(&'static str, Meter)>,
    pub(crate) counted: u64,
    pub(crate) found: u64,
    polls: Polls,
    quiet: Meter,
    pub(crate) beats: Meter,
}

/// Numbers that look random (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

fn key(number: u64) -> String {
    format!("{number:08}")
}

/// What clients share.
struct Clients {
    load: Load,
    address: std::net::SocketAddr,
    until: Instant,
    meters: Vec<Meter>,
    counted: AtomicU64,
    found: AtomicU64,
}

impl Clients {
    /// One connection, one request after the other.
    async fn run(&self, client: u64) -> Outcome {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (mut connection, driver) = handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(driver);
        let mut numbers = Numbers(client);
        while Instant::now() < self.until {
            let mut dice = numbers.below(100);
            let kind = KINDS.iter().position(|(_, share)| {
                let chosen = dice < *share;
                dice = dice.wrapping_sub(*share);
                chosen
            });
            let kind = kind.unwrap_or_default();
            let begun = Instant::now();
            self.request(&mut connection, kind, &mut numbers).await?;
            self.meters[kind].note(begun.elapsed());
        }
        drop(connection);
        driver.await??;
        Ok(())
    }

    async fn request(
        &self,
        connection: &mut SendRequest<Full<Bytes>>,
        kind: usize,
        numbers: &mut Numbers,
    ) -> Outcome {
        let (any, few) = (numbers.below(self.load.values), numbers.below(1_000));
        let counter = numbers.below(COUNTERS);
        let value = || Bytes::from(vec![b'v'; self.load.value_bytes]);
        let (method, path, body) = match kind {
            0 => (Method::GET, format!("/kv/{}", key(any)), Bytes::new()),
            1 => (Method::GET, format!("/kv/{}", key(few)), Bytes::new()),
            2 => (Method::PUT, format!("/kv/{}", key(any)), value()),
            3 => (Method::PUT, format!("/kv/{}?sync", key(any)), value()),
            4 => (Method::POST, format!("/counters/{counter}"), Bytes::from("1")),
            5 => (Method::GET, format!("/counters/{counter}"), Bytes::new()),
            _ => {
                let prefix = &key(any / SCANNED * SCANNED)[..6];
                (Method::GET, format!("/scan/{prefix}"), Bytes::new())
            }
        };
        let request = Request::builder().method(method).uri(path).header("host", "here");
        connection.ready().await?;
        let response = connection.send_request(request.body(Full::new(body))?).await?;
        let status = response.status();
        response.into_body().collect().await?;
        match (kind, status) {
            (4, StatusCode::NO_CONTENT) => drop(self.counted.fetch_add(1, Ordering::Relaxed)),
            (0 | 1 | 6, StatusCode::OK) => drop(self.found.fetch_add(1, Ordering::Relaxed)),
            (2 | 3, StatusCode::NO_CONTENT) | (5, _) => {}
            _ => return Err(format!("{} was answered {status}", KINDS[kind].0).into()),
        }
        Ok(())
    }
}

impl Load {
    /// Makes a database in `dir`, serves it, and measures.
    pub(crate) fn run(self, dir: &Path, calls: Calls) -> Outcome<Report> {
        let threads = |name: &str, workers| -> Outcome<Runtime> {
            let mut builder = Builder::new_multi_thread();
            Ok(builder.worker_threads(workers).thread_name(name).enable_all().build()?)
        };
        let (serving, asking) = (threads("serving", self.workers)?, threads("asking", 1)?);
        let polls = Polls::new();
        let service = serving.block_on(self.open(dir, calls))?;
        let listener = serving.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        let beat = |time| async move {
            let heart = Heartbeat::begin(&tokio::runtime::Handle::current());
            tokio::time::sleep(time).await;
            heart.end().await
        };
        // What the machine does to a runtime that has nothing to do.
        let quiet = serving.block_on(beat(self.duration.min(Duration::from_secs(2))));
        let accepting = serving.spawn(accept(listener, service.clone(), polls.clone()));
        let begun = Instant::now();
        let clients = Arc::new(Clients {
            load: self,
            address,
            until: begun + self.duration,
            meters: KINDS.iter().map(|_| Meter::new()).collect(),
            counted: AtomicU64::new(0),
            found: AtomicU64::new(0),
        });
        let heart = Heartbeat::begin(serving.handle());
        asking.block_on(async {
            let mut all = JoinSet::new();
            for client in 0..self.clients {
                let clients = Arc::clone(&clients);
                all.spawn(async move { clients.run(client).await });
            }
            while let Some(ended) = all.join_next().await {
                ended??;
            }
            Outcome::Ok(())
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let beats = serving.block_on(heart.end());
        accepting.abort();
        // Every count that was acknowledged is in the sum.
        let sum = serving.block_on(async {
            let (mut sum, mut counters) = (0, service.counters.iter());
            while let Some(counter) = counters.next().await {
                sum += u64::from_le_bytes(counter?.1.as_ref().try_into()?);
            }
            service.db.close(None).await?;
            Outcome::Ok(sum)
        })?;
        let counted = clients.counted.load(Ordering::Relaxed);
        if sum != counted {
            return Err(format!("{counted} were counted, the counters have {sum}").into());
        }
        let names = KINDS.iter().map(|(name, _)| *name);
        let requests = names.zip(clients.meters.iter().cloned()).collect();
        let found = clients.found.load(Ordering::Relaxed);
        Ok(Report { calls, seconds, requests, counted, found, polls, quiet, beats })
    }

    async fn open(self, dir: &Path, calls: Calls) -> Outcome<Service> {
        let vfs: Arc<dyn Vfs> = if self.read_delay.is_zero() {
            Arc::new(OsVfs)
        } else {
            let delay = self.read_delay;
            let slow = FaultVfs::new(Arc::new(OsVfs), 1);
            let reads =
                FaultRule::new(Fault::Delay).for_calls(&[VfsCall::Read]).path_contains(".sst");
            slow.add_rule(reads.from_then_on());
            slow.set_delay_hook(Some(Arc::new(move |_, _| std::thread::sleep(delay))));
            Arc::new(slow)
        };
        let tuning = KeyspaceOptions::default().memtable_bytes(4 << 20);
        let options =
            Options::default().block_cache_bytes(self.cache_bytes).keyspace_defaults(tuning);
        let db = lsmx::tokio::Db::open(dir.join("data"), options.vfs(vfs)).await?;
        let service = Service::open(db, calls).await?;
        let (values, bytes) = (service.values.as_blocking().clone(), self.value_bytes);
        tokio::task::spawn_blocking(move || {
            (0..self.values).try_for_each(|number| values.put(key(number), vec![b'v'; bytes]))
        })
        .await??;
        service.db.run_blocking(|db| db.flush().and_then(|()| db.wait_idle())).await?;
        Ok(service)
    }
}

/// Serves connections, whose tasks are measured.
async fn accept(listener: TcpListener, service: Service, polls: Polls) -> Outcome {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let (service, env) = (service.clone(), service.db.as_blocking().env().clone());
        let serve = async move {
            let answer = service_fn(|request| service.answer(request));
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
            // A client that goes away is no matter of ours.
            let _ = served.await;
        };
        tokio::spawn(Polled::new(serve, &polls, &env));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.requests.iter().map(|(_, meter)| meter.count()).sum();
        let handle = match self.calls {
            Calls::Tasks => "asynchronous",
            Calls::Blocking => "blocking",
        };
        let rate = total as f64 / self.seconds;
        let (found, counted) = (self.found, self.counted);
        writeln!(f, "{handle} handle: {total} requests, {rate:.0} per second")?;
        writeln!(f, "{found} lookups found a value; the counters contain all {counted} updates")?;
        let columns = ["count", "p50 µs", "p99 µs", "p99.9 µs", "max µs"];
        write!(f, "{:<34} {:>9}", "", columns[0])?;
        columns[1..].iter().try_for_each(|column| write!(f, " {column:>10}"))?;
        for (name, meter) in &self.requests {
            write!(f, "\n{name:<34} {meter}")?;
        }
        let rest = [
            ("polls of the service's tasks", &self.polls.wall),
            ("  of which on a processor", &self.polls.processor),
            ("  of that in the database", &self.polls.database),
            ("heartbeat late by, under load", &self.beats),
            ("heartbeat late by, at rest", &self.quiet),
        ];
        rest.iter().try_for_each(|(name, meter)| write!(f, "\n{name:<34} {meter}"))
    }
}
