//! TLS beneath a client's connections: settings from PEM files, and a session for each socket.

mod key;

use std::io::{self, BufRead, IoSlice, Write};
use std::path::Path;
use std::sync::Arc;

use headrace_client::error::{Error, Result};
use headrace_client::options::CommonConfig;
use headrace_link::carrier::Flushed;
use headrace_wire::address::ShownHost;
use mio::net::TcpStream;
use rustix::net::SendAncillaryBuffer;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};

use crate::outbox::Outbox;
use crate::system;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) why: String,
    /// Trying again would end alike.
    pub(crate) lasting: bool,
    /// The peer hung up on the first bytes of a TLS handshake, without a byte of its own.
    pub(crate) unanswered: bool,
}

impl Fault {
    pub(crate) fn lasting(why: impl Into<String>) -> Self {
        Self { why: why.into(), lasting: true, unanswered: false }
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self { why, lasting: false, unanswered: false }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        error.to_string().into()
    }
}

/// The settings for all connections of a client; `None` where the protocol goes without TLS. Reads the files that the
/// options name, or the system's roots.
pub(crate) fn settings(options: &CommonConfig) -> Result<Option<Arc<ClientConfig>>> {
    if !options.security_protocol.uses_tls() {
        return Ok(None);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(options)?, provider.clone())
        .build()
        .map_err(|e| Error::config("ssl.ca.location", e.to_string()))?;
    let verifier: Arc<dyn ServerCertVerifier> = if options.ssl_endpoint_identification_algorithm == "https" {
        verifier
    } else {
        Arc::new(AnyName(verifier))
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::config("security.protocol", e.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some(certificate) = &options.ssl_certificate_location else {
        return Ok(Some(Arc::new(builder.with_no_client_auth())));
    };
    let chain = certificates("ssl.certificate.location", certificate)?;
    let (option, key) = key::private_key(options, certificate)?;
    let config = builder
        .with_client_auth_cert(chain, key)
        .map_err(|e| Error::config(option, format!("the key does not go with the certificate: {e}")))?;
    Ok(Some(Arc::new(config)))
}

fn roots(options: &CommonConfig) -> Result<Arc<RootCertStore>> {
    const OPTION: &str = "ssl.ca.location";
    let mut roots = RootCertStore::empty();
    if let Some(path) = &options.ssl_ca_location {
        for certificate in certificates(OPTION, path)? {
            roots.add(certificate).map_err(|e| Error::config(OPTION, format!("{path}: {e}")))?;
        }
        return Ok(Arc::new(roots));
    }
    let found = rustls_native_certs::load_native_certs();
    // Among the system's there may be one that is too odd for us; the others still count.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|e| format!(" ({e})")).unwrap_or_default();
        let why =
            format!("the system has no certificate authorities{why}: name a PEM file with those to trust");
        return Err(Error::config(OPTION, why));
    }
    Ok(Arc::new(roots))
}

fn read(option: &str, path: &str) -> Result<Vec<u8>> {
    std::fs::read(Path::new(path)).map_err(|e| Error::config(option, format!("{path} cannot be read: {e}")))
}

fn certificates(option: &str, path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(option, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::config(option, format!("{path} has no certificate in PEM format"))),
        Err(e) => Err(Error::config(option, format!("{path} is not in PEM format: {e:?}"))),
    }
}

/// Checks all but whether the certificate is for this host.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The name is looked at last, after the chain and its dates.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// One connection's TLS.
pub(crate) struct Session {
    tls: ClientConnection,
    host: String,
    /// The peer has sent something.
    heard: bool,
}

impl Session {
    /// A session that begins with its handshake.
    pub(crate) fn new(settings: &Arc<ClientConfig>, host: &str) -> Result<Self, Fault> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            Fault::lasting(format!("'{}' is no name that a certificate can be for", ShownHost(host)))
        })?;
        let tls = ClientConnection::new(settings.clone(), name).map_err(|e| Fault::lasting(e.to_string()))?;
        Ok(Self { tls, host: host.to_owned(), heard: false })
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Writes what is encrypted; `false` when the socket is full.
    pub(crate) fn flush(&mut self, socket: &TcpStream) -> io::Result<bool> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Quiet(socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// As [`Outbox::flush`], through TLS: the pieces are encrypted from where they are, as many as the session holds at
    /// a time, and written before the next.
    pub(crate) fn send(
        &mut self,
        outbox: &mut Outbox,
        socket: &TcpStream,
        budget: u64,
    ) -> io::Result<Flushed> {
        let mut written = 0;
        loop {
            if !self.flush(socket)? {
                return Ok(Flushed::Blocked);
            }
            if outbox.is_empty() {
                return Ok(Flushed::All);
            }
            if written >= budget {
                return Ok(Flushed::Yielded);
            }
            let taken = outbox.pass(|pieces| self.tls.writer().write_vectored(pieces))?;
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += taken;
        }
    }

    /// Reads from the socket once, and puts what it decrypts behind `buffer`. How many bytes came in; `None` when there
    /// are none now.
    pub(crate) fn receive(
        &mut self,
        mut socket: &TcpStream,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<usize>, Fault> {
        let read = match self.tls.read_tls(&mut socket) {
            Ok(0) => return Err(self.hung_up("the peer closed the connection")),
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(Some(0)),
            Err(e) => return Err(self.hung_up(&e.to_string())),
        };
        self.heard = true;
        if let Err(error) = self.tls.process_new_packets() {
            // The alert that tells the peer why; whether it still arrives does not matter.
            let _ = self.flush(socket);
            return Err(self.explain(&error));
        }
        let mut reader = self.tls.reader();
        loop {
            let taken = match reader.fill_buf() {
                Ok(plain) => {
                    buffer.extend_from_slice(plain);
                    plain.len()
                }
                // An end without a farewell is the socket's to tell.
                Err(_) => 0,
            };
            if taken == 0 {
                return Ok(Some(read));
            }
            reader.consume(taken);
        }
    }

    fn hung_up(&self, why: &str) -> Fault {
        if !self.tls.is_handshaking() {
            return why.to_owned().into();
        }
        let why = format!("{why} during the TLS handshake (does the listener expect TLS?)");
        Fault { unanswered: !self.heard, ..why.into() }
    }

    fn explain(&self, error: &rustls::Error) -> Fault {
        use rustls::Error as Tls;
        match error {
            Tls::InvalidCertificate(why) => Fault::lasting(match why {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "the broker's certificate has expired".to_owned()
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
                    "the broker's certificate is not for '{}' (ssl.endpoint.identification.algorithm=none leaves \
                     this unchecked)",
                    self.host
                ),
                CertificateError::UnknownIssuer => {
                    "the broker's certificate is from an authority that is not trusted (ssl.ca.location names those \
                     that are)"
                        .to_owned()
                }
                _ => error.to_string(),
            }),
            Tls::AlertReceived(AlertDescription::InternalError) => error.to_string().into(),
            Tls::AlertReceived(alert) => Fault::lasting(format!(
                "the broker refuses with the alert {alert:?} (ssl.certificate.location gives the client's certificate, \
                 if it asks for one)"
            )),
            Tls::InvalidMessage(_) if self.tls.is_handshaking() => Fault::lasting(
                "the peer does not speak TLS, and security.protocol is one with it: PLAINTEXT and SASL_PLAINTEXT go without",
            ),
            Tls::PeerIncompatible(_) => Fault::lasting(error.to_string()),
            _ => error.to_string().into(),
        }
    }
}

/// A socket whose end is an error, not a signal.
struct Quiet<'a>(&'a TcpStream);

impl Write for Quiet<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut ancillary = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(self.0, pieces, &mut ancillary, system::QUIET)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
