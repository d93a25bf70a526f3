//! The first bytes of a client: whether they are meant for the host that it named.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use super::Desk;
use super::hello::{self, Hello};
use super::http::{self, Head};
use super::line::{self, Line};
use super::policy::{self, Host};
use super::tunnel::Cut;

/// Once a client has begun to say what it wants.
const TIME: Duration = Duration::from_secs(20);
/// For the rest of a line.
const MORE: Duration = Duration::from_millis(100);

/// What a client wants, going by its first bytes.
pub enum Words {
    /// TLS for the right server, or something that we know nothing about.
    Any,
    /// Less than a line, which may go on as long as it does not become a request.
    Partial,
    /// Plain HTTP, its head ready to be sent.
    Request(Box<Head>),
}

pub struct First<'a> {
    pub desk: &'a Desk,
    pub host: &'a Host,
    pub port: u16,
}

impl First<'_> {
    /// Waits for the first bytes for as long as need be: in some protocols the server speaks first.
    pub async fn words(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        early: &mut Vec<u8>,
    ) -> Result<Words, Cut> {
        early.reserve(16 << 10);
        if early.is_empty() && from.read_buf(early).await? == 0 {
            return Ok(Words::Any);
        }
        let looked = timeout(TIME, self.look(from, early)).await;
        looked.unwrap_or_else(|_| Err(Cut::Refused("it began and did not go on".into())))
    }

    async fn look(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        early: &mut Vec<u8>,
    ) -> Result<Words, Cut> {
        if early.first() == Some(&hello::HANDSHAKE) {
            let name = server_name(from, early).await?;
            self.check_server_name(name.as_deref())?;
            return Ok(Words::Any);
        }
        loop {
            match line::look(early) {
                Line::Other => return Ok(Words::Any),
                Line::Odd => return Ok(Words::Partial),
                Line::Request => return self.request(from, early).await,
                Line::Refused(reason) => return Err(Cut::Refused(reason.into())),
                Line::Partial => {}
            }
            let likely = line::is_likely(early);
            let more = from.read_buf(early);
            // In other protocols a client may well wait for an answer after half a line.
            let more = if likely {
                more.await?
            } else {
                match timeout(MORE, more).await {
                    Ok(more) => more?,
                    Err(_) => return Ok(Words::Partial),
                }
            };
            if more == 0 {
                return Ok(Words::Any);
            }
        }
    }

    pub fn check_server_name(&self, name: Option<&str>) -> Result<(), Cut> {
        let said = name.and_then(Host::parse);
        let fits = match (self.host, &said) {
            (host, Some(said)) if host == said => true,
            // By address: whatever is named must be allowed as well.
            (Host::Address(_), Some(said)) => {
                policy::may_try(&self.desk.network(), said, self.port).is_ok()
            }
            (Host::Address(_), None) => name.is_none(),
            (Host::Name(_), _) => false,
        };
        if fits {
            return Ok(());
        }
        let said = said.map_or_else(|| "nobody".to_owned(), |said| said.to_string());
        Err(Cut::Refused(format!(
            "the TLS server name is {said}, the connection is to {}",
            self.host
        )))
    }

    /// Whether that is where the connection leads. Programs that know no proxy reach `localhost` by its address, and are
    /// taken for its; where rules name both, either may be said.
    fn is_of(&self, said: &Host) -> bool {
        let here = |host: &Host| match host {
            Host::Name(name) => name == "localhost",
            Host::Address(address) => address.is_loopback(),
        };
        let both = here(self.host) && here(said);
        said == self.host || both && policy::may_try(&self.desk.network(), said, self.port).is_ok()
    }

    /// Plain HTTP that did not come as to a proxy.
    pub async fn request(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        early: &mut Vec<u8>,
    ) -> Result<Words, Cut> {
        let head = http::read_head(from, early).await?;
        let Ok(Some(mut head)) = head else {
            return Err(Cut::Refused("the request is malformed or too long".into()));
        };
        let named = head.one("host").ok().flatten();
        let named = named.and_then(|text| http::authority(text, Some(self.port)));
        let named = named.and_then(|(host, _)| Host::parse(host));
        // Where the target has a host, that is the one that servers go by.
        let target = head.first[1].as_str();
        let targeted = match http::absolute(target) {
            Some((authority, _)) => http::authority(&authority, Some(self.port))
                .and_then(|(host, _)| Host::parse(host))
                .is_some_and(|said| self.is_of(&said)),
            None => target.starts_with('/') || target == "*",
        };
        let fits = targeted && named.as_ref().is_some_and(|said| self.is_of(said));
        if !head.is_request() || !fits {
            let named = named.filter(|named| named != self.host);
            let named = named.map_or_else(|| "somebody else".to_owned(), |named| named.to_string());
            return Err(Cut::Refused(format!(
                "the request is for {named}, the connection is to {}",
                self.host
            )));
        }
        let upgrade = head.upgrades();
        head.drop_hop_fields(upgrade);
        if let Some(rule) = policy::with_headers(&self.desk.network(), self.host, self.port) {
            // A server that sends back what it was sent would tell what nobody inside shall know.
            if head.first[0] == "TRACE" {
                return Err(Cut::Refused(
                    "TRACE to a host with headers of its own".into(),
                ));
            }
            head.add_headers(rule);
        }
        Ok(Words::Request(Box::new(head)))
    }
}

/// Which server a TLS client means. What it said stays in `early`.
pub async fn server_name(
    from: &mut (impl AsyncRead + Unpin),
    early: &mut Vec<u8>,
) -> Result<Option<String>, Cut> {
    let refused = |reason: &str| Err(Cut::Refused(reason.to_owned()));
    loop {
        match hello::parse(early) {
            Hello::Tls(name) => return Ok(name),
            Hello::Broken => return refused("it began like TLS and is none"),
            Hello::Partial => {
                if from.read_buf(early).await? == 0 {
                    return refused("it ended within its first words");
                }
            }
        }
    }
}
