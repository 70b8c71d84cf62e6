//! Logging in, with brokers that accept, refuse, and lie.

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    ApiVersionsRequest, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
    SaslHandshakeResponse,
};
use proptest::prelude::*;

use super::*;
use crate::testing::{Answer, Incoming, version_list, versions};

pub(super) const PLAIN: [(&str, &str); 4] = [
    ("security.protocol", "SASL_PLAINTEXT"),
    ("sasl.mechanism", "PLAIN"),
    ("sasl.username", "alice"),
    ("sasl.password", "hunter2"),
];

fn token(bytes: &[u8]) -> SaslAuthenticateResponse {
    SaslAuthenticateResponse { auth_bytes: Bytes::copy_from_slice(bytes), ..Default::default() }
}

/// A broker that takes PLAIN from alice, and no request from anybody else.
#[derive(Default)]
pub(super) struct Gate {
    inside: BTreeSet<ConnId>,
}

impl Gate {
    pub(super) fn answer(&mut self, i: &Incoming) -> Answer {
        match i.key {
            ApiKey::ApiVersions => versions(i),
            ApiKey::SaslHandshake => {
                let asked: SaslHandshakeRequest = i.decode();
                assert_eq!((i.version, asked.mechanism.as_str()), (1, "PLAIN"));
                i.reply::<SaslHandshakeRequest>(&SaslHandshakeResponse::default())
            }
            ApiKey::SaslAuthenticate => {
                let asked: SaslAuthenticateRequest = i.decode();
                assert_eq!(&asked.auth_bytes[..], b"\0alice\0hunter2");
                self.inside.insert(i.conn);
                i.reply::<SaslAuthenticateRequest>(&token(b""))
            }
            _ => {
                assert!(self.inside.contains(&i.conn), "{:?} before the login", i.key);
                healthy(&two_nodes(), i)
            }
        }
    }
}

#[test]
fn every_connection_logs_in_before_its_first_call() {
    for piece in [usize::MAX, 1, 7] {
        let mut world = world_with("localhost:9092", &PLAIN);
        world.piece = piece;
        let mut gate = Gate::default();
        world.command(Do::Want("t"));
        world.run(10, &mut |i: &Incoming| gate.answer(i));
        world.command(Do::Call(Target::Node(1), Lane::Control, 1, 5_000));
        world.command(Do::Call(Target::Node(2), Lane::Coordinator, 2, 5_000));
        world.run(10, &mut |i: &Incoming| gate.answer(i));
        let ended = ends(&mut world);
        assert!(ended.len() == 2 && ended.iter().all(|(_, result)| result.is_ok()), "{ended:?}");
        assert!(gate.inside.len() >= 3);
    }
}

/// How a call ends when the answers of the login are these: `None` answers as a good broker does.
fn refused(
    pairs: &[(&str, &str)],
    handshake: &dyn Fn(&Incoming) -> Option<Answer>,
    authenticate: &dyn Fn(&Incoming) -> Option<Answer>,
) -> Error {
    let mut world = world_with("localhost:9092", pairs);
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    let mut broker = |i: &Incoming| match i.key {
        ApiKey::ApiVersions => versions(i),
        ApiKey::SaslHandshake => {
            handshake(i).unwrap_or_else(|| i.reply::<SaslHandshakeRequest>(&SaslHandshakeResponse::default()))
        }
        ApiKey::SaslAuthenticate => {
            authenticate(i).unwrap_or_else(|| i.reply::<SaslAuthenticateRequest>(&token(b"")))
        }
        key => panic!("{key:?} before the login"),
    };
    world.run(10, &mut broker);
    let mut ended = ends(&mut world);
    assert_eq!(ended.len(), 1, "the call ends at once");
    let attempts = world.attempts.len();
    world.run(60_000, &mut broker);
    assert!(world.attempts.len() <= attempts + 1, "nobody asks, so nobody knocks again");
    let error = ended.remove(0).1.unwrap_err();
    let text = error.to_string();
    assert!(!error.retriable() && text.contains("localhost:9092") && !text.contains("hunter2"), "{text}");
    error
}

#[test]
fn a_wrong_password_ends_the_call_at_once_with_the_brokers_words() {
    let error = refused(&PLAIN, &|_| None, &|i| {
        let refusal = SaslAuthenticateResponse {
            error_code: ErrorCode::SASL_AUTHENTICATION_FAILED.code(),
            error_message: Some("Invalid username or password".to_owned()),
            ..Default::default()
        };
        Some(i.reply::<SaslAuthenticateRequest>(&refusal))
    });
    assert_eq!(error.code(), Some(ErrorCode::SASL_AUTHENTICATION_FAILED));
    let text = error.to_string();
    assert!(text.contains("PLAIN: Invalid username or password"), "{text}");
}

#[test]
fn a_mechanism_that_is_not_offered_is_named_with_those_that_are() {
    let error = refused(
        &PLAIN,
        &|i| {
            Some(i.reply::<SaslHandshakeRequest>(&SaslHandshakeResponse {
                error_code: ErrorCode::UNSUPPORTED_SASL_MECHANISM.code(),
                mechanisms: vec!["SCRAM-SHA-256".to_owned(), "GSSAPI".to_owned()],
            }))
        },
        &|_| None,
    );
    assert_eq!(error.code(), Some(ErrorCode::UNSUPPORTED_SASL_MECHANISM));
    assert!(
        error.to_string().contains("offers SCRAM-SHA-256, GSSAPI, and sasl.mechanism is PLAIN"),
        "{error}"
    );
}

#[test]
fn a_listener_without_sasl_is_said_to_be_one() {
    let error = refused(
        &PLAIN,
        &|i| {
            let code = ErrorCode::ILLEGAL_SASL_STATE.code();
            Some(i.reply::<SaslHandshakeRequest>(&SaslHandshakeResponse {
                error_code: code,
                ..Default::default()
            }))
        },
        &|_| None,
    );
    assert!(error.to_string().contains("security.protocol without SASL"), "{error}");
}

#[test]
fn a_broker_that_cannot_prove_itself_by_scram_is_left() {
    let mut scram = PLAIN;
    scram[1].1 = "SCRAM-SHA-256";
    for (said, named) in [(&b""[..], "challenge"), (b"r=x,s=AAAA,i=4096", "nonce"), (b"\xff", "no text")] {
        let error = refused(&scram, &|_| None, &|i| Some(i.reply::<SaslAuthenticateRequest>(&token(said))));
        assert!(matches!(&error, Error::Protocol { why, .. } if why.contains(named)), "{error}");
    }
}

#[test]
fn a_refused_token_is_told_with_what_the_broker_has_against_it() {
    let bearer = [PLAIN[0], ("sasl.mechanism", "OAUTHBEARER"), ("sasl.oauthbearer.token", "abc")];
    let error = refused(&bearer, &|_| None, &|i| {
        let asked: SaslAuthenticateRequest = i.decode();
        if asked.auth_bytes.len() > 1 {
            return Some(i.reply::<SaslAuthenticateRequest>(&token(b"{\"status\":\"invalid_token\"}")));
        }
        assert_eq!(&asked.auth_bytes[..], [1]);
        let refusal = SaslAuthenticateResponse {
            error_code: ErrorCode::SASL_AUTHENTICATION_FAILED.code(),
            ..Default::default()
        };
        Some(i.reply::<SaslAuthenticateRequest>(&refusal))
    });
    assert!(error.to_string().contains("invalid_token"), "{error}");
}

#[test]
fn a_broker_without_sasl_requests_is_too_old() {
    let mut world = world_with("localhost:9092", &PLAIN);
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    world.run(200, &mut |i: &Incoming| {
        let mut list = version_list();
        list.api_keys.retain(|k| k.api_key != ApiKey::SaslHandshake.code());
        i.reply::<ApiVersionsRequest>(&list)
    });
    let error = ends(&mut world).remove(0).1.unwrap_err();
    assert!(error.to_string().contains("SaslHandshake"), "{error}");
}

#[test]
fn a_broker_that_is_silent_about_the_login_is_left_in_time() {
    let mut world = world_with("localhost:9092", &PLAIN);
    world.command(Do::Call(Target::Any, Lane::Control, 1, 120_000));
    let mut broker = |i: &Incoming| if i.key == ApiKey::ApiVersions { versions(i) } else { Answer::Silence };
    world.run(13_000, &mut broker);
    assert!(world.attempts.len() >= 2, "the first was given up after socket.connection.setup.timeout.ms");
    let why = world.engine.core.why_unreachable();
    assert!(why.contains("no answer to the authentication within "), "{why}");
    assert!(!why.contains("ended"), "{why}");
}

#[test]
fn trouble_beneath_the_protocol_ends_a_call_at_once() {
    let mut world = world("localhost:9092");
    world.silent.push(9092);
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    world.settle(&mut |_: &Incoming| Answer::Silence);
    let conn = world.conn_of(9092);
    world.channel(conn, ChannelEvent::Rejected("expired".to_owned()));
    world.settle(&mut |_: &Incoming| Answer::Silence);
    let error = ends(&mut world).remove(0).1.unwrap_err();
    assert!(matches!(&error, Error::Tls { why, .. } if why == "expired") && !error.retriable(), "{error}");
}

proptest! {
    #[test]
    fn no_answer_to_a_login_makes_it_panic_or_pass(
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
        scram in any::<bool>(),
    ) {
        let mut pairs = PLAIN;
        pairs[1].1 = if scram { "SCRAM-SHA-512" } else { "PLAIN" };
        let mut world = world_with("localhost:9092", &pairs);
        world.command(Do::Call(Target::Any, Lane::Control, 1, 1_000));
        world.run(1_500, &mut |i: &Incoming| match i.key {
            ApiKey::ApiVersions => versions(i),
            ApiKey::SaslHandshake => i.reply::<SaslHandshakeRequest>(&SaslHandshakeResponse::default()),
            // SCRAM cannot be passed by chance, and PLAIN only by an answer that is well formed.
            ApiKey::SaslAuthenticate => Answer::Last(bytes.clone()),
            key => panic!("{key:?} before the login"),
        });
        let ended = ends(&mut world);
        prop_assert!(ended.len() == 1 && ended[0].1.is_err());
    }
}
