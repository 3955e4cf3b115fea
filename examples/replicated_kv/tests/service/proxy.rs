//! A TCP proxy in front of each node. It cuts the links between nodes, and counts and limits the bytes that it transfers.
//!
//! Each node has its own loopback address, from which it also sends its requests. So a proxy knows the sender.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
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

/// The addresses `127.process.cluster.node` of the nodes of one cluster.
///
/// Clusters of tests that run at the same time have different addresses. Otherwise a node could listen on the address and
/// port of a killed node of another cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterAddresses {
    /// From 1 to 254: clients use 127.0.0.1.
    process: u8,
    cluster: u8,
}

impl ClusterAddresses {
    /// Returns addresses that the last 255 clusters of this process do not use.
    pub(crate) fn new() -> ClusterAddresses {
        static NEXT_CLUSTER: AtomicU8 = AtomicU8::new(0);
        let process = u8::try_from(1 + std::process::id() % 254).unwrap();
        ClusterAddresses { process, cluster: NEXT_CLUSTER.fetch_add(1, Ordering::Relaxed) }
    }

    /// Returns the address of a node. The id is at most 255.
    pub(crate) fn node_ip(self, id: u64) -> IpAddr {
        Ipv4Addr::new(127, self.process, self.cluster, u8::try_from(id).unwrap()).into()
    }
}

/// Returns the node with an address, or 0 for a client.
fn node_id(address: SocketAddr) -> u64 {
    match address.ip() {
        IpAddr::V4(ip) if ip.octets()[1] > 0 => ip.octets()[3].into(),
        _ => 0,
    }
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

#[test]
fn proxy_node_of_an_address_is_found_in_each_cluster() {
    let (one, other) = (ClusterAddresses::new(), ClusterAddresses::new());
    assert_ne!(one.node_ip(7), other.node_ip(7));
    for ip in [one.node_ip(7), other.node_ip(7)] {
        assert_eq!(node_id((ip, 80).into()), 7);
    }
    assert_eq!(node_id((Ipv4Addr::LOCALHOST, 80).into()), 0);
}
