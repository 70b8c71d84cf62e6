//! SCRAM (RFC 5802) with the hashes that Kafka has, without channel binding.

use std::num::NonZeroU32;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};

use crate::error::clip;
use crate::options::Secret;

/// RFC 7677 asks for no fewer, and Kafka takes no fewer: fewer would make a stolen exchange cheap to guess.
const ITERATIONS_MIN: u32 = 4096;
/// Eight times Kafka's own limit. More would let a peer hold up the client's thread.
const ITERATIONS_MAX: u32 = 131_072;
/// "n,,": no channel binding, no other identity to act for; and the same in base64.
const HEADER: &str = "n,,";
const HEADER_BASE64: &str = "biws";

#[derive(Debug, Clone, Copy)]
pub(super) enum Hash {
    Sha256,
    Sha512,
}

impl Hash {
    fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }

    fn digest(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha512 => &digest::SHA512,
        }
    }

    fn pbkdf2(self) -> pbkdf2::Algorithm {
        match self {
            Self::Sha256 => pbkdf2::PBKDF2_HMAC_SHA256,
            Self::Sha512 => pbkdf2::PBKDF2_HMAC_SHA512,
        }
    }
}

/// One exchange.
#[derive(Debug)]
pub(super) struct Scram {
    hash: Hash,
    password: Secret,
    nonce: String,
    /// The first message without its header.
    first: String,
    awaited: Awaited,
}

#[derive(Debug)]
enum Awaited {
    /// The broker's nonce, salt and iteration count.
    Challenge,
    /// The broker's proof that it knows the password too: its signature of `message`.
    Signature {
        key: hmac::Key,
        message: String,
    },
    Nothing,
}

impl Scram {
    /// `nonce` is of printable ASCII without commas.
    pub(super) fn new(hash: Hash, username: &str, password: Secret, nonce: String) -> Self {
        let name = username.replace('=', "=3D").replace(',', "=2C");
        let first = format!("n={name},r={nonce}");
        Self { hash, password, nonce, first, awaited: Awaited::Challenge }
    }

    pub(super) fn first(&self) -> Vec<u8> {
        format!("{HEADER}{}", self.first).into_bytes()
    }

    /// See [`super::Exchange::next`].
    pub(super) fn next(&mut self, said: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let said = std::str::from_utf8(said).map_err(|_| "sent a SCRAM message that is no text")?;
        if let Some(error) = said.strip_prefix("e=") {
            return Err(format!("ended the SCRAM exchange: {}", clip(error)));
        }
        match std::mem::replace(&mut self.awaited, Awaited::Nothing) {
            Awaited::Challenge => self.prove(said).map(Some),
            Awaited::Signature { key, message } => {
                let signature = said.split(',').next().and_then(|field| field.strip_prefix("v="));
                let signature = signature.and_then(|text| STANDARD.decode(text).ok());
                let known = signature.is_some_and(|s| hmac::verify(&key, message.as_bytes(), &s).is_ok());
                if known { Ok(None) } else { Err("could not prove that it knows the password".to_owned()) }
            }
            Awaited::Nothing => Err("went on with a SCRAM exchange that was over".to_owned()),
        }
    }

    fn prove(&mut self, said: &str) -> Result<Vec<u8>, String> {
        let mut fields = said.split(',');
        let mut field = |name: &str| fields.next().and_then(|field| field.strip_prefix(name));
        let (Some(nonce), Some(salt), Some(iterations)) = (field("r="), field("s="), field("i=")) else {
            return Err("sent a SCRAM challenge that is not nonce, salt and iteration count".to_owned());
        };
        if nonce.len() <= self.nonce.len() || !nonce.starts_with(&self.nonce) {
            return Err("sent a SCRAM nonce that is not of this exchange".to_owned());
        }
        let salt = STANDARD.decode(salt).map_err(|_| "sent a SCRAM salt that is not base64")?;
        let iterations = iterations
            .parse::<u32>()
            .ok()
            .filter(|n| (ITERATIONS_MIN..=ITERATIONS_MAX).contains(n))
            .and_then(NonZeroU32::new)
            .ok_or_else(|| {
                let asked = clip(iterations);
                format!("asks for {asked} SCRAM iterations, outside of {ITERATIONS_MIN} to {ITERATIONS_MAX}")
            })?;

        let mut salted = vec![0; self.hash.digest().output_len()];
        pbkdf2::derive(self.hash.pbkdf2(), iterations, &salt, self.password.expose().as_bytes(), &mut salted);
        let salted = hmac::Key::new(self.hash.hmac(), &salted);
        let client_key = hmac::sign(&salted, b"Client Key");
        let stored_key = digest::digest(self.hash.digest(), client_key.as_ref());
        let last = format!("c={HEADER_BASE64},r={nonce}");
        let message = format!("{},{said},{last}", self.first);
        let signature =
            hmac::sign(&hmac::Key::new(self.hash.hmac(), stored_key.as_ref()), message.as_bytes());
        let proof: Vec<u8> = client_key.as_ref().iter().zip(signature.as_ref()).map(|(a, b)| a ^ b).collect();
        let key = hmac::Key::new(self.hash.hmac(), hmac::sign(&salted, b"Server Key").as_ref());
        self.awaited = Awaited::Signature { key, message };
        Ok(format!("{last},p={}", STANDARD.encode(proof)).into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NONCE: &str = "rOprNGfwEbeRWgbNEkqO";
    const CHALLENGE: &str =
        "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";
    const SIGNATURE: &str = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";

    fn scram(password: &str) -> Scram {
        Scram::new(Hash::Sha256, "user", Secret::new(password.to_owned()), NONCE.to_owned())
    }

    /// The exchange that RFC 7677 prints in its section 3.
    #[test]
    fn the_exchange_of_the_rfc() {
        let mut scram = scram("pencil");
        assert_eq!(scram.first(), b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let last = scram.next(CHALLENGE.as_bytes()).unwrap().unwrap();
        assert_eq!(
            String::from_utf8(last).unwrap(),
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,\
             p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        );
        assert_eq!(scram.next(SIGNATURE.as_bytes()).unwrap(), None);
        scram.next(SIGNATURE.as_bytes()).unwrap_err();
    }

    #[test]
    fn a_broker_that_does_not_know_the_password_is_found_out() {
        for said in ["v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=", "v=", "v=####", "", "x=1", "v=AAAA"] {
            let mut scram = scram("pencil");
            scram.next(CHALLENGE.as_bytes()).unwrap();
            let why = scram.next(said.as_bytes()).unwrap_err();
            assert!(why.contains("prove"), "{said}: {why}");
        }
        let mut other = scram("other");
        other.next(CHALLENGE.as_bytes()).unwrap();
        other.next(SIGNATURE.as_bytes()).unwrap_err();
    }

    #[test]
    fn a_bad_challenge_is_named() {
        for (said, named) in [
            ("", "challenge"),
            ("m=x,r=a,s=b,i=4096", "challenge"),
            ("r=rOprNGfwEbeRWgbNEkqO,s=AAAA,i=4096", "nonce"),
            ("r=other,s=AAAA,i=4096", "nonce"),
            ("r=rOprNGfwEbeRWgbNEkqOx,s=*,i=4096", "salt"),
            ("r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=4095", "4095"),
            ("r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=131073", "131073"),
            ("r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=-1", "-1"),
            ("e=unknown-user", "unknown-user"),
        ] {
            let why = scram("pencil").next(said.as_bytes()).unwrap_err();
            assert!(why.contains(named), "{said}: {why}");
        }
        scram("pencil").next(b"\xff").unwrap_err();
    }

    #[test]
    fn commas_and_equals_signs_in_a_name_are_escaped() {
        let scram = Scram::new(Hash::Sha512, "a=b,c", Secret::new(String::new()), "x".to_owned());
        assert_eq!(scram.first(), b"n,,n=a=3Db=2Cc,r=x");
    }

    proptest! {
        #[test]
        fn whatever_a_broker_says_is_taken_without_a_panic(said in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut scram = scram("pencil");
            if scram.next(&said).is_ok() {
                let _ = scram.next(&said);
            }
        }
    }
}
