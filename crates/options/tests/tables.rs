//! Two tables of a few rows.
#![allow(clippy::unwrap_used, reason = "a helper of tests fails as tests do")]

use headrace_options::{Kind, LONG_MAX, Refusal, Row, Type, Values, choice, number, options, reasons};

choice! {
    /// Words.
    Colour {
        /// With a second name.
        Red = "RED" | "-1",
        /// With one.
        Dark = "dark-blue",
    }
}

options! {
    /// What others embed.
    Base {}
    colour: Colour = "colour", Kind::Choice(&["RED", "dark-blue"]), Some("RED"), false, "A colour.";
    host: String = "host", Kind::Form("a host"), None, true, "A host.";
}

options! {
    /// What embeds another.
    All {
        /// Its options.
        base: Base
    }
    rack: Option<String> = "rack", Kind::Text, Some(""), false, "A rack.";
    colours: Vec<Colour> = "colours", Kind::Choices(&["RED", "dark-blue"]), Some("RED"), false, "Colours.";
}

options! {
    /// What can be asked for its values.
    Numbers with get {}
    port: u16 = "port", number(1, LONG_MAX), Some("9092"), false, "A port.";
    wait_ms: i64 = "wait.ms", Kind::Int { min: 0, max: LONG_MAX, unit: "ms" }, Some("5"), false, "A time.";
    size: u32 = "size", Kind::Int { min: 0, max: 7, unit: "bytes" }, Some("0"), false, "A size.";
    check: bool = "check", Kind::Bool, Some("true"), false, "A check.";
}

/// What was given.
fn values(rows: &[&'static [Row]], given: &[(&str, &str)]) -> Values {
    let mut values = Values::default();
    for (written, text) in given {
        let row = rows.iter().copied().flatten().find(|row| row.name == written.replace('_', ".")).unwrap();
        values.insert(row, written, text);
    }
    values
}

fn all(given: &[(&str, &str)]) -> Result<All, (String, String)> {
    All::from_values(&values(&[Base::ROWS, All::ROWS], given))
        .map_err(|refusal| (refusal.written, refusal.why))
}

fn numbers(given: &[(&str, &str)]) -> Result<Numbers, (String, String)> {
    let refused = |refusal: Refusal| (refusal.written, refusal.accepted);
    Numbers::from_values(&values(&[Numbers::ROWS], given)).map_err(refused)
}

#[test]
fn a_struct_has_what_was_given_and_else_the_defaults() {
    let made = all(&[("host", "h"), ("colours", "Dark-Blue, -1,")]).unwrap();
    assert_eq!((made.base.colour, made.base.host.as_str(), made.rack), (Colour::Red, "h", None));
    assert_eq!(made.colours, [Colour::Dark, Colour::Red]);
    assert_eq!(Colour::Dark.name(), "dark-blue");
    assert_eq!(all(&[("host", "h"), ("rack", "r")]).unwrap().rack.as_deref(), Some("r"));
    let mut given = values(&[Numbers::ROWS], &[("wait_ms", "1")]);
    assert!(given.given("wait.ms") && !given.given("size"));
    assert_eq!(given.insert(&Numbers::ROWS[1], "wait.ms", "2").as_deref(), Some("wait_ms"));
    assert_eq!(Numbers::from_values(&given).map(|made| made.wait_ms).ok(), Some(2));
}

#[test]
fn a_refusal_names_the_option_and_what_it_takes() {
    for (given, written, why) in [
        (&[][..], "host", "it must be given; it takes a host"),
        (&[("host", "")], "host", "'' is not accepted; it takes a host"),
        (
            &[("host", "h"), ("colour", "green")],
            "colour",
            "'green' is not accepted; it takes one of RED, dark-blue",
        ),
        (
            &[("host", "h"), ("colours", ",")],
            "colours",
            "',' is not accepted; it takes a list of RED, dark-blue, separated by commas",
        ),
    ] {
        assert_eq!(all(given), Err((written.to_owned(), why.to_owned())));
    }
    for (written, text, accepted) in [
        ("port", "65536", "a whole number from 1 to 9223372036854775807"),
        ("wait_ms", "-1", "a whole number of at least 0 ms"),
        ("size", "8", "a whole number from 0 to 7 bytes"),
        ("check", "yes", "true or false"),
    ] {
        assert_eq!(numbers(&[(written, text)]), Err((written.to_owned(), accepted.to_owned())));
    }
}

#[test]
fn a_value_is_shown_as_it_is_read() {
    let made = numbers(&[("check", " False "), ("size", " 07 ")]).unwrap();
    let shown = ["port", "wait.ms", "size", "check"].map(|name| made.get(name).unwrap());
    assert_eq!(shown, ["9092", "5", "7", "false"]);
    assert_eq!(made.get("wait_ms"), None);
}

#[test]
fn rows_have_kafkas_types() {
    let types = |rows: &[Row]| rows.iter().map(|row| row.config_type.name()).collect::<Vec<_>>();
    assert_eq!(types(Numbers::ROWS), ["int", "long", "int", "boolean"]);
    assert_eq!(types(All::ROWS), ["string", "list"]);
    assert_eq!(
        [Type::Boolean, Type::String, Type::Int, Type::Long, Type::List].map(Type::id),
        [1, 2, 3, 5, 7]
    );
}

#[test]
fn pages_have_tables_and_names_with_reasons() {
    let page = reasons("Not here", ["name", "why"], &[("a.", "none"), ("b", "it is c")]);
    assert_eq!(page, "\n## Not here\n\n| name | why |\n|---|---|\n| `a.*` | none |\n| `b` | it is c |\n");
}
