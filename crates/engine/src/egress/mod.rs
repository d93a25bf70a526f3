//! The way out of a sandbox: by name, through sockets of its own network namespace that are served here.
//!
//! Theory of operation. A sandbox with a network has a loopback interface and nothing else. On it listen a proxy (HTTP, CONNECT,
//! SOCKS5), a name server, and a few ports for programs that know no proxy; their sockets were made inside and are served
//! from outside. Each connection names a host. That is held against the rules, looked up once outside, the address is
//! classified and pinned, and only then connected to. What a TLS client says it wants must be the host that it named.
//! Code that goes around all this meets a network with nobody on it.

mod address;
mod answer;
mod authority;
mod dns;
mod entry;
mod first;
mod flow;
mod front;
mod hello;
mod http;
mod intercept;
mod line;
mod meter;
mod names;
mod policy;
mod publish;
mod record;
mod resolve;
mod settle;
mod socks;
mod tunnel;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, TcpListener as StdListener, UdpSocket as StdSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_jail::{MAX_PORTS, PROXY_PORT};
use belljar_spec::{DEFAULT_PORTS, Network};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

pub use publish::{Inside, Published};
pub use record::Log;
pub use world::{Outside, Totals, World};

use meter::{Meter, Place};
use names::Stand;
use policy::Host;
use settle::{Bell, Tide};

/// Serves one sandbox's network until it is dropped; then every connection of it ends.
pub struct Egress {
    rules: watch::Sender<Arc<Network>>,
    desk: Arc<Desk>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// Where it listens for programs that know no proxy.
    ports: Mutex<BTreeSet<u16>>,
    bells: Mutex<Vec<Bell>>,
}

/// What every connection of a sandbox needs.
pub struct Desk {
    pub world: Arc<World>,
    rules: watch::Receiver<Arc<Network>>,
    pub stand: Stand,
    pub log: Log,
    pub meter: Arc<Meter>,
    pub tide: Arc<Tide>,
    /// For buffers that are large.
    pub bulk: Semaphore,
}

impl Desk {
    pub fn network(&self) -> Arc<Network> {
        Arc::clone(&self.rules.borrow())
    }

    /// For one connection, among those of the sandbox and those of all; or why there is none.
    fn place(&self) -> Result<(Place, OwnedSemaphorePermit), &'static str> {
        let own = self.meter.place();
        let own = own.ok_or("the sandbox has as many connections as it may")?;
        let shared = self.world.place(self.meter.open());
        let full = "all sandboxes together have as many connections as they may; try again later";
        Ok((own, shared.ok_or(full)?))
    }

    /// Whoever connected to one of our ports and did not come to name a host, or was not heard.
    fn turned_away(&self, stream: &TcpStream, reason: &str) {
        let Ok(at) = stream.local_addr() else { return };
        let name = self.stand.name_of(at.ip());
        let name = name.unwrap_or_else(|| at.ip().to_string());
        self.log.begin(&name, at.port()).refuse(reason);
        self.world.count(false);
    }

    /// `None`: the sandbox has ended meanwhile.
    pub async fn until_gone<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut rules = self.rules.clone();
        tokio::select! {
            done = work => Some(done),
            () = async { while rules.changed().await.is_ok() {} } => None,
        }
    }
}

impl Egress {
    /// `doors` as the jail hands them over: the proxy, names by datagram, names by stream, then the others.
    pub fn serve(
        doors: Vec<OwnedFd>,
        network: &Network,
        world: Arc<World>,
        log: Log,
    ) -> io::Result<Self> {
        let (rules, changes) = watch::channel(Arc::new(network.clone()));
        let desk = Arc::new(Desk {
            world,
            rules: changes,
            stand: Stand::default(),
            log,
            meter: Arc::new(Meter::new(network.caps)),
            tide: Arc::default(),
            bulk: Semaphore::new(flow::MANY),
        });
        let egress = Self {
            rules,
            desk,
            tasks: Mutex::default(),
            ports: Mutex::default(),
            bells: Mutex::default(),
        };
        for (index, fd) in doors.into_iter().enumerate() {
            let desk = Arc::clone(&egress.desk);
            let task = match index {
                0 => {
                    egress.stand_at(listener(fd)?, front::Door::Proxy);
                    continue;
                }
                1 => {
                    let socket = StdSocket::from(fd);
                    socket.set_nonblocking(true)?;
                    let socket = UdpSocket::from_std(socket)?;
                    tokio::spawn(names::serve_datagrams(desk, socket))
                }
                2 => tokio::spawn(names::serve_streams(desk, listener(fd)?)),
                _ => {
                    egress.open(fd)?;
                    continue;
                }
            };
            lock(&egress.tasks).push(task);
        }
        Ok(egress)
    }

    /// Another port for programs that know no proxy.
    pub fn open(&self, door: OwnedFd) -> io::Result<()> {
        let listener = listener(door)?;
        lock(&self.ports).insert(listener.local_addr()?.port());
        self.stand_at(listener, front::Door::Direct);
        Ok(())
    }

    fn stand_at(&self, listener: TcpListener, door: front::Door) {
        let (bell, rings) = Bell::new();
        let serving = front::serve(Arc::clone(&self.desk), listener, door, rings);
        lock(&self.tasks).push(tokio::spawn(serving));
        lock(&self.bells).push(bell);
    }

    /// Waits until what was sent by programs that have ended has been passed on; not for long.
    pub async fn settle(&self) {
        let bells = lock(&self.bells).clone();
        for bell in bells {
            bell.ring().await;
        }
        let meter = &self.desk.meter;
        self.desk.tide.ebb(|| meter.used()).await;
    }

    /// Where it should listen too, as the rules are now.
    pub fn missing(&self) -> Vec<u16> {
        let known = lock(&self.ports);
        let mut missing = ports(&self.desk.network());
        missing.retain(|port| ![PROXY_PORT, 53].contains(port) && !known.contains(port));
        missing.truncate(MOST_DOORS.saturating_sub(known.len()));
        missing
    }

    /// From now on these rules hold, for connections that are open too.
    pub fn change(&self, network: &Network) {
        self.desk.meter.set(network.caps);
        self.rules.send_replace(Arc::new(network.clone()));
    }
}

impl Drop for Egress {
    fn drop(&mut self) {
        for task in lock(&self.tasks).iter() {
            task.abort();
        }
    }
}

/// Of one sandbox, however often its rules change.
const MOST_DOORS: usize = 4 * MAX_PORTS;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listener(fd: OwnedFd) -> io::Result<TcpListener> {
    let listener = StdListener::from(fd);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Whether an address is not a public one, or this machine's own.
pub fn is_private(address: IpAddr) -> bool {
    address::closed(address).is_some()
}

/// Whether rules let anyone try a host.
pub fn may_try(network: &Network, host: &str, port: u16) -> bool {
    Host::parse(host).is_some_and(|host| policy::may_try(network, &host, port).is_ok())
}

/// Where to listen for programs that know no proxy.
pub fn ports(network: &Network) -> Vec<u16> {
    if network.is_none() {
        return Vec::new();
    }
    let mut ports = DEFAULT_PORTS.to_vec();
    for port in network.rules().iter().filter_map(|rule| rule.port) {
        if !ports.contains(&port) && ports.len() < MAX_PORTS {
            ports.push(port);
        }
    }
    ports
}

/// What tells programs inside about the proxy.
pub fn environment(network: &Network) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    if network.is_none() {
        return env;
    }
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        env.insert(name.to_owned(), proxy.clone());
        env.insert(name.to_ascii_uppercase(), proxy.clone());
    }
    for name in ["no_proxy", "NO_PROXY"] {
        env.insert(name.to_owned(), "localhost,127.0.0.1,::1".to_owned());
    }
    // Node.js looks at the variables above since version 22.
    env.insert("NODE_USE_ENV_PROXY".to_owned(), "1".to_owned());
    // Where what is installed while a session lives is found: everything else is read-only.
    env.insert("PIP_TARGET".to_owned(), INSTALLED.to_owned());
    env.insert("PYTHONPATH".to_owned(), INSTALLED.to_owned());
    if network.intercept {
        for name in [
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "NODE_EXTRA_CA_CERTS",
            "PIP_CERT",
            "GIT_SSL_CAINFO",
        ] {
            env.insert(name.to_owned(), CERTIFICATES.to_owned());
        }
    }
    for name in network.rules().iter().filter_map(|rule| rule.env.as_ref()) {
        env.insert(name.clone(), PLACEHOLDER.to_owned());
    }
    env
}

/// What code finds where a key would be.
const PLACEHOLDER: &str = "belljar-placeholder";
/// Where packages go that are installed in a session.
pub const INSTALLED: &str = "/tmp/packages";
/// What a sandbox trusts whose TLS is opened on the way.
pub const CERTIFICATES: &str = "/etc/belljar/certificates.pem";
/// Where names are asked for inside.
pub const RESOLV_CONF: &str = "nameserver 127.0.0.1\noptions timeout:5 attempts:2\n";
