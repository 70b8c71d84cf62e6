//! Every message in every version: what is written is read back, what is damaged is refused, and no bytes of a peer
//! make a reader panic.

use bytes::Bytes;
use headrace_wire::messages::Message;
use headrace_wire::primitive::DecodeProblem;
use headrace_wire::testing::{CASES, Case, Filler};
use proptest::prelude::*;

fn every_version() -> impl Iterator<Item = (&'static Case, i16)> {
    CASES.iter().flat_map(|case| (case.versions.min..=case.versions.max).map(move |version| (case, version)))
}

#[test]
fn there_are_messages() {
    assert!(CASES.len() > 60, "{}", CASES.len());
    assert!(every_version().count() > 300);
}

#[test]
fn written_messages_are_read_back() {
    for (case, version) in every_version() {
        for seed in 0..50 {
            if let Err(problem) = case.round_trip(version, seed) {
                panic!("{} {version}, seed {seed}: {problem}", case.name);
            }
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for (case, version) in every_version() {
        for seed in 0..10 {
            let whole = case.encode(version, seed).unwrap().to_bytes().unwrap();
            for len in 0..whole.len() {
                let cut = case.recode(version, whole.slice(..len));
                let error = cut.expect_err(&format!(
                    "{} {version}, seed {seed}, {len} of {}",
                    case.name,
                    whole.len()
                ));
                assert!(
                    matches!(
                        error.problem,
                        DecodeProblem::Truncated { needed: 1.. } | DecodeProblem::CountTooLarge(_)
                    ),
                    "{error}"
                );
                assert!(error.field.starts_with(case.name), "{}", error.field);
                assert!(error.offset <= len);
            }
        }
    }
}

#[test]
fn damage_gives_an_error_or_another_message() {
    for (case, version) in every_version() {
        for seed in 0..10 {
            let mut bytes = case.encode(version, seed).unwrap().to_bytes().unwrap().to_vec();
            if bytes.is_empty() {
                continue;
            }
            let mut random = Filler::new(seed);
            for _ in 0..30 {
                let place = usize::try_from(random.below(bytes.len() as u64)).unwrap();
                let before = std::mem::replace(&mut bytes[place], random.int());
                read_and_write(case, version, bytes.clone().into());
                bytes[place] = before;
            }
        }
    }
}

/// Reads bytes of any origin; what was read must be writable, and reading that again must change nothing.
fn read_and_write(case: &Case, version: i16, bytes: Bytes) {
    let Ok(read) = case.recode(version, bytes) else { return };
    // Strings above 32,767 bytes can be read in the compact form but not be written.
    let Ok(encoded) = read.encoded else { return };
    let first = encoded.to_bytes().unwrap();
    let again = case.recode(version, first.clone()).unwrap();
    assert_eq!(again.left, 0, "{} {version}", case.name);
    assert_eq!(again.encoded.unwrap().to_bytes().unwrap(), first, "{} {version}", case.name);
}

#[test]
fn versions_not_claimed_are_refused() {
    for case in CASES {
        for version in [i16::MIN, case.versions.min - 1, case.versions.max + 1, i16::MAX] {
            let error = case.recode(version, Bytes::from_static(&[0; 64])).unwrap_err();
            assert_eq!(error.problem, DecodeProblem::UnsupportedVersion(version));
            assert!(case.encode(version, 1).is_err());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_seed_round_trips(seed: u64, at: prop::sample::Index) {
        let all: Vec<_> = every_version().collect();
        let (case, version) = all[at.index(all.len())];
        prop_assert_eq!(case.round_trip(version, seed), Ok(()), "{} {}", case.name, version);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let bytes = Bytes::from(bytes);
        for (case, version) in every_version() {
            read_and_write(case, version, bytes.clone());
        }
    }

    /// Small numbers make counts and lengths that are believed, so the reader gets further.
    #[test]
    fn random_small_bytes_never_panic(bytes in prop::collection::vec(0_u8..4, 0..600)) {
        let bytes = Bytes::from(bytes);
        for (case, version) in every_version() {
            read_and_write(case, version, bytes.clone());
        }
    }
}

/// A field that a version lacks is an error if it holds something, unless the schema lets it be left out.
#[test]
fn fields_that_a_version_lacks() {
    use headrace_wire::messages::{FetchRequest, MetadataRequest, MetadataResponse};
    use headrace_wire::primitive::EncodeProblem;

    let not_auto = MetadataRequest { allow_auto_topic_creation: false, ..MetadataRequest::default() };
    let error = not_auto.to_encoded(3).unwrap_err();
    assert_eq!(error.field, "MetadataRequest.AllowAutoTopicCreation");
    assert_eq!(error.problem, EncodeProblem::NotInVersion(3));
    assert!(not_auto.to_encoded(4).is_ok());

    let all_topics = MetadataRequest { topics: None, ..MetadataRequest::default() };
    assert_eq!(all_topics.to_encoded(0).unwrap_err().problem, EncodeProblem::NullInVersion(0));
    assert!(all_topics.to_encoded(1).is_ok());

    let ignorable = MetadataResponse { cluster_id: Some("c".to_owned()), ..MetadataResponse::default() };
    assert!(ignorable.to_encoded(0).is_ok());

    let mut tagged = FetchRequest::default();
    tagged.replica_state.replica_id = 3;
    assert_eq!(tagged.to_encoded(14).unwrap_err().field, "FetchRequest.ReplicaState");
    assert!(tagged.to_encoded(15).is_ok());
}
