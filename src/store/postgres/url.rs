//! A database URL: where the server is, and how its connection is secured.
//!
//! `postgres://user:password@host:port/database?parameters`, as libpq reads it, several hosts
//! included. The parameters about certificates are read here, the others by the driver. `sslmode`
//! means what it means to libpq:
//!
//! | `sslmode` | the connection |
//! |---|---|
//! | `disable` | is not encrypted |
//! | `prefer` (the default) | is encrypted if the server can; nobody's certificate is checked |
//! | `require` | is encrypted; with `sslrootcert` as `verify-ca`, else no certificate is checked |
//! | `verify-ca` | is encrypted, and the certificate is signed by a root that is trusted |
//! | `verify-full` | as `verify-ca`, and the certificate is the host's |
//!
//! `sslrootcert` names a PEM file of roots; `system`, and no such parameter, means those of the
//! machine. A URL is a secret: no part of it is in an error.

use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::limits::{DB_CONNECT_WAIT, DB_KEEPALIVE, DB_LOCK_WAIT, DB_STATEMENT_WAIT};
use crate::secret::Secret;

/// A server, and how it is spoken to.
#[derive(Clone)]
pub struct Server {
    /// For the driver.
    pub config: Config,
    /// Makes the TLS part of a connection.
    pub tls: MakeRustlsConnect,
}

/// Why a URL is of no use.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum UrlError {
    /// It is not of the form that it must have.
    #[error("is not of the form postgres://user:password@host:port/database")]
    Form,
    /// `sslmode`.
    #[error("has an sslmode other than disable, prefer, require, verify-ca and verify-full")]
    SslMode,
    /// `sslrootcert`.
    #[error("has an sslrootcert that is no readable PEM file with certificates")]
    Roots,
    /// The machine has none.
    #[error("asks for certificates to be checked, and this machine has no roots; set sslrootcert")]
    NoSystemRoots,
}

/// How a server's certificate is checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Check {
    Nothing,
    Chain,
    ChainAndHost,
}

impl Server {
    /// Reads a URL, and the certificates that it names.
    pub fn parse(url: &Secret) -> Result<Server, UrlError> {
        let Parts {
            rest,
            mode,
            check,
            roots,
        } = Parts::parse(url.expose())?;
        let mut config: Config = rest.parse().map_err(|_| UrlError::Form)?;
        if config.get_hosts().is_empty() {
            return Err(UrlError::Form);
        }
        // Every statement has an index for it and begins with few rows. A plan that is made once, when a
        // table was empty, must still be right when it is large: so the plans that read tables from
        // end to end are not to be had.
        let options = format!(
            "{} -c statement_timeout={} -c lock_timeout={} \
             -c idle_in_transaction_session_timeout={} -c jit=off \
             -c plan_cache_mode=force_generic_plan -c enable_seqscan=off \
             -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off",
            config.get_options().unwrap_or_default(),
            DB_STATEMENT_WAIT.as_millis(),
            DB_LOCK_WAIT.as_millis(),
            DB_LOCK_WAIT.as_millis(),
        );
        config
            .ssl_mode(mode)
            .options(options.trim_start())
            .connect_timeout(DB_CONNECT_WAIT)
            .keepalives(true)
            .keepalives_idle(DB_KEEPALIVE)
            .tcp_user_timeout(DB_KEEPALIVE);
        if config.get_application_name().is_none() {
            config.application_name("buzz-uring");
        }
        let tls = MakeRustlsConnect::new(client_config(check, roots)?);
        Ok(Server { config, tls })
    }
}

struct Parts {
    rest: String,
    mode: SslMode,
    check: Check,
    roots: Option<PathBuf>,
}

impl Parts {
    fn parse(url: &str) -> Result<Parts, UrlError> {
        let url = url.trim();
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err(UrlError::Form);
        }
        let (place, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut roots) = (String::from("prefer"), None);
        let mut rest = place.to_owned();
        let mut separator = '?';
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(UrlError::Form)?;
            let value = || percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "sslmode" => mode = value(),
                "sslrootcert" => roots = Some(value()).filter(|path| path != "system"),
                _ => {
                    rest.push(separator);
                    rest.push_str(pair);
                    separator = '&';
                }
            }
        }
        let (mode, check) = match (mode.as_str(), &roots) {
            ("disable", _) => (SslMode::Disable, Check::Nothing),
            ("prefer", _) => (SslMode::Prefer, Check::Nothing),
            ("require", None) => (SslMode::Require, Check::Nothing),
            ("require", Some(_)) | ("verify-ca", _) => (SslMode::Require, Check::Chain),
            ("verify-full", _) => (SslMode::Require, Check::ChainAndHost),
            _ => return Err(UrlError::SslMode),
        };
        Ok(Parts {
            rest,
            mode,
            check,
            roots: roots.map(PathBuf::from),
        })
    }
}

fn client_config(check: Check, roots: Option<PathBuf>) -> Result<ClientConfig, UrlError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions of TLS");
    let verifier = match check {
        Check::Nothing => None,
        Check::Chain | Check::ChainAndHost => {
            let roots = Arc::new(read_roots(roots)?);
            let verifier =
                WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
            Some(verifier.map_err(|_| UrlError::Roots)?)
        }
    };
    let verifier = Verifier {
        chain: verifier,
        host: check == Check::ChainAndHost,
        provider,
    };
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

fn read_roots(path: Option<PathBuf>) -> Result<RootCertStore, UrlError> {
    let mut roots = RootCertStore::empty();
    match path {
        Some(path) => {
            let read = CertificateDer::pem_file_iter(path).map_err(|_| UrlError::Roots)?;
            for root in read {
                let root = root.map_err(|_| UrlError::Roots)?;
                roots.add(root).map_err(|_| UrlError::Roots)?;
            }
            if roots.is_empty() {
                return Err(UrlError::Roots);
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(UrlError::NoSystemRoots);
            }
        }
    }
    Ok(roots)
}

/// Checks as much of a certificate as was asked for. Signatures of the handshake are always checked.
#[derive(Debug)]
struct Verifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    host: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        match chain.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.host => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Parts, UrlError> {
        Parts::parse(url)
    }

    #[test]
    fn certificates_are_checked_as_libpq_would() {
        let check = |query: &str| {
            let parts = parse(&format!("postgres://u:p@h/d?{query}")).expect("a URL");
            (parts.mode, parts.check)
        };
        assert_eq!(check(""), (SslMode::Prefer, Check::Nothing));
        assert_eq!(check("sslmode=disable"), (SslMode::Disable, Check::Nothing));
        assert_eq!(check("sslmode=require"), (SslMode::Require, Check::Nothing));
        let with_roots = check("sslmode=require&sslrootcert=%2Fa%20b.pem");
        assert_eq!(with_roots, (SslMode::Require, Check::Chain));
        assert_eq!(check("sslmode=verify-ca"), (SslMode::Require, Check::Chain));
        let full = check("sslmode=verify-full&sslrootcert=system");
        assert_eq!(full, (SslMode::Require, Check::ChainAndHost));
        let mode = parse("postgres://h/d?sslmode=allow").err();
        assert_eq!(mode, Some(UrlError::SslMode));
    }

    #[test]
    fn other_parameters_are_left_to_the_driver() {
        let url = "postgresql://u@h/d?connect_timeout=3&sslmode=prefer&application_name=x";
        let parts = parse(url).expect("a URL");
        let rest = "postgresql://u@h/d?connect_timeout=3&application_name=x";
        assert_eq!(parts.rest, rest);
    }

    #[test]
    fn a_faulty_url_is_told_without_its_text() {
        for url in [
            "mysql://u:hush@h/d",
            "hush",
            "postgres://u:hush@h/d?hush",
            "postgres://u:hush@h:port/d",
            "postgres://h/d?sslmode=hush",
            "postgres://u:hush@h/d?unheard=of",
            "postgres://h/d?sslmode=verify-ca&sslrootcert=/nowhere/hush",
        ] {
            let error = Server::parse(&Secret::new(url)).err().expect("an error");
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hush"), "{text}");
        }
    }
}
