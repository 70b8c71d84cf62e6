//! The same bytes from Kafka's own classes: `java/Recode.java` reads what we write, and writes it again.

use crate::classpath::classpath;
use headrace_wire::direct::FIRST_PRIVATE_KEY;
use headrace_wire::errors::{Remedy, TABLE};
use headrace_wire::frame;
use headrace_wire::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, FetchRequest, FetchResponse, Message, Request,
    fetch_response,
};
use headrace_wire::testing::{Arbitrary, CASES, Case, Filler};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

/// Arbitrary messages of each version of each message.
const SEEDS: u64 = 20;

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Answers of the Java program, a line for each question.
fn ask_java(test: &str, questions: &[String]) -> Vec<String> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.txt"));
    fs::write(&path, questions.join("\n") + "\n").unwrap();
    let output = Command::new("java")
        .arg("-cp")
        .arg(classpath())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/java/Recode.java"))
        .stdin(File::open(&path).unwrap())
        .stderr(Stdio::piped())
        .output()
        .expect("java (17 or newer) must be on the PATH");
    assert!(output.status.success(), "java: {}", String::from_utf8_lossy(&output.stderr));
    let answers: Vec<String> =
        String::from_utf8(output.stdout).unwrap().lines().map(ToOwned::to_owned).collect();
    assert_eq!(answers.len(), questions.len());
    answers
}

/// The messages that Kafka has as well.
fn kafkas() -> impl Iterator<Item = &'static Case> {
    let ours = |case: &Case| {
        let mut private = ApiKey::ALL.iter().filter(|key| key.code() >= FIRST_PRIVATE_KEY);
        private.any(|key| case.name.strip_prefix(key.name()).is_some_and(|rest| rest.starts_with("Re")))
    };
    assert_eq!(CASES.iter().filter(|case| ours(case)).count(), 10, "requests and responses of five");
    CASES.iter().filter(move |case| !ours(case))
}

#[test]
fn java_reads_and_writes_the_same_bytes() {
    let mut questions = Vec::new();
    let mut expected = Vec::new();
    for case in kafkas() {
        for version in case.versions.min..=case.versions.max {
            for seed in 0..SEEDS {
                let bytes = hex(&case.encode(version, seed).unwrap().to_bytes().unwrap());
                questions.push(format!("message {} {version} {bytes}", case.name));
                expected.push(bytes);
            }
        }
    }
    assert!(questions.len() > 6000);
    for ((question, expected), answer) in
        questions.iter().zip(&expected).zip(ask_java("messages", &questions))
    {
        assert_eq!(&answer, expected, "{question}");
    }
}

#[test]
fn java_has_the_same_defaults() {
    let mut questions = Vec::new();
    let mut expected = Vec::new();
    for case in kafkas() {
        for version in case.versions.min..=case.versions.max {
            questions.push(format!("default {} {version}", case.name));
            expected.push(case.encode_default(version).unwrap().to_bytes().unwrap());
        }
    }
    for ((question, expected), answer) in
        questions.iter().zip(&expected).zip(ask_java("defaults", &questions))
    {
        assert_eq!(answer, hex(expected), "{question}");
    }
}

fn request_questions<R: Request + Arbitrary>(asked: &mut Vec<(String, String)>)
where
    R::Response: Arbitrary,
{
    for version in R::VERSIONS.min..=R::VERSIONS.max {
        let filler = &mut Filler::new(u64::from(version.unsigned_abs()));
        let client = ["headrace", "é"][usize::from(version % 2 == 0)];
        let key = R::KEY.code();
        let request = R::arbitrary(version, filler);
        let frame = frame::encode_request(version, 7, Some(client), &request).unwrap().to_bytes().unwrap();
        let frame = hex(&frame[frame::SIZE_BYTES..]);
        asked.push((format!("request {frame}"), format!("{key} {version} 7 {client} {frame}")));

        let response = R::Response::arbitrary(version, filler);
        let frame = frame::encode_response::<R>(version, -8, &response).unwrap().to_bytes().unwrap();
        let frame = hex(&frame[frame::SIZE_BYTES..]);
        asked.push((format!("response {key} {version} {frame}"), format!("-8 {frame}")));
    }
}

#[test]
fn java_reads_and_writes_the_same_frames() {
    let mut asked = Vec::new();
    request_questions::<ApiVersionsRequest>(&mut asked);
    request_questions::<FetchRequest>(&mut asked);
    let (questions, expected): (Vec<String>, Vec<String>) = asked.into_iter().unzip();
    for ((question, expected), answer) in questions.iter().zip(&expected).zip(ask_java("frames", &questions))
    {
        assert_eq!(&answer, expected, "{question}");
    }
    // Both kinds of response header were seen.
    assert_ne!(ApiVersionsResponse::VERSIONS, FetchResponse::VERSIONS);
}

/// Tagged fields of a newer peer, which we do not know, are passed over by both sides.
#[test]
fn java_and_we_pass_over_unknown_tags() {
    let partition = fetch_response::PartitionData { partition_index: 5, ..Default::default() };
    let topic = fetch_response::FetchableTopicResponse { partitions: vec![partition], ..Default::default() };
    let message = FetchResponse { responses: vec![topic], ..FetchResponse::default() };
    let plain = message.to_encoded(16).unwrap().to_bytes().unwrap();
    let (last, head) = plain.split_last().unwrap();
    assert_eq!(*last, 0, "no tagged field at the end");
    let tagged = [head, &[2, 90, 3, 1, 2, 3, 0x80, 0x80, 4, 0]].concat();
    let case = CASES.iter().find(|case| case.name == "FetchResponse").unwrap();
    assert_eq!(case.recode(16, tagged.clone().into()).unwrap().encoded.unwrap().to_bytes().unwrap(), plain);
    // Java keeps unknown tags and writes them again.
    let question = format!("message FetchResponse 16 {}", hex(&tagged));
    assert_eq!(ask_java("tags", &[question]), [hex(&tagged)]);
}

#[test]
fn java_has_the_same_errors() {
    let answers = ask_java("errors", &["errors".to_owned()]);
    let theirs: Vec<&str> = answers[0].split(' ').collect();
    let ours: Vec<String> = TABLE
        .iter()
        .map(|row| {
            let remedy = match row.remedy {
                Remedy::RetryWithMetadata => "metadata",
                Remedy::Retry | Remedy::RetryWithCoordinator => "retry",
                _ => "other",
            };
            format!("{},{},{remedy}", row.code.code(), row.name)
        })
        .collect();
    assert_eq!(ours, theirs);
}

#[test]
fn java_writes_ids_the_same_way() {
    let filler = &mut Filler::new(1);
    let ids: Vec<_> = (0..200).map(|_| filler.uuid()).collect();
    let questions: Vec<String> = ids.iter().map(|id| format!("uuid {}", hex(&id.0))).collect();
    for (id, answer) in ids.iter().zip(ask_java("uuids", &questions)) {
        assert_eq!(id.to_string(), answer);
        assert_eq!(answer.parse(), Ok(*id));
    }
}
