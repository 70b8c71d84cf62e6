//! The private key of the client's certificate, from a PEM file.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headrace_client::error::{Error, Result};
use headrace_client::options::CommonConfig;
use pkcs8::EncryptedPrivateKeyInfoRef;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::read;

const PASSWORD: &str = "ssl.key.password";
const BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const END: &str = "-----END ENCRYPTED PRIVATE KEY-----";
/// What makes any key one that can be read.
const HINT: &str = "`openssl pkcs8 -topk8 -v2 aes-256-cbc -v2prf hmacWithSHA256` makes one that can be read";

/// The key, and the option whose file it is from. A file often holds both certificate and key.
pub(super) fn private_key(
    options: &CommonConfig,
    certificate: &str,
) -> Result<(&'static str, PrivateKeyDer<'static>)> {
    let (option, path) = match &options.ssl_key_location {
        Some(path) => ("ssl.key.location", path.as_str()),
        None => ("ssl.certificate.location", certificate),
    };
    let pem = read(option, path)?;
    if let Ok(key) = PrivateKeyDer::from_pem_slice(&pem) {
        return Ok((option, key));
    }
    let text = String::from_utf8_lossy(&pem);
    if let Some(encrypted) = section(&text) {
        return decrypt(options, path, encrypted).map(|key| (option, key));
    }
    let why = if text.contains("Proc-Type: 4,ENCRYPTED") {
        format!("the key in {path} is encrypted in an old way, which is not supported: {HINT}")
    } else {
        format!("{path} has no private key in PEM format")
    };
    Err(Error::config(option, why))
}

/// What stands between the lines that enclose an encrypted key.
fn section(pem: &str) -> Option<&str> {
    let (_, rest) = pem.split_once(BEGIN)?;
    rest.split_once(END).map(|(inside, _)| inside)
}

fn decrypt(options: &CommonConfig, path: &str, encrypted: &str) -> Result<PrivateKeyDer<'static>> {
    let password = options.ssl_key_password.expose();
    if password.is_empty() {
        return Err(Error::config(PASSWORD, format!("the key in {path} is encrypted, and needs it")));
    }
    let broken = || Error::config(PASSWORD, format!("the encrypted key in {path} is damaged"));
    let text: String = encrypted.split_whitespace().collect();
    let der = STANDARD.decode(text).map_err(|_| broken())?;
    let info = EncryptedPrivateKeyInfoRef::try_from(der.as_slice()).map_err(|_| broken())?;
    let key = info.decrypt(password).map_err(|e| {
        use pkcs8::Error as Key;
        use pkcs8::pkcs5::Error as Cipher;
        let why = match e {
            // What comes out of a wrong password has a right end one time in 256, and is no key then either.
            Key::EncryptedPrivateKey(Cipher::DecryptFailed) | Key::Asn1(_) => {
                format!("it does not open the key in {path}")
            }
            other => {
                format!("the key in {path} is encrypted in a way that is not supported ({other}): {HINT}")
            }
        };
        Error::config(PASSWORD, why)
    })?;
    Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into())
}
