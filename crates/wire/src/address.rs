//! A server's host and port as text: how they are printed, and what a host may be.

use std::fmt;

/// Shows `host:port` as `bootstrap.servers` takes it: an IPv6 address stands in brackets. See [`ShownHost`].
#[derive(Debug, Clone, Copy)]
pub struct HostPort<'a> {
    /// Host name or address, without the brackets of an IPv6 address.
    pub host: &'a str,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for HostPort<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (ShownHost(self.host), self.port);
        if host.bare().contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Shows a host that may come from a peer: control characters are escaped, so that it stays within its line, and what
/// stands before an `@` is left out, since it may be a password.
#[derive(Debug, Clone, Copy)]
pub struct ShownHost<'a>(pub &'a str);

impl<'a> ShownHost<'a> {
    fn bare(self) -> &'a str {
        self.0.rsplit_once('@').map_or(self.0, |(_, host)| host)
    }
}

impl fmt::Display for ShownHost<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bare().chars().try_for_each(|c| {
            if c.is_control() { write!(f, "{}", c.escape_default()) } else { fmt::Write::write_char(f, c) }
        })
    }
}

/// Why a text is no host. The message never has the host, whose user info may be a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It has user info, as in a URL.
    #[error("what stands before '@' (not shown here) does not belong in an address")]
    UserInfo,
    /// It has a character that no host has.
    #[error("a host name or address has no {0:?}")]
    Character(char),
}

/// Checks a host name, or an address without brackets: letters, digits, `-`, `.`, `_`, `:` and `%` (the zone of an IPv6
/// address). It may be empty.
///
/// # Errors
/// [`HostError`] says what does not belong there.
pub fn check_host(host: &str) -> Result<(), HostError> {
    if has_user_info(host) {
        return Err(HostError::UserInfo);
    }
    let odd = host.chars().find(|c| !c.is_alphanumeric() && !"-._:%".contains(*c));
    odd.map_or(Ok(()), |c| Err(HostError::Character(c)))
}

/// Whether a text may have a name or password in it, as in `user:password@host`. The `@` may be escaped as in a URL.
#[must_use]
pub fn has_user_info(text: &str) -> bool {
    text.contains('@') || text.contains("%40")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(host: &str) -> String {
        HostPort { host, port: 1 }.to_string()
    }

    #[test]
    fn ipv6_addresses_stand_in_brackets() {
        assert_eq!(shown("::1"), "[::1]:1");
        assert_eq!(shown("fe80::1%eth0"), "[fe80::1%eth0]:1");
        assert_eq!(shown("kafka-1.example"), "kafka-1.example:1");
        assert_eq!(shown("127.0.0.1"), "127.0.0.1:1");
    }

    #[test]
    fn a_host_neither_ends_its_line_nor_shows_a_password() {
        assert_eq!(shown("a\nb\u{1b}[0m\u{85}"), "a\\nb\\u{1b}[0m\\u{85}:1");
        assert_eq!(shown("alice:hunter2@k"), "k:1");
        assert_eq!(shown("alice:hun@ter2@::1"), "[::1]:1");
    }

    #[test]
    fn hosts_are_checked() {
        for good in ["k", "kafka_1.a-b.example", "127.0.0.1", "::1", "fe80::1%eth0", "bücher.example", ""] {
            assert_eq!(check_host(good), Ok(()), "{good}");
        }
        for c in
            ['\n', '\r', '\t', '\0', ' ', '\u{a0}', '\u{2028}', '\u{202e}', '/', '[', '?', '#', '\'', '\\']
        {
            assert_eq!(check_host(&format!("a{c}b")), Err(HostError::Character(c)));
        }
        for user in ["alice:hunter2@k", "alice@k", "alice:hunter2%40k", "@"] {
            assert_eq!(check_host(user), Err(HostError::UserInfo), "{user}");
        }
        assert_eq!(HostError::Character('\n').to_string(), "a host name or address has no '\\n'");
    }
}
