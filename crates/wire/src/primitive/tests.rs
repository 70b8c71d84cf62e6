//! Golden bytes, limits and refusals of the primitives.

use super::*;
use crate::uuid::Uuid;
use bytes::Bytes;
use proptest::prelude::*;

fn reader(bytes: &'static [u8]) -> Reader {
    Reader::new(Bytes::from_static(bytes))
}

fn written(write: impl FnOnce(&mut Writer)) -> Bytes {
    let mut writer = Writer::new();
    write(&mut writer);
    writer.finish().to_bytes().unwrap()
}

#[test]
fn integers_are_big_endian() {
    let bytes = written(|w| {
        w.i8(-2);
        w.u8(0xFE);
        w.bool(true);
        w.i16(-2);
        w.u16(0xABCD);
        w.i32(-2);
        w.u32(0xDEAD_BEEF);
        w.i64(i64::MIN);
        w.f64(1.0);
        w.uuid(Uuid([7; 16]));
    });
    let expected = "fe fe 01 fffe abcd fffffffe deadbeef 8000000000000000 3ff0000000000000 \
                    07070707070707070707070707070707";
    assert_eq!(format!("{bytes:02x}"), expected.replace(' ', ""));
    let mut r = Reader::new(bytes);
    assert_eq!(r.i8("f"), Ok(-2));
    assert_eq!(r.u8("f"), Ok(0xFE));
    assert_eq!(r.bool("f"), Ok(true));
    assert_eq!(r.i16("f"), Ok(-2));
    assert_eq!(r.u16("f"), Ok(0xABCD));
    assert_eq!(r.i32("f"), Ok(-2));
    assert_eq!(r.u32("f"), Ok(0xDEAD_BEEF));
    assert_eq!(r.i64("f"), Ok(i64::MIN));
    assert_eq!(r.f64("f"), Ok(1.0));
    assert_eq!(r.uuid("f"), Ok(Uuid([7; 16])));
    assert_eq!(r.remaining(), 0);
}

#[test]
fn varints_have_their_golden_bytes() {
    for (value, bytes) in [
        (0, &[0][..]),
        (-1, &[1]),
        (1, &[2]),
        (63, &[0x7E]),
        (-64, &[0x7F]),
        (64, &[0x80, 1]),
        (i32::MAX, &[0xFE, 0xFF, 0xFF, 0xFF, 0x0F]),
        (i32::MIN, &[0xFF, 0xFF, 0xFF, 0xFF, 0x0F]),
    ] {
        assert_eq!(written(|w| w.varint(value)), bytes);
        assert_eq!(Reader::new(bytes.into()).varint("f"), Ok(value));
        assert_eq!(Reader::new(bytes.into()).varlong("f"), Ok(i64::from(value)));
    }
    let longest = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1];
    assert_eq!(written(|w| w.varlong(i64::MIN)), &longest[..]);
    assert_eq!(Reader::new(longest.to_vec().into()).varlong("f"), Ok(i64::MIN));
}

#[test]
fn varints_without_end_are_refused() {
    let problem = |result: Result<u32, DecodeError>| result.unwrap_err().problem;
    assert_eq!(problem(reader(&[0xFF; 11]).uvarint("f")), DecodeProblem::VarintTooLong);
    assert_eq!(problem(reader(&[0xFF, 0xFF, 0xFF, 0xFF, 0x10]).uvarint("f")), DecodeProblem::VarintTooLong);
    assert_eq!(problem(reader(&[0xFF; 3]).uvarint("f")), DecodeProblem::Truncated { needed: 1 });
    let long = reader(&[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 2]).uvarlong("f");
    assert_eq!(long.unwrap_err().problem, DecodeProblem::VarintTooLong);
}

#[test]
fn strings_and_bytes_in_both_forms() {
    let classic = written(|w| {
        w.string("f", "é", Form::Classic).unwrap();
        w.null_string(Form::Classic);
        w.bytes("f", b"xyz", Form::Classic).unwrap();
        w.null_length(Form::Classic);
    });
    assert_eq!(classic, &b"\0\x02\xC3\xA9\xFF\xFF\0\0\0\x03xyz\xFF\xFF\xFF\xFF"[..]);
    let compact = written(|w| {
        w.string("f", "é", Form::Compact).unwrap();
        w.null_string(Form::Compact);
        w.bytes("f", b"xyz", Form::Compact).unwrap();
        w.null_length(Form::Compact);
    });
    assert_eq!(compact, &b"\x03\xC3\xA9\0\x04xyz\0"[..]);
    for (bytes, form) in [(classic, Form::Classic), (compact, Form::Compact)] {
        let mut r = Reader::new(bytes.clone());
        assert_eq!(r.string("f", form).unwrap(), "é");
        assert_eq!(r.nullable_string("f", form), Ok(None));
        let slice = r.bytes("f", form).unwrap();
        assert_eq!(slice, &b"xyz"[..]);
        assert!(bytes.as_ptr_range().contains(&slice.as_ptr()), "a slice of the frame, not a copy");
        assert_eq!(r.nullable_bytes("f", form), Ok(None));
        assert_eq!(r.remaining(), 0);
    }
}

#[test]
fn bad_lengths_are_named() {
    let error = reader(b"\xFF\xFF").string("Message.Field", Form::Classic).unwrap_err();
    assert_eq!(error.to_string(), "Message.Field at byte 2: null is not allowed in this version");
    let error = reader(b"\xFF\xFE").nullable_string("f", Form::Classic).unwrap_err();
    assert_eq!(error.problem, DecodeProblem::NegativeLength(-2));
    let error = reader(b"\x80\0\0\0").nullable_bytes("f", Form::Classic).unwrap_err();
    assert_eq!(error.problem, DecodeProblem::NegativeLength(i64::from(i32::MIN)));
    let error = reader(b"\0\x05abc").string("f", Form::Classic).unwrap_err();
    assert_eq!(error, DecodeError { field: "f", offset: 2, problem: DecodeProblem::Truncated { needed: 2 } });
    let error = reader(b"\0\x01\xFF").string("f", Form::Classic).unwrap_err();
    assert_eq!(error.problem, DecodeProblem::NotUtf8);
    let error = reader(b"\xFF\xFF\xFF\xFF\x0F").bytes("f", Form::Compact).unwrap_err();
    assert!(matches!(error.problem, DecodeProblem::Truncated { .. }));
}

#[test]
fn a_count_is_checked_against_what_is_left() {
    let read = |bytes: &'static [u8], min| reader(bytes).array("f", Form::Classic, min, |r| r.i16("f"));
    assert_eq!(read(b"\0\0\0\x02\0\x01\0\x02", 2), Ok(vec![1, 2]));
    assert_eq!(read(b"\0\0\0\x03\0\x01\0\x02", 2).unwrap_err().problem, DecodeProblem::CountTooLarge(3));
    assert_eq!(
        read(b"\x7F\xFF\xFF\xFF\0\x01", 2).unwrap_err().problem,
        DecodeProblem::CountTooLarge(0x7FFF_FFFF)
    );
    assert_eq!(read(b"\xFF\xFF\xFF\xFF", 2).unwrap_err().problem, DecodeProblem::Null);
}

#[test]
fn memory_of_arrays_is_bounded() {
    let count = DECODED_BYTES_MAX / size_of::<[u64; 32]>() + 1;
    let mut bytes = i32::try_from(count).unwrap().to_be_bytes().to_vec();
    bytes.resize(count + 4, 0);
    let mut elements = 0;
    let result = Reader::new(bytes.into()).array("f", Form::Classic, 1, |r| {
        elements += 1;
        r.u8("f").map(|_| [0_u64; 32])
    });
    assert_eq!(result.unwrap_err().problem, DecodeProblem::TooMuchMemory);
    assert_eq!(elements, 0, "refused before anything is read");
}

#[test]
fn tagged_fields_end_where_they_say() {
    // Tag 3 with one byte more than its i16, then tag 9, which nobody knows.
    let read = |bytes: &'static [u8]| {
        let mut seen = None;
        let mut r = reader(bytes);
        r.tagged_fields("tags", |tag, r| {
            if tag == 3 {
                seen = Some(r.i16("f")?);
            }
            Ok(tag == 3)
        })?;
        Ok::<_, DecodeError>((seen, r.remaining()))
    };
    assert_eq!(read(b"\x02\x03\x02\0\x07\x09\x01\xAA\x55"), Ok((Some(7), 1)));
    assert_eq!(read(b"\x01\x03\x03\0\x07\0").unwrap_err().problem, DecodeProblem::TaggedFieldSize);
    assert_eq!(read(b"\x01\x03\x01\0\x07\0").unwrap_err().problem, DecodeProblem::Truncated { needed: 1 });
    assert_eq!(read(b"\x01\x09\x05\0").unwrap_err().problem, DecodeProblem::Truncated { needed: 4 });
    assert_eq!(read(b"\x09\x09\0").unwrap_err().problem, DecodeProblem::CountTooLarge(9));
}

#[test]
fn records_are_spliced_not_copied() {
    let chunk = Bytes::from(vec![1; 100]);
    let mut w = Writer::new();
    w.start_frame();
    w.records("f", &Records::Chunks(vec![chunk.clone(), Bytes::new(), chunk.clone()]), Form::Classic)
        .unwrap();
    w.i16(9);
    w.records("f", &Records::External { token: 5, len: 1000 }, Form::Compact).unwrap();
    w.records("f", &Records::from(Bytes::new()), Form::Compact).unwrap();
    let encoded = w.finish_frame().unwrap();
    assert_eq!(encoded.len, 4 + 4 + 200 + 2 + 2 + 1000 + 1);
    assert_eq!(encoded.len, encoded.segments.iter().map(Segment::len).sum::<usize>());
    assert_eq!(encoded.to_bytes(), None, "a part is elsewhere");
    let [
        Segment::Bytes(head),
        Segment::Bytes(first),
        Segment::Bytes(second),
        Segment::Bytes(middle),
        external,
        end,
    ] = encoded.segments.as_slice()
    else {
        panic!("{encoded:?}")
    };
    assert_eq!(*head, &b"\0\0\x04\xB9\0\0\0\xC8"[..]);
    assert_eq!((first.as_ptr(), second.as_ptr()), (chunk.as_ptr(), chunk.as_ptr()));
    assert_eq!(*middle, &b"\0\x09\xE9\x07"[..]);
    assert_eq!(*external, Segment::External { token: 5, len: 1000 });
    assert_eq!(*end, Segment::Bytes(Bytes::from_static(b"\x01")));
}

#[test]
fn strings_too_long_are_refused() {
    let long = "x".repeat(32_768);
    for form in [Form::Classic, Form::Compact] {
        let error = Writer::new().string("f", &long, form).unwrap_err();
        assert_eq!(error, EncodeError { field: "f", problem: EncodeProblem::TooLong(32_768) });
    }
    assert!(Writer::new().string("f", &long[1..], Form::Classic).is_ok());
    let huge = Records::External { token: 0, len: u32::MAX };
    assert!(Writer::new().records("f", &huge, Form::Classic).is_err());
}

#[test]
fn the_rest_is_a_slice() {
    let mut r = reader(b"abcdef");
    r.skip("f", 2).unwrap();
    assert_eq!(r.take("f", 1).unwrap(), &b"c"[..]);
    assert_eq!((r.position(), r.remaining()), (3, 3));
    assert_eq!(r.skip("f", 4).unwrap_err().problem, DecodeProblem::Truncated { needed: 1 });
    assert_eq!(r.into_rest(), &b"def"[..]);
}

proptest! {
    #[test]
    fn varints_round_trip(a: i32, b: i64, c: u32, d: u64) {
        let bytes = written(|w| {
            w.varint(a);
            w.varlong(b);
            w.uvarint(c);
            w.uvarlong(d);
        });
        let mut r = Reader::new(bytes);
        prop_assert_eq!(r.varint("f"), Ok(a));
        prop_assert_eq!(r.varlong("f"), Ok(b));
        prop_assert_eq!(r.uvarint("f"), Ok(c));
        prop_assert_eq!(r.uvarlong("f"), Ok(d));
        prop_assert_eq!(r.remaining(), 0);
    }
}
