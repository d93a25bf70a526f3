//! A certificate authority of this process, for sandboxes that are given it: so that a key can be added to what is encrypted.
//!
//! Its own key is made at the start, is in memory only, and ends with the process. Sandboxes see its certificate.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::trust;

const MAX_LEAVES: usize = 1024;

pub struct Authority {
    certificate: Certificate,
    key: KeyPair,
    /// What the host trusts, as text.
    trusted: String,
    leaves: Mutex<HashMap<String, TlsAcceptor>>,
    client: TlsConnector,
}

impl Authority {
    pub fn new() -> io::Result<Self> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "Belljar, for this sandbox");
        let certificate = params.self_signed(&key).map_err(io::Error::other)?;
        let trusted = trust::certificates();
        let client = trust::client(&trusted)?;
        Ok(Self {
            certificate,
            key,
            trusted,
            leaves: Mutex::default(),
            client: TlsConnector::from(Arc::new(client)),
        })
    }

    /// What a sandbox shall trust: what the host does, and this.
    pub fn bundle(&self) -> String {
        format!("{}\n{}", self.trusted, self.certificate.pem())
    }

    pub fn connector(&self) -> &TlsConnector {
        &self.client
    }

    /// To speak as a host.
    pub fn acceptor(&self, host: &str) -> io::Result<TlsAcceptor> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = leaves.get(host) {
            return Ok(known.clone());
        }
        let made = self.leaf(host)?;
        if leaves.len() < MAX_LEAVES {
            leaves.insert(host.to_owned(), made.clone());
        }
        Ok(made)
    }

    fn leaf(&self, host: &str) -> io::Result<TlsAcceptor> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let mut params = CertificateParams::new([host.to_owned()]).map_err(io::Error::other)?;
        params.distinguished_name.push(DnType::CommonName, host);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(&key, &self.certificate, &self.key)
            .map_err(io::Error::other)?;
        let chain = vec![certificate.der().clone()];
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                builder
                    .with_no_client_auth()
                    .with_single_cert(chain, key.into())
            })
            .map_err(io::Error::other)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
