//! Compares `messages/*.msg` with the schemas inside Kafka's own jars, for every version claimed.

use crate::jar::{self, Jar};
use crate::parse::{Field, Kind, Message, Type, Versions, parse_dir};
use headrace_wire::direct::FIRST_PRIVATE_KEY;
use serde_json::Value;
use std::path::Path;

/// Fields of one struct in one version, as lines that say all that matters on the wire.
type Lines = Vec<String>;

#[test]
fn schemas_agree_with_kafka() {
    let files = parse_dir(&Path::new(env!("CARGO_MANIFEST_DIR")).join("messages")).unwrap();
    let mut jars = jar::jars();
    let mut differences = Vec::new();
    let mut versions = 0;
    // Kafka has no schemas for what is headrace's own.
    let kafkas = |message: &&Message| message.key.is_none_or(|key| key < FIRST_PRIVATE_KEY);
    for message in files.iter().flat_map(|file| &file.messages).filter(kafkas) {
        let schema = schema(&mut jars, &message.name);
        compare_heads(message, &schema, &mut differences);
        for version in message.versions.min..=message.versions.max {
            let (mut ours, mut theirs) = (Lines::new(), Lines::new());
            our_fields(message, &message.fields, version, "", &mut ours);
            their_fields(&schema, &schema["fields"], version, "", &mut theirs);
            if ours != theirs {
                let only =
                    |a: &Lines, b: &Lines| a.iter().filter(|l| !b.contains(l)).cloned().collect::<Lines>();
                differences.push(format!(
                    "{} {version}: only ours {:#?}, only Kafka's {:#?} (if both are empty, the order differs)",
                    message.name,
                    only(&ours, &theirs),
                    only(&theirs, &ours)
                ));
            }
            assert!(!ours.is_empty() || message.fields.is_empty() || message.name.contains("Request"));
            versions += 1;
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(versions > 300, "only {versions} versions compared");
}

fn schema(jars: &mut [Jar], name: &str) -> Value {
    let text = jar::resource(jars, &format!("common/message/{name}.json"));
    // The schemas are JSON with comments on lines of their own.
    let json: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    serde_json::from_str(&json).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn compare_heads(message: &Message, schema: &Value, differences: &mut Vec<String>) {
    let mut check = |what: &str, ours: String, theirs: String| {
        if ours != theirs {
            differences.push(format!("{}: {what}: ours {ours}, Kafka's {theirs}", message.name));
        }
    };
    let mut valid = versions(&schema["validVersions"]);
    if schema["latestVersionUnstable"] == true || message.name == "InitProducerIdResponse" {
        valid.max -= 1;
    }
    if message.name.starts_with("AddPartitionsToTxn") {
        // Later versions are spoken between brokers, and name the same struct in other places.
        valid.max = 3;
    }
    check("versions", format!("{:?}", message.versions), format!("{valid:?}"));
    let flexible = versions(&schema["flexibleVersions"]).intersect(valid);
    for version in valid.min..=valid.max {
        check(
            "flexible",
            format!("{version} {}", message.flexible.contains(version)),
            format!("{version} {}", flexible.contains(version)),
        );
    }
    let kind = match message.kind {
        Kind::Request => "request",
        Kind::Response => "response",
        // Kafka has several kinds of data.
        Kind::Data => schema["type"].as_str().unwrap(),
    };
    check("type", kind.to_owned(), schema["type"].as_str().unwrap().to_owned());
    if message.kind != Kind::Data {
        check("key", message.key.unwrap().to_string(), schema["apiKey"].to_string());
    }
}

fn versions(value: &Value) -> Versions {
    value.as_str().map_or(Versions::NONE, |text| Versions::parse(text).unwrap())
}

fn our_fields(message: &Message, fields: &[Field], version: i16, path: &str, lines: &mut Lines) {
    for field in fields.iter().filter(|field| field.versions.contains(version)) {
        let path = format!("{path}.{}", field.name);
        lines.push(format!(
            "{path}: {} nullable {} tag {:?} default {} ignorable {}",
            our_type(&field.ty),
            field.nullable.contains(version),
            field.tag.map(u64::from),
            our_default(field),
            field.ignorable
        ));
        if let Some(name) = field.ty.struct_name() {
            let inner = message.structs.iter().find(|inner| inner.name == name).unwrap();
            our_fields(message, &inner.fields, version, &path, lines);
        }
    }
}

fn our_type(ty: &Type) -> String {
    match ty {
        Type::Plain(name) => (*name).to_owned(),
        Type::Struct(name) => name.clone(),
        Type::Array(element) => format!("[]{}", our_type(element)),
    }
}

fn our_default(field: &Field) -> String {
    field.default.clone().unwrap_or_else(|| type_default(&our_type(&field.ty)).to_owned())
}

/// What a field holds whose schema names no default.
fn type_default(ty: &str) -> &'static str {
    match ty {
        "bool" => "false",
        "records" => "null",
        "float64" => "0.0",
        ty if ty.starts_with("int") || ty.starts_with("uint") => "0",
        _ => "",
    }
}

fn their_fields(schema: &Value, fields: &Value, version: i16, path: &str, lines: &mut Lines) {
    for field in
        fields.as_array().unwrap().iter().filter(|field| versions(&field["versions"]).contains(version))
    {
        let name = field["name"].as_str().unwrap();
        // Some schemas begin a field with a small letter; Java makes the same of it.
        let path = format!("{path}.{}{}", name[..1].to_uppercase(), &name[1..]);
        let ty = field["type"].as_str().unwrap();
        let tagged = versions(&field["taggedVersions"]).contains(version);
        lines.push(format!(
            "{path}: {ty} nullable {} tag {:?} default {} ignorable {}",
            versions(&field["nullableVersions"]).contains(version),
            if tagged { field["tag"].as_u64() } else { None },
            their_default(&field["default"], ty),
            field["ignorable"] == true
        ));
        let element = ty.trim_start_matches("[]");
        let common =
            schema["commonStructs"].as_array().and_then(|all| all.iter().find(|s| s["name"] == element));
        if let Some(inner) = field.get("fields").or_else(|| common.map(|common| &common["fields"])) {
            their_fields(schema, inner, version, &path, lines);
        }
    }
}

/// A default in our spelling: no quotes, numbers in decimal.
fn their_default(value: &Value, ty: &str) -> String {
    match value {
        Value::Null => type_default(ty).to_owned(),
        Value::String(text) => match text.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16).unwrap().to_string(),
            None => text.clone(),
        },
        other => other.to_string(),
    }
}
