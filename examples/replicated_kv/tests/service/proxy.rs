//! A TCP proxy in front of each node. It cuts the links between nodes.
//!
//! Each node has its own loopback address, from which it also sends its requests. So a proxy knows the sender.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
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

/// A proxy in front of one node.
pub(crate) struct Proxy {
    /// Address of the proxy, which is the address of the node in the membership.
    pub(crate) address: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
}

impl Proxy {
    pub(crate) async fn start(id: u64, links: watch::Receiver<CutLinks>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let target = Arc::new(Mutex::new(None::<SocketAddr>));
        let current_target = Arc::clone(&target);
        tokio::spawn(async move {
            while let Ok((stream, sender)) = listener.accept().await {
                let target = *current_target.lock().unwrap();
                tokio::spawn(forward(stream, target, (node_id(sender), id), links.clone()));
            }
        });
        Proxy { address, target }
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
) {
    let cut = links.borrow().get(&link).copied();
    let cut = match (cut, target) {
        (Some(cut), _) => cut,
        (None, None) => return,
        (None, Some(target)) => {
            let Ok(mut target) = TcpStream::connect(target).await else { return };
            let _ = (stream.set_nodelay(true), target.set_nodelay(true));
            tokio::select! {
                _ = copy_bidirectional(&mut stream, &mut target) => return,
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
