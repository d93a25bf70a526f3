//! Whom this host trusts: the certificates that its other programs use too.

use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Where systems keep them.
const BUNDLES: [&str; 3] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// As text: those in `SSL_CERT_FILE`, else the system's.
pub fn certificates() -> String {
    let named = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named
        .into_iter()
        .chain(BUNDLES.map(PathBuf::from))
        .find_map(|file| fs::read_to_string(file).ok())
        .unwrap_or_default()
}

/// For HTTP/1.1 to servers that these certificates speak for.
pub fn client(certificates: &str) -> io::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_slice_iter(certificates.as_bytes()).flatten();
    roots.add_parsable_certificates(found);
    let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(client)
}
