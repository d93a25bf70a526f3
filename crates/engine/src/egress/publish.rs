//! Ports of a sandbox that the host listens for. Nothing in the sandbox can open one: it is asked for when it is made.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belljar_jail::connect_in;
use belljar_spec::{Error, Publish};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::World;

/// Open at one time, for each port.
const MOST: usize = 128;

/// The network namespace that is led to; another one after a reset.
pub type Inside = Arc<Mutex<Arc<OwnedFd>>>;

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
        let namespace = Arc::clone(&inside.lock().unwrap_or_else(PoisonError::into_inner));
        open.spawn(async move {
            let connected = tokio::task::spawn_blocking(move || connect_in(&namespace, port)).await;
            if let Ok(Ok(inner)) = connected
                && inner.set_nonblocking(true).is_ok()
                && let Ok(mut inner) = TcpStream::from_std(inner)
            {
                let _ = copy_bidirectional(&mut outer, &mut inner).await;
            }
            drop((place, shared));
        });
    }
}
