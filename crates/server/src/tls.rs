//! TLS by certificate files.

use std::path::Path;
use std::sync::Arc;

use belljar_spec::Error;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Tls;

/// `None` where the settings name no certificate.
pub fn acceptor(settings: &Tls) -> Result<Option<TlsAcceptor>, Error> {
    if settings.certificate.as_os_str().is_empty() {
        return Ok(None);
    }
    let failed =
        |path: &Path, reason: String| Error::invalid_file("tls", &path.to_string_lossy(), reason);
    let chain = CertificateDer::pem_file_iter(&settings.certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed(&settings.certificate, reason(&error)))?;
    if chain.is_empty() {
        return Err(failed(
            &settings.certificate,
            "there is no certificate in it".into(),
        ));
    }
    let key = PrivateKeyDer::from_pem_file(&settings.key)
        .map_err(|error| failed(&settings.key, reason(&error)))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| failed(&settings.key, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

/// For people: the library shows some of it as numbers.
fn reason(error: &PemError) -> String {
    match error {
        PemError::NoItemsFound => "there is no private key in it".into(),
        PemError::Io(error) => error.to_string(),
        PemError::MissingSectionEnd { .. } => "it is cut off: a part of it has no end".into(),
        error => error.to_string(),
    }
}
