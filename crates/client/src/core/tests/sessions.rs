//! Sessions that the broker ends unless they are renewed, and tokens that are late, wrong or missing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use headrace_wire::errors::ErrorCode;
use headrace_wire::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};

use super::*;
use crate::error::Cause;
use crate::options::Secret;
use crate::sasl::{Token, TokenFailure, TokenSource};

const LIFE_MS: u64 = 10_000;
/// When a world begins.
const START_WALL_MS: i64 = 1_700_000_000_000;
const PLAIN: [(&str, &str); 4] = [
    ("security.protocol", "SASL_PLAINTEXT"),
    ("sasl.mechanism", "PLAIN"),
    ("sasl.username", "alice"),
    ("sasl.password", "hunter2"),
];
const BEARER: [(&str, &str); 2] =
    [("security.protocol", "SASL_PLAINTEXT"), ("sasl.mechanism", "OAUTHBEARER")];

/// A broker whose sessions last for [`LIFE_MS`], and that ends a connection on the first request after.
#[derive(Default)]
struct Strict {
    /// When each connection's session ends; one that logs in has none.
    sessions: BTreeMap<ConnId, u64>,
    /// When each login ended.
    logins: Vec<u64>,
    /// Answers of `DescribeCluster` that are held back.
    held: Vec<(ConnId, Answer)>,
    holds: bool,
    refuses: bool,
}

impl Strict {
    fn answer(&mut self, now: u64, i: &Incoming) -> Answer {
        match i.key {
            ApiKey::ApiVersions => versions(i),
            ApiKey::SaslHandshake => {
                self.sessions.remove(&i.conn);
                i.reply::<SaslHandshakeRequest>(&SaslHandshakeResponse::default())
            }
            ApiKey::SaslAuthenticate => {
                assert!(!self.sessions.contains_key(&i.conn), "a login without its first request");
                if self.refuses {
                    let error_code = ErrorCode::SASL_AUTHENTICATION_FAILED.code();
                    let refusal = SaslAuthenticateResponse { error_code, ..Default::default() };
                    return i.reply::<SaslAuthenticateRequest>(&refusal);
                }
                self.sessions.insert(i.conn, now + LIFE_MS);
                self.logins.push(now);
                i.reply::<SaslAuthenticateRequest>(&SaslAuthenticateResponse {
                    session_lifetime_ms: i64::try_from(LIFE_MS).unwrap(),
                    ..Default::default()
                })
            }
            _ if self.sessions.get(&i.conn).is_none_or(|ends| *ends < now) => Answer::Last(Vec::new()),
            ApiKey::DescribeCluster if self.holds => {
                let answer = healthy(&two_nodes(), i);
                self.held.push((i.conn, answer));
                Answer::Silence
            }
            _ => healthy(&two_nodes(), i),
        }
    }
}

fn run(world: &mut World<Probe>, broker: &mut Strict, ms: u64) {
    let until = world.now.mono_ms + ms;
    while world.now.mono_ms < until {
        // The broker must know the time, so it goes on in small steps.
        let now = world.now.mono_ms;
        world.run(10, &mut |i: &Incoming| broker.answer(now, i));
    }
}

fn ask(world: &mut World<Probe>, broker: &mut Strict, tag: u32) {
    world.command(Do::Call(Target::Node(1), Lane::Coordinator, tag, 5_000));
    run(world, broker, 10);
}

/// A world that knows node 1, and has made one call there.
fn begun(pairs: &[(&str, &str)], broker: &mut Strict) -> World<Probe> {
    let mut world = world_with("localhost:9092", pairs);
    world.command(Do::Want("t"));
    run(&mut world, broker, 20);
    ask(&mut world, broker, 1);
    assert!(ends(&mut world).iter().all(|(_, result)| result.is_ok()));
    world
}

#[test]
fn a_session_is_renewed_in_its_connection_before_it_ends() {
    let mut broker = Strict::default();
    let mut world = begun(&PLAIN, &mut broker);
    let (attempts, logins) = (world.attempts.len(), broker.logins.len());
    let first = *broker.logins.last().unwrap();
    for tag in 2..200 {
        ask(&mut world, &mut broker, tag);
        run(&mut world, &mut broker, 90);
    }
    let ended = ends(&mut world);
    assert!(ended.len() == 198 && ended.iter().all(|(_, result)| result.is_ok()), "{ended:?}");
    assert_eq!(world.attempts.len(), attempts, "no connection was made anew");
    let renewals = &broker.logins[logins..];
    assert_eq!(renewals.len(), 2, "in 20 s of sessions of 10 s");
    let used = renewals[0] - first;
    assert!((8_500..=9_700).contains(&used), "renewed after {used} ms");
}

#[test]
fn an_idle_connection_renews_its_session_when_it_is_used() {
    let mut broker = Strict::default();
    let world = begun(&PLAIN, &mut broker);
    used_after_idling(world, broker);
    // With a token that must be made first, and with one that is at hand.
    for life_ms in [15_000, 600_000] {
        let (source, _) = tokens(life_ms);
        let (mut world, mut broker) = (bearing(&source), Strict::default());
        world.command(Do::Want("t"));
        run(&mut world, &mut broker, 20);
        ask(&mut world, &mut broker, 1);
        ends(&mut world);
        used_after_idling(world, broker);
    }
}

fn used_after_idling(mut world: World<Probe>, mut broker: Strict) {
    let (attempts, logins) = (world.attempts.len(), broker.logins.len());
    run(&mut world, &mut broker, LIFE_MS + LIFE_MS / 2);
    assert_eq!(broker.logins.len(), logins, "nobody asks for anything");
    ask(&mut world, &mut broker, 2);
    let ended = ends(&mut world);
    assert!(ended.len() == 1 && ended[0].1.is_ok(), "{ended:?}");
    assert_eq!((world.attempts.len(), broker.logins.len()), (attempts, logins + 1));
}

#[test]
fn calls_in_flight_are_answered_before_the_renewal_and_later_ones_wait_for_it() {
    for piece in [usize::MAX, 1, 5] {
        let mut broker = Strict::default();
        let mut world = begun(&PLAIN, &mut broker);
        world.piece = piece;
        run(&mut world, &mut broker, 8_000);
        broker.holds = true;
        ask(&mut world, &mut broker, 2);
        ask(&mut world, &mut broker, 3);
        assert_eq!(broker.held.len(), 2);
        run(&mut world, &mut broker, 1_700);
        // Behind the calls in flight the login; a broker answers in order, so this one holds everything back.
        world.log.clear();
        let mut silent = Vec::new();
        world.command(Do::Call(Target::Node(1), Lane::Coordinator, 4, 5_000));
        world.settle(&mut |i: &Incoming| {
            silent.push(i.clone());
            Answer::Silence
        });
        assert_eq!(world.log.iter().map(|l| l.1).collect::<Vec<_>>(), [ApiKey::SaslHandshake]);
        let conn = silent[0].conn;
        for (held, answer) in std::mem::take(&mut broker.held) {
            let Answer::Bytes(bytes) = answer else { panic!("an answer") };
            assert_eq!(held, conn);
            world.push(conn, &bytes);
        }
        broker.holds = false;
        let now = world.now.mono_ms;
        let Answer::Bytes(handshake) = broker.answer(now, &silent[0]) else { panic!("an answer") };
        world.push(conn, &handshake);
        run(&mut world, &mut broker, 10);
        let ended: Vec<u32> =
            ends(&mut world).into_iter().map(|(tag, result)| result.map(|()| tag).unwrap()).collect();
        assert_eq!(ended, [2, 3, 4]);
    }
}

#[test]
fn a_renewal_that_is_refused_or_not_answered_ends_the_connection() {
    let mut broker = Strict::default();
    let mut world = begun(&PLAIN, &mut broker);
    run(&mut world, &mut broker, 9_600);
    broker.refuses = true;
    ask(&mut world, &mut broker, 2);
    let error = ends(&mut world).remove(0).1.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::SASL_AUTHENTICATION_FAILED));

    let mut broker = Strict::default();
    let mut world = begun(&PLAIN, &mut broker);
    run(&mut world, &mut broker, 9_600);
    world.command(Do::Call(Target::Node(1), Lane::Coordinator, 2, 60_000));
    world.run(13_000, &mut |_: &Incoming| Answer::Silence);
    let error = ends(&mut world).remove(0).1.unwrap_err();
    assert!(error.retriable() && error.to_string().contains("authentication"), "{error}");
}

fn token(expires_in_ms: i64) -> Token {
    let expires_ms = Some(START_WALL_MS + expires_in_ms);
    Token { expires_ms, ..Token::new(Secret::new("t".to_owned())) }
}

/// A token that ends `life_ms` after the start, then one that ends as long after it, and so on; and how many were given.
fn tokens(life_ms: i64) -> (TokenSource, Arc<AtomicI64>) {
    let calls = Arc::new(AtomicI64::new(0));
    let counted = calls.clone();
    let next = move || Ok(token(life_ms * (counted.fetch_add(1, Ordering::Relaxed) + 1)));
    (TokenSource::calling(next), calls)
}

fn bearing(source: &TokenSource) -> World<Probe> {
    let pairs = [("bootstrap.servers", "localhost:9092")];
    let pairs = pairs.iter().chain(&BEARER).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let mut config = CommonConfig::from_pairs(pairs).unwrap();
    config.take_tokens_from("oauth_cb", source.clone()).unwrap();
    let engine =
        Probe { core: Core::new(&config, false, 42), ended: VecDeque::new(), sink: Taken::default() };
    let mut world = World::new(engine);
    world.tokens = source.clone();
    world
}

#[test]
fn a_token_serves_all_connections_and_sessions_until_it_is_old() {
    let (source, calls) = tokens(30_000);
    let (mut world, mut broker) = (bearing(&source), Strict::default());
    world.command(Do::Want("t"));
    run(&mut world, &mut broker, 20);
    for tag in 0..400 {
        ask(&mut world, &mut broker, tag);
        run(&mut world, &mut broker, 90);
    }
    let ended = ends(&mut world);
    assert!(ended.len() == 400 && ended.iter().all(|(_, result)| result.is_ok()), "{ended:?}");
    assert!(broker.logins.len() >= 6, "two connections, and one of them renewed four times");
    assert_eq!(calls.load(Ordering::Relaxed), 2, "in 40 s, with tokens that are old after 24 s");
}

#[test]
fn a_function_that_fails_from_the_start_ends_calls_at_once_with_its_cause() {
    let cause = Cause::new("an exception");
    let failure = TokenFailure { why: "ValueError: no secret".to_owned(), cause: Some(cause.clone()) };
    let mut world = bearing(&TokenSource::calling(move || Err(failure.clone())));
    let mut broker = Strict::default();
    world.command(Do::Call(Target::Any, Lane::Control, 1, 30_000));
    run(&mut world, &mut broker, 10);
    let error = ends(&mut world).remove(0).1.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("localhost:9092") && text.contains("ValueError: no secret"), "{text}");
    assert!(matches!(error, Error::Login { cause: Some(reported), .. } if reported == cause));
    assert!(broker.logins.is_empty());
}

#[test]
fn a_function_that_fails_later_is_asked_again_while_its_old_token_serves() {
    let (calls, down) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(true)));
    let (counted, is_down) = (calls.clone(), down.clone());
    let source = TokenSource::calling(move || match counted.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(token(15_000)),
        _ if is_down.load(Ordering::Relaxed) => Err("the issuer is down".to_owned().into()),
        _ => Ok(token(600_000)),
    });
    let (mut world, mut broker) = (bearing(&source), Strict::default());
    world.command(Do::Want("t"));
    run(&mut world, &mut broker, 20);
    // The session that is renewed at 9 s outlives the token, which is old from 12 s on and expired from 15 s on.
    for _ in 0..175 {
        ask(&mut world, &mut broker, 1);
        run(&mut world, &mut broker, 90);
    }
    let ended = ends(&mut world);
    assert!(ended.iter().all(|(_, result)| result.is_ok()), "{ended:?}");
    // Now it is over. What fails for want of a token may pass.
    run(&mut world, &mut broker, 5_000);
    for _ in 0..3 {
        ask(&mut world, &mut broker, 2);
        run(&mut world, &mut broker, 2_000);
    }
    let ended = ends(&mut world);
    assert!(ended.iter().all(|(_, result)| result.as_ref().is_err_and(Error::retriable)), "{ended:?}");
    assert!(calls.load(Ordering::Relaxed) >= 4, "it is asked again and again");
    down.store(false, Ordering::Relaxed);
    run(&mut world, &mut broker, 6_000);
    ends(&mut world);
    ask(&mut world, &mut broker, 3);
    run(&mut world, &mut broker, 2_000);
    let ended = ends(&mut world);
    assert!(ended.len() == 1 && ended[0].1.is_ok(), "{ended:?}");
}

#[test]
fn a_function_that_never_answers_is_bounded_by_the_time_to_connect() {
    let (source, _) = tokens(30_000);
    let (mut world, mut broker) = (bearing(&source), Strict::default());
    world.silent_tokens = true;
    world.command(Do::Call(Target::Any, Lane::Control, 1, 15_000));
    run(&mut world, &mut broker, 16_000);
    assert!(world.attempts.len() >= 2, "the first was given up after socket.connection.setup.timeout.ms");
    let error = ends(&mut world).remove(0).1.unwrap_err();
    assert!(matches!(&error, Error::Timeout { .. }) && error.to_string().contains("oauth_cb"), "{error}");
}

#[test]
fn a_token_that_comes_late_for_a_renewal_holds_no_call_up_before_the_session_ends() {
    let (source, _) = tokens(9_000);
    let (mut world, mut broker) = (bearing(&source), Strict::default());
    world.command(Do::Want("t"));
    run(&mut world, &mut broker, 20);
    ask(&mut world, &mut broker, 1);
    world.silent_tokens = true;
    run(&mut world, &mut broker, 9_700);
    let (attempts, logins) = (world.attempts.len(), broker.logins.len());
    ask(&mut world, &mut broker, 2);
    assert!(ends(&mut world).iter().all(|(_, result)| result.is_ok()), "the session has not ended yet");
    run(&mut world, &mut broker, 300);
    ask(&mut world, &mut broker, 3);
    assert!(ends(&mut world).is_empty(), "now it waits: the broker would end the connection");
    source.renew(world.now.wall_ms);
    let conns = world.open_conns();
    for conn in conns {
        world.channel(conn, ChannelEvent::TokenRenewed);
    }
    run(&mut world, &mut broker, 10);
    let ended = ends(&mut world);
    assert!(ended.len() == 1 && ended[0].0 == 3 && ended[0].1.is_ok(), "{ended:?}");
    assert_eq!((world.attempts.len(), broker.logins.len()), (attempts, logins + 1));
}

#[test]
fn a_token_that_the_broker_refuses_is_not_shown_again() {
    let (source, calls) = tokens(600_000);
    let (mut world, mut broker) = (bearing(&source), Strict { refuses: true, ..Strict::default() });
    world.command(Do::Call(Target::Any, Lane::Control, 1, 5_000));
    run(&mut world, &mut broker, 10);
    let error = ends(&mut world).remove(0).1.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::SASL_AUTHENTICATION_FAILED));
    broker.refuses = false;
    run(&mut world, &mut broker, 2_000);
    world.command(Do::Call(Target::Any, Lane::Control, 2, 5_000));
    run(&mut world, &mut broker, 2_000);
    assert!(ends(&mut world).remove(0).1.is_ok());
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}
