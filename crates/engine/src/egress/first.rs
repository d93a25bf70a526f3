//! The first bytes of a client: whether they are meant for the host that it named.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::Desk;
use super::flow::Flow;
use super::hello::{self, Hello};
use super::http::{self, Head};
use super::line::{Line, Lookout};
use super::policy::{self, Host};
use super::tunnel::Cut;

/// Once a client has begun to say what it wants.
const TIME: Duration = Duration::from_secs(20);

/// What a client wants, going by its first bytes.
pub enum Words {
    /// TLS for the right server, or something that we know nothing about.
    Any,
    /// Plain HTTP, its head ready to be sent, and how much of that the server has already.
    Request(Box<Head>, usize),
}

pub struct First<'a> {
    pub desk: &'a Desk,
    pub host: &'a Host,
    pub port: u16,
}

impl First<'_> {
    /// Waits for the first bytes for as long as need be: in some protocols the server speaks first. Less than a line is passed on
    /// at once, because a client may well wait for an answer to it; if it becomes a request, it is looked at before the line ends.
    pub async fn words(
        &self,
        flow: &Flow<'_>,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
        early: &mut Vec<u8>,
    ) -> Result<Words, Cut> {
        early.reserve(16 << 10);
        if early.is_empty() && from.read_buf(early).await? == 0 {
            return Ok(Words::Any);
        }
        let late = |_| Cut::Refused("it began and did not go on".into());
        if early.first() == Some(&hello::HANDSHAKE) {
            let name = timeout(TIME, server_name(from, early)).await;
            self.check_server_name(name.map_err(late)??.as_deref())?;
            return Ok(Words::Any);
        }
        let mut lookout = Lookout::default();
        let mut passed = 0;
        loop {
            match lookout.look(early) {
                Line::Other => break,
                Line::Request => {
                    let request = timeout(TIME, self.request(from, early, passed)).await;
                    return request.map_err(late)?;
                }
                Line::Refused(reason) => return Err(Cut::Refused(reason.into())),
                Line::Partial => {}
            }
            flow.pass(to, &early[passed..]).await?;
            to.flush().await?;
            passed = early.len();
            if from.read_buf(early).await? == 0 {
                break;
            }
        }
        early.drain(..passed);
        Ok(Words::Any)
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

    /// Plain HTTP that did not come as to a proxy. Of its first line, so much has been `passed` on.
    async fn request(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        early: &mut Vec<u8>,
        passed: usize,
    ) -> Result<Words, Cut> {
        let begun = early[..passed].to_vec();
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
        if !head.to_bytes().starts_with(&begun) {
            return Err(Cut::Refused("the request is malformed".into()));
        }
        Ok(Words::Request(Box::new(head), passed))
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
