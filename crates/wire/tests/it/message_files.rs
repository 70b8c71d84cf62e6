//! The notation of `messages/*.msg`: what it means, and what it refuses.

use crate::parse::{Kind, Type, Versions, parse};

/// A file with these lines in its request.
fn file(fields: &str) -> String {
    format!("# Doc.\napi X key 1 versions 2-9 flexible 5+\nrequest {{\n{fields}\n}}\nresponse {{\n}}\n")
}

#[test]
fn fields_say_all_of_the_schema() {
    let text = file("A: []B?6+ 3-8 = null ignorable { # why\nC: int32 5+ tag 2 = -1\n}\nD: []B 4");
    let messages = parse(&text).unwrap().messages;
    assert_eq!(messages.iter().map(|m| m.kind).collect::<Vec<_>>(), [Kind::Request, Kind::Response]);
    let request = &messages[0];
    assert_eq!((request.name.as_str(), request.key, request.doc.as_str()), ("XRequest", Some(1), "Doc."));
    assert_eq!(request.flexible, Versions { min: 5, max: 9 });
    let [a, d] = request.fields.as_slice() else { panic!("{request:?}") };
    assert_eq!(a.ty, Type::Array(Box::new(Type::Struct("B".to_owned()))));
    assert_eq!((a.versions, a.nullable), (Versions { min: 3, max: 8 }, Versions { min: 6, max: 8 }));
    assert_eq!((a.default.as_deref(), a.ignorable, a.doc.as_deref()), (Some("null"), true, Some("why")));
    assert_eq!(d.versions, Versions { min: 4, max: 4 });
    let [b] = request.structs.as_slice() else { panic!("{request:?}") };
    // Clipped to the versions of the field that defines the struct.
    assert_eq!(b.fields[0].versions, Versions { min: 5, max: 8 });
    assert_eq!((b.fields[0].tag, b.fields[0].default.as_deref()), (Some(2), Some("-1")));
}

#[test]
fn mistakes_are_refused_with_their_line() {
    for (fields, complaint) in [
        ("A int32", "4: expected `Name: type`"),
        ("A: int32\nA: int32", "5: a second field of this name"),
        ("A: Unknown", "4: an unknown type"),
        ("A: int32 {\n}", "4: only a struct has fields"),
        ("A: int32?", "4: this type has no null"),
        ("A: int32 10+", "4: in none of the message's versions"),
        ("A: int32 = x", "4: a bad default"),
        ("A: string = null", "4: a bad default"),
        ("A: int32 tag 0", "4: a tagged field in a version that is not flexible"),
        ("A: int32 5+ tag x", "4: a bad tag"),
        ("A: int32 sometimes", "4: expected `tag`, `=` or `ignorable`"),
        ("A: [][]int32", "4: arrays of arrays"),
        ("A: B? 5+ tag 0 {\n}", "4: a tagged struct that may be null"),
        ("A: B 3-4 {\n}\nC: B", "6: the struct was defined for fewer versions"),
        ("A: B {\n}\nC: B {\n}", "6: a second struct of this name"),
    ] {
        let error = parse(&file(fields)).unwrap_err();
        assert!(error.starts_with(complaint), "{fields:?}: {error}");
    }
    for text in [
        "",
        "# Doc.\n",
        "# Doc.\napi X key 1 versions 1\nrequest {\n}\n",
        "# Doc.\napi X versions 1\nrequest {\n}\nresponse {\n}\n",
        "api X key 1 versions 1\nrequest {\n}\nresponse {\n}\n",
        "# Doc.\ndata X versions 1 {\n",
        "# Doc.\ndata X {\n}\n",
        "# Doc.\nsomething\n",
    ] {
        assert!(parse(text).is_err(), "{text:?}");
    }
}
