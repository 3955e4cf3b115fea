//! A TCP proxy in front of each node. It cuts the links between nodes, and counts and limits the bytes that it transfers.
//!
//! Each node has its own loopback address, from which it also sends its requests. So a proxy knows the sender.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How a cut link behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Connections are closed.
    Close,
    /// Connections stay open, but transfer nothing.
    Stall,
}

/// The cut links, by the node that sends requests and the node that receives them.
pub(crate) type CutLinks = BTreeMap<(u64, u64), Cut>;

const FIRST_ADDRESS: u32 = 0x7f01_0000; // 127.1.0.0

/// Returns the address of a node.
pub(crate) fn node_ip(id: u64) -> IpAddr {
    Ipv4Addr::from_bits(FIRST_ADDRESS + u32::try_from(id).unwrap()).into()
}

/// Returns the node with an address, or 0 for a client.
fn node_id(address: SocketAddr) -> u64 {
    let IpAddr::V4(ip) = address.ip() else { return 0 };
    ip.to_bits().saturating_sub(FIRST_ADDRESS).into()
}

/// Bytes that other nodes have sent to a node, and their maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transferred {
    pub(crate) bytes: u64,
    /// Further bytes wait.
    pub(crate) bytes_max: u64,
}

/// A proxy in front of one node.
pub(crate) struct Proxy {
    /// Address of the proxy, which is the address of the node in the membership.
    pub(crate) address: SocketAddr,
    pub(crate) transferred: watch::Sender<Transferred>,
    target: Arc<Mutex<Option<SocketAddr>>>,
}

impl Proxy {
    pub(crate) async fn start(id: u64, links: watch::Receiver<CutLinks>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(None::<SocketAddr>));
        let current_target = Arc::clone(&target);
        let transferred = watch::Sender::new(Transferred { bytes: 0, bytes_max: u64::MAX });
        let counter = transferred.clone();
        tokio::spawn(async move {
            while let Ok((stream, sender)) = listener.accept().await {
                let target = *current_target.lock().unwrap();
                let link = (node_id(sender), id);
                tokio::spawn(forward(stream, target, link, links.clone(), counter.clone()));
            }
        });
        Proxy { address, transferred, target }
    }

    /// Sets the address of the node after a start of its process.
    pub(crate) fn set_target(&self, target: SocketAddr) {
        *self.target.lock().unwrap() = Some(target);
    }
}

/// Transfers bytes until a side closes the connection or the link is cut. A stalled connection is closed at the end of the
/// cut.
async fn forward(
    mut stream: TcpStream,
    target: Option<SocketAddr>,
    link: (u64, u64),
    mut links: watch::Receiver<CutLinks>,
    counter: watch::Sender<Transferred>,
) {
    let cut = links.borrow().get(&link).copied();
    let cut = match (cut, target) {
        (Some(cut), _) => cut,
        (None, None) => return,
        (None, Some(target)) => {
            let Ok(mut target) = TcpStream::connect(target).await else { return };
            let _ = (stream.set_nodelay(true), target.set_nodelay(true));
            tokio::select! {
                () = transfer(&mut stream, &mut target, &counter) => return,
                cut = links.wait_for(|links| links.contains_key(&link)) => match cut {
                    Ok(links) => links[&link],
                    Err(_) => return,
                },
            }
        }
    };
    if cut == Cut::Stall {
        let _ = links.wait_for(|links| !links.contains_key(&link)).await;
    }
}

/// Transfers bytes in both directions until a side closes the connection. Counts those to the target.
async fn transfer(
    stream: &mut TcpStream,
    target: &mut TcpStream,
    counter: &watch::Sender<Transferred>,
) {
    let (mut requests, mut responses) = stream.split();
    let (mut from_target, mut to_target) = target.split();
    tokio::select! {
        _ = copy_counted(&mut requests, &mut to_target, counter) => {}
        _ = copy(&mut from_target, &mut responses) => {}
    }
}

async fn copy_counted(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    counter: &watch::Sender<Transferred>,
) -> std::io::Result<()> {
    let (mut buffer, mut limits) = (vec![0; 64 << 10], counter.subscribe());
    loop {
        let len = from.read(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        // The counter lives as long as this function.
        let _ = limits.wait_for(|transferred| transferred.bytes < transferred.bytes_max).await;
        counter.send_modify(|transferred| transferred.bytes += len as u64);
        to.write_all(&buffer[..len]).await?;
    }
}
