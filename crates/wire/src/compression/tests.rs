//! Tests of all codecs: round trips, golden bytes, lies and bombs.

use proptest::prelude::*;

use super::snappy::{XERIAL_BLOCK_BYTES, XERIAL_HEADER};
use super::*;

fn packed(codec: Codec, level: Option<i32>, plain: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compress(codec, level, plain, &mut out).unwrap();
    out
}

fn unpacked(codec: Codec, input: &[u8]) -> Result<Vec<u8>, CompressionError> {
    let mut out = Vec::new();
    decompress(codec, input, 1 << 24, &mut out).map(|()| out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_packed_is_unpacked(
        codec in proptest::sample::select(Codec::ALL.to_vec()),
        unit in proptest::collection::vec(any::<u8>(), 0..300),
        times in 1_usize..600,
    ) {
        let plain = unit.repeat(times);
        let input = packed(codec, None, &plain);
        let mut out = b"before".to_vec();
        decompress(codec, &input, plain.len(), &mut out).unwrap();
        prop_assert_eq!(out.strip_prefix(b"before"), Some(plain.as_slice()));
        // A limit one byte short is too short, and leaves what was there.
        out.truncate(6);
        if let Some(limit) = plain.len().checked_sub(1) {
            let error = decompress(codec, &input, limit, &mut out);
            prop_assert_eq!(error, Err(CompressionError::TooLarge { codec, limit }));
            prop_assert_eq!(out.as_slice(), b"before");
        }
    }

    #[test]
    fn broken_input_is_an_error_or_bounded(
        codec in proptest::sample::select(Codec::ALL.to_vec()),
        at in any::<prop::sample::Index>(),
        flip in any::<u8>(),
    ) {
        let plain = b"some bytes that repeat, ".repeat(5000);
        let mut input = packed(codec, None, &plain);
        let at = at.index(input.len());
        let mut cut = Vec::new();
        // A cut between two blocks may pass for an end; never does it change what is before.
        if decompress(codec, &input[..at], plain.len(), &mut cut).is_ok() {
            prop_assert!(plain.starts_with(&cut));
        }
        input[at] ^= flip;
        let mut out = Vec::new();
        let _ = decompress(codec, &input, 200_000, &mut out);
        prop_assert!(out.len() <= 200_000 && out.capacity() <= 400_000);
    }

    #[test]
    fn any_input_is_bounded(
        codec in proptest::sample::select(Codec::ALL.to_vec()),
        magic in proptest::sample::select(vec![
            &[][..], &XERIAL_HEADER, &[0x1f, 0x8b, 8, 0], &[4, 0x22, 0x4d, 0x18], &[0x28, 0xb5, 0x2f, 0xfd],
        ]),
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut out = Vec::new();
        let _ = decompress(codec, &[magic, &bytes].concat(), 5000, &mut out);
        prop_assert!(out.len() <= 5000);
    }
}

#[test]
fn snappy_is_written_in_the_framing_of_java() {
    let plain = vec![9; XERIAL_BLOCK_BYTES + 10];
    let input = packed(Codec::Snappy, None, &plain);
    assert_eq!(input[..16], *b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01");
    let first = u32::from_be_bytes(input[16..20].try_into().unwrap()) as usize;
    // A raw block begins with its plain length as a varint: 32768.
    assert_eq!(input[20..23], [0x80, 0x80, 0x02]);
    let second = 20 + first;
    assert_eq!(input[second + 4], 10);
    assert_eq!(unpacked(Codec::Snappy, &input).unwrap(), plain);
}

#[test]
fn pieces_are_one_stream() {
    let plain: Vec<u8> = (0..200_000_u32).map(|i| i.wrapping_mul(i / 7).to_le_bytes()[1]).collect();
    for codec in Codec::ALL {
        let mut out = Vec::new();
        compress_pieces(codec, None, plain.chunks(10_007), &mut out).unwrap();
        assert_eq!(unpacked(codec, &out).unwrap(), plain, "{codec}");
    }
}

#[test]
fn snappy_is_read_bare_too() {
    // Length 5, then a literal of 5: what librdkafka writes.
    assert_eq!(unpacked(Codec::Snappy, b"\x05\x10hello").unwrap(), b"hello");
    let framed = [&XERIAL_HEADER[..], &[0, 0, 0, 7], b"\x05\x10hello", &[0, 0, 0, 4], b"\x02\x04ab"].concat();
    assert_eq!(unpacked(Codec::Snappy, &framed).unwrap(), b"helloab");
    for cut in [10, 17, 22, 30] {
        assert!(matches!(unpacked(Codec::Snappy, &framed[..cut]), Err(CompressionError::Corrupt { .. })));
    }
}

#[test]
fn a_snappy_block_that_lies_about_its_length_costs_nothing() {
    let mut out = Vec::new();
    // 16 MiB from five bytes.
    let error = decompress(Codec::Snappy, b"\x80\x80\x80\x08\x00", 1 << 30, &mut out);
    assert!(matches!(error, Err(CompressionError::Corrupt { .. })));
    assert_eq!(out.capacity(), 0);
}

#[test]
fn lz4_frames_are_what_java_takes() {
    let plain = b"abcabcabc".repeat(20_000);
    let input = packed(Codec::Lz4, None, &plain);
    // Magic; version 1, independent blocks, no checksums, no content size; 64 KiB blocks; header checksum.
    assert_eq!(input[..7], [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82]);
    // No content checksum: the end mark is the end.
    assert!(input.ends_with(&[0, 0, 0, 0]));
    assert_eq!(unpacked(Codec::Lz4, &input).unwrap(), plain);
    // A block stored as it is, marked by the top bit of its size.
    let stored = [&input[..7], &[3, 0, 0, 0x80], b"xyz", &[0, 0, 0, 0]].concat();
    assert_eq!(unpacked(Codec::Lz4, &stored).unwrap(), b"xyz");
}

#[test]
fn gzip_members_follow_one_another() {
    let both = [packed(Codec::Gzip, Some(1), b"one "), packed(Codec::Gzip, Some(9), b"two")].concat();
    assert_eq!(unpacked(Codec::Gzip, &both).unwrap(), b"one two");
}

#[test]
fn zstd_is_read_whether_or_not_it_tells_its_size() {
    let plain: Vec<u8> = (0..300_000_u32).map(|i| i.wrapping_mul(i / 9).to_le_bytes()[1]).collect();
    // A stream of unknown size, as zstd-jni writes it.
    let unknown = ::zstd::stream::encode_all(plain.as_slice(), 3).unwrap();
    assert_eq!(::zstd::zstd_safe::get_frame_content_size(&unknown).ok(), Some(None));
    let known = packed(Codec::Zstd, None, &plain);
    assert_eq!(::zstd::zstd_safe::get_frame_content_size(&known).ok(), Some(Some(300_000)));
    assert_eq!(unpacked(Codec::Zstd, &unknown).unwrap(), plain);
    assert_eq!(unpacked(Codec::Zstd, &known).unwrap(), plain);
    assert_eq!(unpacked(Codec::Zstd, &[&known[..], &unknown].concat()).unwrap(), plain.repeat(2));
    for cut in [0, 3, 10, known.len() - 1] {
        assert!(unpacked(Codec::Zstd, &known[..cut]).is_err(), "{cut}");
    }
    // An error in between does not disturb what the thread keeps.
    assert_eq!(unpacked(Codec::Zstd, &known).unwrap(), plain);
}

#[test]
fn a_zstd_frame_that_lies_about_its_size_costs_little() {
    // A frame of one raw block of one byte that claims 1 GiB, in a single segment.
    let lie = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0, 0, 0, 0x40, 0x09, 0, 0, b'x'];
    assert_eq!(::zstd::zstd_safe::get_frame_content_size(&lie).ok(), Some(Some(1 << 30)));
    let mut out = Vec::new();
    assert!(decompress(Codec::Zstd, &lie, 1 << 30, &mut out).is_err());
    assert!(out.is_empty() && out.capacity() <= 1 << 20, "{}", out.capacity());
}

#[test]
fn levels_are_checked() {
    for (codec, level) in [(Codec::Gzip, 10), (Codec::Gzip, 0), (Codec::Zstd, 23), (Codec::Lz4, 18)] {
        let error = compress(codec, Some(level), b"", &mut Vec::new());
        assert_eq!(error, Err(CompressionError::Level { codec, level }));
    }
    let plain = b"level ".repeat(1000);
    let fast = packed(Codec::Zstd, Some(-50), &plain);
    assert_eq!(unpacked(Codec::Zstd, &fast).unwrap(), plain);
}

#[test]
fn names_are_kafkas() {
    for codec in Codec::ALL {
        assert_eq!(codec.name().parse(), Ok(codec));
        assert_eq!(Codec::from_id(codec.id()), Some(codec));
    }
    assert!("brotli".parse::<Codec>().is_err());
    assert_eq!(Codec::from_id(5), None);
}
