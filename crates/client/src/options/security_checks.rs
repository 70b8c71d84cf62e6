//! Which options of TLS and SASL need or exclude each other.

use headrace_options::{Kind, OptionValue, Values};

use super::security::{Mechanism, Secret};
use super::table::{CommonConfig, MECHANISMS};
use crate::error::{Error, Result};
use crate::sasl::TokenSource;

impl OptionValue for TokenSource {
    fn from_text(text: Option<&str>, _: Kind) -> Option<Self> {
        let fixed = text.map(|text| Self::fixed(Secret::new(text.trim().to_owned())));
        Some(fixed.unwrap_or_default())
    }
}

impl CommonConfig {
    /// What SASL needs beside `security.protocol`. A token may still come from a function, see
    /// [`Self::check_token`].
    pub(super) fn check_security(&self, values: &Values) -> Result<()> {
        let protocol = self.security_protocol;
        if values.given("ssl.key.password") && self.ssl_certificate_location.is_none() {
            return Err(Error::config("ssl.key.password", "it needs ssl.certificate.location"));
        }
        if !protocol.uses_sasl() {
            // Credentials that are never sent are more often a slip than a wish.
            const IDLE: [&str; 5] = [
                "sasl.mechanism",
                "sasl.username",
                "sasl.password",
                "sasl.oauthbearer.token",
                "sasl.oauthbearer.config",
            ];
            return match IDLE.into_iter().find(|name| values.given(name)) {
                Some(name) => Err(Error::config(name, self.needs_sasl())),
                None => Ok(()),
            };
        }
        let Some(mechanism) = self.sasl_mechanism else {
            let why =
                format!("security.protocol={} needs it; it takes {}", protocol.name(), MECHANISMS.join(", "));
            return Err(Error::config("sasl.mechanism", why));
        };
        if mechanism == Mechanism::OAuthBearer {
            return Ok(());
        }
        for (name, given) in [
            ("sasl.username", self.sasl_username.is_some()),
            ("sasl.password", !self.sasl_password.expose().is_empty()),
        ] {
            if !given {
                return Err(Error::config(name, format!("sasl.mechanism={} needs it", mechanism.name())));
            }
        }
        if mechanism == Mechanism::Plain
            && self.sasl_username.as_ref().is_some_and(|name| name.contains('\0'))
        {
            return Err(Error::config("sasl.username", "it has a zero byte, which PLAIN cannot carry"));
        }
        Ok(())
    }

    fn needs_sasl(&self) -> String {
        let protocol = self.security_protocol.name();
        format!("it needs security.protocol=SASL_SSL or SASL_PLAINTEXT, not {protocol}")
    }

    /// Takes the tokens for OAUTHBEARER from a function. `option` is what the caller calls it.
    pub fn take_tokens_from(&mut self, option: &str, source: TokenSource) -> Result<()> {
        let why = if !self.security_protocol.uses_sasl() {
            self.needs_sasl()
        } else if self.sasl_mechanism != Some(Mechanism::OAuthBearer) {
            "it needs sasl.mechanism=OAUTHBEARER".to_owned()
        } else if self.sasl_oauthbearer_token.is_given() {
            "there is a token already, of sasl.oauthbearer.token".to_owned()
        } else {
            self.sasl_oauthbearer_token = source;
            return Ok(());
        };
        Err(Error::config(option, why))
    }

    /// Whether there is a token where one is needed; asked when a client starts.
    pub fn check_token(&self) -> Result<()> {
        let needed =
            self.security_protocol.uses_sasl() && self.sasl_mechanism == Some(Mechanism::OAuthBearer);
        if needed && !self.sasl_oauthbearer_token.is_given() {
            let why = "sasl.mechanism=OAUTHBEARER needs it, or oauth_cb: a function that gives tokens";
            return Err(Error::config("sasl.oauthbearer.token", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(given: &[(&str, &str)]) -> Result<CommonConfig> {
        let servers = [("bootstrap.servers", "k:9092")];
        CommonConfig::from_pairs(servers.iter().chain(given).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())))
    }

    fn refused(given: &[(&str, &str)]) -> (String, String) {
        match common(given) {
            Err(Error::Config { option, why }) => (option, why),
            other => panic!("{given:?}: {other:?}"),
        }
    }

    const SASL: (&str, &str) = ("security.protocol", "sasl_plaintext");

    #[test]
    fn every_protocol_and_mechanism_that_is_offered_is_taken() {
        for name in crate::options::table::PROTOCOLS {
            let given = [
                ("security.protocol", *name),
                ("sasl.mechanism", "PLAIN"),
                ("sasl.username", "u"),
                ("sasl.password", "p"),
            ];
            let with_sasl = name.starts_with("SASL");
            let config = common(if with_sasl { &given } else { &given[..1] }).unwrap();
            assert_eq!(config.security_protocol.name(), *name);
            assert_eq!(config.security_protocol.uses_sasl(), with_sasl);
            assert_eq!(config.security_protocol.uses_tls(), name.ends_with("SSL"));
        }
        for name in MECHANISMS {
            let given = [SASL, ("sasl.mechanism", *name), ("sasl.username", "u"), ("sasl.password", "p")];
            assert_eq!(common(&given).unwrap().sasl_mechanism.unwrap().name(), *name);
        }
    }

    #[test]
    fn what_belongs_together_is_asked_for_by_name() {
        for (given, option, why) in [
            (&[SASL][..], "sasl.mechanism", "SCRAM-SHA-512"),
            (&[SASL, ("sasl.mechanism", "PLAIN")], "sasl.username", "PLAIN"),
            (&[SASL, ("sasl.mechanism", "PLAIN"), ("sasl.username", "u")], "sasl.password", "PLAIN"),
            (&[SASL, ("sasl.mechanism", "GSSAPI")], "sasl.mechanism", "OAUTHBEARER"),
            (&[("sasl.password", "hunter2")], "sasl.password", "SASL_SSL"),
            (&[("sasl_username", "u")], "sasl.username", "not PLAINTEXT"),
            (&[("sasl.oauthbearer.config", "hunter2")], "sasl.oauthbearer.config", "SASL_SSL"),
            (&[("ssl.key.password", "hunter2")], "ssl.key.password", "ssl.certificate.location"),
            (&[SASL, ("sasl.oauthbearer.method", "oidc")], "sasl.oauthbearer.method", "oauth_cb"),
            (
                &[SASL, ("sasl.oauthbearer.client.secret", "hunter2")],
                "sasl.oauthbearer.client.secret",
                "oauth_cb",
            ),
            (&[SASL, ("sasl.jaas.config", "password=hunter2;")], "sasl.jaas.config", "sasl.password"),
            (&[("security.protocol", "TLS")], "security.protocol", "PLAINTEXT"),
        ] {
            let (named, text) = refused(given);
            assert!(named == option && text.contains(why) && !text.contains("hunter2"), "{named}: {text}");
        }
    }

    #[test]
    fn tokens_of_a_function_are_taken_where_they_are_used() {
        let source = TokenSource::calling(|| Err("never asked".to_owned().into()));
        let bearer = [SASL, ("sasl.mechanism", "OAUTHBEARER"), ("sasl.oauthbearer.token", "t")];
        let mut good = common(&bearer[..2]).unwrap();
        good.take_tokens_from("oauth_cb", source.clone()).unwrap();
        good.check_token().unwrap();
        assert_eq!(good.sasl_oauthbearer_token, source);
        let plain = [SASL, ("sasl.mechanism", "PLAIN"), ("sasl.username", "u"), ("sasl.password", "p")];
        for (given, said) in
            [(&[][..], "SASL_SSL"), (&plain[..], "OAUTHBEARER"), (&bearer[..], "sasl.oauthbearer.token")]
        {
            let error = common(given).unwrap().take_tokens_from("oauth_cb", source.clone()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("oauth_cb") && text.contains(said), "{text}");
        }
    }

    #[test]
    fn a_token_is_asked_for_when_the_client_starts() {
        let without = common(&[SASL, ("sasl.mechanism", "OAUTHBEARER")]).unwrap();
        assert!(
            matches!(without.check_token(), Err(Error::Config { option, .. }) if option == "sasl.oauthbearer.token")
        );
        let with =
            common(&[SASL, ("sasl.mechanism", "OAUTHBEARER"), ("sasl.oauthbearer.token", "t")]).unwrap();
        with.check_token().unwrap();
        common(&[]).unwrap().check_token().unwrap();
    }
}
