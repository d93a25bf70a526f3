//! Ports of a sandbox that the host listens for. Nothing in the sandbox can open one: it is asked for when it is made.

use std::io;
use std::net::Ipv4Addr;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use belljar_spec::{Error, Publish};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::World;
use crate::sandbox::Sandbox;

/// Open at one time, for each port.
const MOST: usize = 128;

/// The sandbox that is led to; another one after a reset.
pub type Inside = Arc<Mutex<Weak<Sandbox>>>;

const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Listens until it is dropped; then every connection ends.
pub struct Published {
    /// With the port that it became.
    pub at: Publish,
    task: JoinHandle<()>,
}

impl Drop for Published {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Published {
    pub async fn open(wanted: Publish, inside: Inside, world: Arc<World>) -> Result<Self, Error> {
        let refused = |error: io::Error| Error::InvalidRequest {
            field: "publish".into(),
            given: wanted.to_string(),
            accepted: format!("give an address and port of this host that are free ({error})"),
        };
        let listener = TcpListener::bind(wanted.host).await.map_err(refused)?;
        let host: SocketAddr = listener.local_addr().map_err(refused)?;
        let port = wanted.port;
        Ok(Self {
            at: Publish { host, port },
            task: tokio::spawn(serve(listener, port, inside, world)),
        })
    }
}

async fn serve(listener: TcpListener, port: u16, inside: Inside, world: Arc<World>) {
    let places = Arc::new(Semaphore::new(MOST));
    let mut open = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        // No more than that are taken; the others wait outside.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((mut outer, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Who finds no place among all sandboxes is not kept waiting.
        let held = MOST - places.available_permits();
        let Some(shared) = world.place(held as u64) else {
            continue;
        };
        let sandbox = Weak::clone(&inside.lock().unwrap_or_else(PoisonError::into_inner));
        open.spawn(async move {
            let connected = tokio::time::timeout(CONNECT_TIME, connect(sandbox, port)).await;
            if let Ok(Ok(mut inner)) = connected {
                let _ = copy_bidirectional(&mut outer, &mut inner).await;
            }
            drop((place, shared));
        });
    }
}

/// Connects to a port of the sandbox's own loopback interface.
async fn connect(sandbox: Weak<Sandbox>, port: u16) -> io::Result<TcpStream> {
    let gone = || io::Error::from(io::ErrorKind::NotConnected);
    let socket = sandbox.upgrade().ok_or_else(gone)?.socket(None).await;
    let socket = socket.map_err(io::Error::other)?;
    let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
    socket.connect((Ipv4Addr::LOCALHOST, port).into()).await
}
