//! The stream of a snapshot for the transport of openraft.

use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lsmx_base::sync::{Arc, Mutex};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::snapshot::dir::SnapshotDir;
use crate::snapshot::format::FRAME_BYTES;
use crate::snapshot::partial_slot::PartialSlot;
use crate::snapshot::receiver::SnapshotReceiver;
use crate::snapshot::source::SnapshotSource;

/// A snapshot that is sent or received, the `SnapshotData` of openraft.
///
/// The stream to send is produced from the files of the snapshot and can be read at any offset. The stream to receive
/// verifies each frame and writes the files of the snapshot. Both use the blocking pool of the runtime for file access. Both
/// keep at most two frames of 256 KiB and the list of files in memory. The list has at most 16 MiB encoded, and the sender keeps
/// it encoded and decoded.
///
/// A write returns before its bytes are on the disk. The next call returns its error; after an error, the stream must be
/// written again from offset 0. [`shutdown`](tokio::io::AsyncWriteExt::shutdown) verifies that the stream is complete.
///
/// The verified part survives a damaged chunk and a restart of the node. When the first frames of the same snapshot have been
/// written to a new stream, it continues with the kept part and skips writes of it. `flush`, and then a seek to
/// `SeekFrom::End(0)`, return the number of received bytes. A transport of the application continues there: it seeks the stream
/// that it reads to this offset. [`SnapshotResume`](crate::SnapshotResume) does so for the transport of openraft.
///
/// Pass only the stream of `Raft::begin_receiving_snapshot` to `Raft::install_full_snapshot`. Copy the stream of another store in
/// the same process into it first. openraft purges the log during the installation, and the storage defers the purge only if it
/// has created the stream.
#[derive(Debug)]
pub struct SnapshotStream {
    endpoint: Endpoint,
    position: u64,
    /// The frame that was read last, with its number.
    frame: Option<(u64, Vec<u8>)>,
    /// The running file access.
    task: Option<JoinHandle<Result<TaskOutput, Error>>>,
    /// The complete received snapshot.
    received: Option<Arc<SnapshotDir>>,
    /// Of a received snapshot: shows the store that an installation may follow.
    _receipt: Option<Arc<()>>,
}

#[derive(Debug)]
enum Endpoint {
    Source(Arc<SnapshotSource>),
    /// Only one task at a time locks the receiver. The slot publishes its progress.
    Receiver(Arc<Mutex<SnapshotReceiver>>, Arc<PartialSlot>),
}

#[derive(Debug)]
enum TaskOutput {
    Frame(u64, Vec<u8>),
    Written,
    Received(Arc<SnapshotDir>),
}

impl SnapshotStream {
    pub(crate) fn from_source(source: SnapshotSource) -> SnapshotStream {
        SnapshotStream::new(Endpoint::Source(Arc::new(source)), None)
    }

    /// Creates a stream that holds `receipt` until it is dropped.
    pub(crate) fn new_receiver(slot: &Arc<PartialSlot>, receipt: Arc<()>) -> SnapshotStream {
        let receiver = Arc::new(Mutex::new(SnapshotReceiver::new(Arc::clone(slot))));
        SnapshotStream::new(Endpoint::Receiver(receiver, Arc::clone(slot)), Some(receipt))
    }

    fn new(endpoint: Endpoint, receipt: Option<Arc<()>>) -> SnapshotStream {
        SnapshotStream {
            endpoint,
            position: 0,
            frame: None,
            task: None,
            received: None,
            _receipt: receipt,
        }
    }

    /// Returns whether the stream is written.
    pub(crate) fn is_receiver(&self) -> bool {
        matches!(self.endpoint, Endpoint::Receiver(..))
    }

    /// Returns the directory of a received snapshot after its shutdown.
    pub(crate) fn received(&self) -> Option<&Arc<SnapshotDir>> {
        self.received.as_ref()
    }

    fn start(
        &mut self,
        work: impl FnOnce() -> Result<TaskOutput, Error> + Send + 'static,
    ) -> io::Result<()> {
        let runtime = Handle::try_current().map_err(io::Error::other)?;
        self.task = Some(runtime.spawn_blocking(work));
        Ok(())
    }

    /// Waits for the running file access.
    fn poll_task(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(task) = &mut self.task else { return Poll::Ready(Ok(())) };
        let joined = ready!(Pin::new(task).poll(context));
        self.task = None;
        let output = joined.map_err(io::Error::other).and_then(|output| Ok(output?));
        Poll::Ready(match output {
            Ok(TaskOutput::Frame(number, frame)) => {
                self.frame = Some((number, frame));
                Ok(())
            }
            Ok(TaskOutput::Written) => Ok(()),
            Ok(TaskOutput::Received(dir)) => {
                self.received = Some(dir);
                Ok(())
            }
            Err(error) => {
                // The stream must be written again from its first byte.
                self.position = 0;
                Err(error)
            }
        })
    }
}

fn wrong_direction(error: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, error)
}

impl AsyncRead for SnapshotStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Endpoint::Source(source) = &this.endpoint else {
            return Poll::Ready(Err(wrong_direction("a snapshot that is received cannot be read")));
        };
        let source = Arc::clone(source);
        loop {
            ready!(this.poll_task(context))?;
            if this.position >= source.stream_bytes() || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let number = this.position / FRAME_BYTES as u64;
            if let Some((_, frame)) = this.frame.as_ref().filter(|(cached, _)| *cached == number) {
                let at = usize::try_from(this.position % FRAME_BYTES as u64).unwrap_or_default();
                let rest = frame.get(at..).unwrap_or_default();
                let bytes = rest.len().min(buffer.remaining());
                buffer.put_slice(&rest[..bytes]);
                this.position += bytes as u64;
                return Poll::Ready(Ok(()));
            }
            let source = Arc::clone(&source);
            this.start(move || Ok(TaskOutput::Frame(number, source.read_frame(number)?)))?;
        }
    }
}

impl AsyncWrite for SnapshotStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Endpoint::Receiver(receiver, slot) = &this.endpoint else {
            return Poll::Ready(Err(wrong_direction("a snapshot that is sent cannot be written")));
        };
        let (receiver, slot) = (Arc::clone(receiver), Arc::clone(slot));
        ready!(this.poll_task(context))?;
        let part = bytes[..bytes.len().min(FRAME_BYTES)].to_vec();
        let (offset, len, pending) = (this.position, part.len(), slot.start_write());
        this.start(move || {
            let mut receiver = receiver.lock();
            let written = receiver.write(offset, &part);
            pending.publish(receiver.received_bytes());
            written.map(|()| TaskOutput::Written)
        })?;
        this.position += len as u64;
        Poll::Ready(Ok(len))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_task(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            ready!(this.poll_task(context))?;
            let Endpoint::Receiver(receiver, _) = &this.endpoint else {
                return Poll::Ready(Ok(()));
            };
            if this.received.is_some() {
                return Poll::Ready(Ok(()));
            }
            let receiver = Arc::clone(receiver);
            this.start(move || Ok(TaskOutput::Received(receiver.lock().finish()?)))?;
        }
    }
}

impl AsyncSeek for SnapshotStream {
    fn start_seek(self: Pin<&mut Self>, to: SeekFrom) -> io::Result<()> {
        let this = self.get_mut();
        if this.task.is_some() {
            return Err(io::Error::other("a file access is running, call poll_complete first"));
        }
        let end = match &this.endpoint {
            Endpoint::Source(source) => source.stream_bytes(),
            Endpoint::Receiver(receiver, _) => receiver.lock().received_bytes(),
        };
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(delta) => end.checked_add_signed(delta),
            SeekFrom::Current(delta) => this.position.checked_add_signed(delta),
        };
        this.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(())
    }

    fn poll_complete(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let this = self.get_mut();
        // A failed read is repeated by the next read. After a failed write, the receiver refuses offsets after the missing bytes.
        let _ = ready!(this.poll_task(context));
        Poll::Ready(Ok(this.position))
    }
}
