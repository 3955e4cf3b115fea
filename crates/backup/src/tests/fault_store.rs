//! An object store in memory that fails, delays, and lists stale results.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use futures_util::stream::BoxStream;
use futures_util::{FutureExt, StreamExt, TryStreamExt, stream};
use lsmx_testkit::TestRng;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};

/// The call that fails. All later calls fail without effect, as after the death of the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crash {
    /// Number of the call, from 0.
    pub(super) call: u64,
    /// Whether the call has its effect.
    pub(super) has_effect: bool,
}

#[derive(Debug)]
struct State {
    calls: u64,
    crash: Option<Crash>,
    /// Whether the calls after the failed one have their effect.
    is_transient: bool,
    /// Number of bytes in the responses to reads.
    read_bytes: u64,
    /// Number of multipart uploads.
    uploads: u64,
    /// Multipart uploads that are neither complete nor aborted.
    open_uploads: BTreeSet<u64>,
    /// Listings before each change, oldest first.
    history: Vec<Vec<ObjectMeta>>,
    /// Draws delays and the ages of listings. `None`: no delays and current listings.
    rng: Option<TestRng>,
    /// Prefix of the objects whose next conditional write is refused without effect.
    refused: Option<&'static str>,
    /// Maximum size of a chunk of a log in bytes.
    chunk_bytes_max: usize,
}

/// A process with access to a shared [`InMemory`].
#[derive(Clone, Debug)]
pub(super) struct FaultStore {
    inner: Arc<InMemory>,
    state: Arc<Mutex<State>>,
}

/// Decision about one call.
enum Outcome {
    Work,
    FailWithEffect,
    FailWithoutEffect,
}

fn failure() -> object_store::Error {
    object_store::Error::Generic { store: "fault", source: "the process is dead".into() }
}

impl FaultStore {
    pub(super) fn new(inner: &Arc<InMemory>) -> FaultStore {
        let state = State {
            calls: 0,
            crash: None,
            is_transient: false,
            read_bytes: 0,
            uploads: 0,
            open_uploads: BTreeSet::new(),
            history: Vec::new(),
            rng: None,
            refused: None,
            chunk_bytes_max: usize::MAX,
        };
        FaultStore { inner: Arc::clone(inner), state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn with_crash(self, crash: Crash) -> FaultStore {
        self.state.lock().unwrap().crash = Some(crash);
        self
    }

    /// Lets one call fail. Later calls have their effect, as after a short fault of the network.
    pub(super) fn with_failed_call(self, call: Crash) -> FaultStore {
        self.state.lock().unwrap().is_transient = true;
        self.with_crash(call)
    }

    /// Delays calls and returns old listings at random.
    pub(super) fn with_delays(self, seed: u64) -> FaultStore {
        self.state.lock().unwrap().rng = Some(TestRng::new(seed));
        self
    }

    /// Refuses the next conditional write of an object with this prefix, as a store does if the write meets another operation.
    pub(super) fn with_conflict(self, prefix: &'static str) -> FaultStore {
        self.state.lock().unwrap().refused = Some(prefix);
        self
    }

    /// Refuses larger chunks of logs.
    pub(super) fn with_chunk_bytes_max(self, bytes: usize) -> FaultStore {
        self.state.lock().unwrap().chunk_bytes_max = bytes;
        self
    }

    /// Returns the number of calls.
    pub(super) fn calls(&self) -> u64 {
        self.state.lock().unwrap().calls
    }

    /// Returns the number of bytes in the responses to reads.
    pub(super) fn read_bytes(&self) -> u64 {
        self.state.lock().unwrap().read_bytes
    }

    /// Returns the number of multipart uploads.
    pub(super) fn uploads(&self) -> u64 {
        self.state.lock().unwrap().uploads
    }

    /// Returns the number of multipart uploads that are neither complete nor aborted.
    pub(super) fn open_uploads(&self) -> usize {
        self.state.lock().unwrap().open_uploads.len()
    }

    /// Returns the paths of all objects.
    pub(super) async fn paths(&self) -> Vec<String> {
        let list = self.inner.list(None).map_ok(|meta| meta.location.to_string());
        let mut paths: Vec<_> = list.try_collect().await.unwrap();
        paths.sort();
        paths
    }

    async fn begin(&self) -> Outcome {
        let yields = match &mut self.state.lock().unwrap().rng {
            Some(rng) => rng.below(4),
            None => 0,
        };
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        let mut state = self.state.lock().unwrap();
        let call = state.calls;
        state.calls += 1;
        match state.crash {
            Some(crash) if crash.call == call && crash.has_effect => Outcome::FailWithEffect,
            Some(crash) if crash.call == call => Outcome::FailWithoutEffect,
            Some(crash) if crash.call < call && !state.is_transient => Outcome::FailWithoutEffect,
            _ => Outcome::Work,
        }
    }

    async fn record_listing(&self) {
        if self.state.lock().unwrap().rng.is_some() {
            let listing = self.inner.list(None).try_collect().await.unwrap();
            self.state.lock().unwrap().history.push(listing);
        }
    }

    async fn listing(&self) -> Result<Vec<ObjectMeta>> {
        match self.begin().await {
            Outcome::Work => {}
            Outcome::FailWithEffect | Outcome::FailWithoutEffect => return Err(failure()),
        }
        let stale = {
            let mut state = self.state.lock().unwrap();
            let count = state.history.len() as u64;
            let at = state.rng.as_mut().map(|rng| rng.below(count + 3));
            at.and_then(|at| state.history.get(usize::try_from(at).unwrap()).cloned())
        };
        match stale {
            Some(listing) => Ok(listing),
            None => self.inner.list(None).try_collect().await,
        }
    }
}

impl fmt::Display for FaultStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FaultStore")
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let outcome = self.begin().await;
        let chunk_bytes_max = self.state.lock().unwrap().chunk_bytes_max;
        if location.as_ref().starts_with("log/") && payload.content_length() > chunk_bytes_max {
            return Err(failure());
        }
        let is_refused = |prefix: &mut &str| {
            options.mode == PutMode::Create && location.as_ref().starts_with(*prefix)
        };
        if self.state.lock().unwrap().refused.take_if(is_refused).is_some() {
            let (path, source) = (location.to_string(), "a conflicting operation".into());
            return Err(object_store::Error::AlreadyExists { path, source });
        }
        if !matches!(outcome, Outcome::FailWithoutEffect) {
            self.record_listing().await;
            let put = self.inner.put_opts(location, payload, options).await?;
            if matches!(outcome, Outcome::Work) {
                return Ok(put);
            }
        }
        Err(failure())
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        match self.begin().await {
            Outcome::Work => {
                let inner = self.inner.put_multipart_opts(location, options).await?;
                let mut state = self.state.lock().unwrap();
                let id = state.uploads;
                state.uploads += 1;
                state.open_uploads.insert(id);
                Ok(Box::new(FaultUpload { store: self.clone(), inner, id }))
            }
            // An upload has no effect before its completion.
            Outcome::FailWithEffect | Outcome::FailWithoutEffect => Err(failure()),
        }
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        match self.begin().await {
            Outcome::Work => {
                let found = self.inner.get_opts(location, options).await?;
                self.state.lock().unwrap().read_bytes += found.range.end - found.range.start;
                Ok(found)
            }
            Outcome::FailWithEffect | Outcome::FailWithoutEffect => Err(failure()),
        }
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let deletions = locations.then(move |location| {
            let store = store.clone();
            async move {
                let location = location?;
                let outcome = store.begin().await;
                if !matches!(outcome, Outcome::FailWithoutEffect) {
                    store.record_listing().await;
                    let one = stream::iter([Ok(location.clone())]).boxed();
                    store.inner.delete_stream(one).try_collect::<Vec<_>>().await?;
                    if matches!(outcome, Outcome::Work) {
                        return Ok(location);
                    }
                }
                Err(failure())
            }
        });
        deletions.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned().unwrap_or_default());
        let listing = stream::once(async move { store.listing().await }).map_ok(move |listing| {
            let is_listed = |meta: &ObjectMeta| meta.location.prefix_matches(&prefix);
            let listed: Vec<_> = listing.into_iter().filter(is_listed).map(Ok).collect();
            stream::iter(listed)
        });
        listing.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, _prefix: Option<&Path>) -> Result<ListResult> {
        unreachable!("no code lists directories")
    }

    async fn copy_opts(&self, _from: &Path, _to: &Path, _options: CopyOptions) -> Result<()> {
        unreachable!("no code copies objects")
    }
}

/// A multipart upload. Each part, the completion and the abort are calls of the store.
#[derive(Debug)]
struct FaultUpload {
    store: FaultStore,
    inner: Box<dyn MultipartUpload>,
    id: u64,
}

impl FaultUpload {
    fn close(&self) {
        self.store.state.lock().unwrap().open_uploads.remove(&self.id);
    }
}

#[async_trait::async_trait]
impl MultipartUpload for FaultUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // The order of the parts is that of these calls.
        let (store, part) = (self.store.clone(), self.inner.put_part(data));
        let put = async move {
            let outcome = store.begin().await;
            if !matches!(outcome, Outcome::FailWithoutEffect) {
                part.await?;
                if matches!(outcome, Outcome::Work) {
                    return Ok(());
                }
            }
            Err(failure())
        };
        put.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let outcome = self.store.begin().await;
        if !matches!(outcome, Outcome::FailWithoutEffect) {
            self.store.record_listing().await;
            let put = self.inner.complete().await?;
            self.close();
            if matches!(outcome, Outcome::Work) {
                return Ok(put);
            }
        }
        Err(failure())
    }

    async fn abort(&mut self) -> Result<()> {
        let outcome = self.store.begin().await;
        if !matches!(outcome, Outcome::FailWithoutEffect) {
            self.inner.abort().await?;
            self.close();
            if matches!(outcome, Outcome::Work) {
                return Ok(());
            }
        }
        Err(failure())
    }
}
