//! Tests of the records module as a whole: what is built is what is read, and what is broken is refused.

use headrace_pool::CHUNK_BYTES_MAX;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::compression::{Codec, CompressionError, decompress};

/// A record that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
struct Owned {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Owned {
    fn value(value: &[u8]) -> Self {
        Self { timestamp: 1_700_000_000_000, key: None, value: Some(value.to_vec()), headers: Vec::new() }
    }

    fn append(&self, builder: &mut BatchBuilder) -> bool {
        let headers = self.headers.iter().map(|(key, value)| Header { key, value: value.as_deref() });
        builder.append(self.timestamp, self.key.as_deref(), self.value.as_deref(), headers).is_ok()
    }
}

fn record() -> impl Strategy<Value = Owned> {
    let bytes = || prop_oneof![8 => vec(any::<u8>(), 0..200), 1 => vec(any::<u8>(), 0..40_000)];
    let timestamp = prop_oneof![8 => 1_700_000_000_000_i64..1_700_000_100_000, 1 => any::<i64>()];
    let headers = vec((vec(any::<u8>(), 0..20), option::of(vec(any::<u8>(), 0..20))), 0..4);
    (timestamp, option::of(bytes()), option::of(bytes()), headers)
        .prop_map(|(timestamp, key, value, headers)| Owned { timestamp, key, value, headers })
}

fn codec() -> impl Strategy<Value = Codec> {
    proptest::sample::select(Codec::ALL.to_vec())
}

fn build(records: &[Owned], stamp: ProducerStamp, codec: Codec) -> FinishedBatch {
    let mut builder = BatchBuilder::new(usize::MAX);
    for record in records {
        assert!(record.append(&mut builder));
    }
    builder.finish(stamp, codec, None).unwrap()
}

fn plain(header: &BatchHeader, batch: &[u8]) -> Result<Vec<u8>, RecordError> {
    let mut plain = Vec::new();
    decompress(header.codec()?, &batch[BatchHeader::LEN..header.size()], 64 << 20, &mut plain)?;
    Ok(plain)
}

/// Everything that a reader does with a batch from a peer.
fn read(batch: &[u8]) -> Result<Vec<Owned>, RecordError> {
    verify_crc(batch)?;
    read_unchecked(batch)
}

fn read_unchecked(batch: &[u8]) -> Result<Vec<Owned>, RecordError> {
    let header = BatchHeader::parse(batch)?;
    if batch.len() < header.size() {
        return Err(RecordError::Truncated { need: header.size(), have: batch.len() });
    }
    let plain = plain(&header, batch)?;
    RecordIter::new(&header, &plain)?
        .map(|record| {
            let record = record?;
            let headers = record.headers.iter();
            Ok(Owned {
                timestamp: header.base_timestamp.wrapping_add(record.timestamp_delta),
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: headers.map(|h| (h.key.to_vec(), h.value.map(<[u8]>::to_vec))).collect(),
            })
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_built_is_read(records in vec(record(), 1..60), codec in codec()) {
        let finished = build(&records, ProducerStamp::NONE, codec);
        let batch = finished.to_vec();
        prop_assert_eq!(batch.len(), finished.len);
        prop_assert_eq!(finished.records as usize, records.len());
        prop_assert_eq!(finished.max_timestamp, records.iter().map(|r| r.timestamp).max().unwrap());
        prop_assert_eq!(batch_size(&batch), Some(Ok(batch.len())));
        let header = BatchHeader::parse(&batch).unwrap();
        prop_assert_eq!(header.check_produced(), Ok(()));
        let encoded = header.encode();
        prop_assert_eq!(&encoded[..], &batch[..BatchHeader::LEN]);
        prop_assert_eq!(header.base_timestamp, records[0].timestamp);
        prop_assert_eq!(read(&batch), Ok(records));
    }

    #[test]
    fn the_parts_of_a_batch_have_its_records(records in vec(record(), 1..40), codec in codec()) {
        let mut builder = BatchBuilder::new(usize::MAX);
        for record in &records {
            assert!(record.append(&mut builder));
        }
        let whole = builder.close(codec, None).unwrap();
        let Some((head, tail)) = whole.split(None).unwrap() else {
            prop_assert_eq!(records.len(), 1);
            return Ok(());
        };
        let both: Vec<Owned> = [&head, &tail].iter().flat_map(|part| {
            let bytes = part.stamp(ProducerStamp::NONE).to_vec();
            BatchHeader::parse(&bytes).unwrap().check_produced().unwrap();
            read(&bytes).unwrap()
        }).collect();
        prop_assert_eq!(both, records);
        prop_assert_eq!(whole.records(), head.records() + tail.records());
        prop_assert!(head.records() > 0 && tail.records() > 0);
    }

    #[test]
    fn a_cut_off_batch_is_an_error(records in vec(record(), 1..10), codec in codec(), cut in any::<prop::sample::Index>()) {
        let batch = build(&records, ProducerStamp::NONE, codec).to_vec();
        let cut = &batch[..cut.index(batch.len())];
        prop_assert!(read(cut).is_err());
        let truncated = matches!(verify_crc(cut), Err(RecordError::Truncated { .. }));
        prop_assert!(truncated);
    }

    #[test]
    fn a_cut_off_body_is_an_error(records in vec(record(), 1..10), cut in any::<prop::sample::Index>()) {
        let batch = build(&records, ProducerStamp::NONE, Codec::None).to_vec();
        let header = BatchHeader::parse(&batch).unwrap();
        let body = &batch[BatchHeader::LEN..];
        let cut = &body[..cut.index(body.len())];
        let walked = RecordIter::new(&header, cut).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        prop_assert!(walked.is_err());
    }

    #[test]
    fn a_flipped_bit_is_found(records in vec(record(), 1..10), codec in codec(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let batch = build(&records, ProducerStamp::NONE, codec).to_vec();
        let mut flipped = batch.clone();
        let at = at.index(batch.len());
        flipped[at] ^= 1_u8 << bit;
        // Base offset and leader epoch are outside the checksum, by intent.
        if !matches!(at, 0..8 | 12..16) {
            prop_assert!(read(&flipped).is_err());
        }
        // Without the checksum anything may come out, but it comes out.
        let _ = read_unchecked(&flipped);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..400)) {
        let _ = batch_size(&bytes);
        let _ = read(&bytes);
        let mut sound = build(&[Owned::value(b"x")], ProducerStamp::NONE, Codec::None).to_vec();
        sound.truncate(BatchHeader::LEN);
        sound.extend_from_slice(&bytes);
        let length = i32::try_from(sound.len() - 12).unwrap();
        sound[8..12].copy_from_slice(&length.to_be_bytes());
        for count in [0_i32, 1, 5, 60] {
            sound[57..61].copy_from_slice(&count.to_be_bytes());
            for codec in Codec::ALL {
                sound[22] = codec.id();
                let _ = read_unchecked(&sound);
            }
        }
    }
}

/// Every byte of a small batch, written down from the format.
#[test]
fn a_batch_has_these_bytes() {
    let mut builder = BatchBuilder::new(1 << 20);
    let header = Header { key: b"h", value: None };
    builder.append(1000, Some(b"k"), Some(b"v1"), [header]).unwrap();
    builder.append(1070, None, None, NO_HEADERS.iter().copied()).unwrap();
    let stamp = ProducerStamp {
        producer_id: 0x0102_0304_0506_0708,
        epoch: 9,
        base_sequence: 10,
        transactional: true,
    };
    let batch = builder.finish(stamp, Codec::None, None).unwrap().to_vec();
    let mut expected = vec![
        0, 0, 0, 0, 0, 0, 0, 0, // base offset
        0, 0, 0, 70, // length: 49 + 13 + 8
        0xff, 0xff, 0xff, 0xff, // leader epoch
        2,    // magic
        0, 0, 0, 0, // checksum, below
        0, 0x10, // transactional
        0, 0, 0, 1, // last offset delta
        0, 0, 0, 0, 0, 0, 0x03, 0xe8, // base timestamp
        0, 0, 0, 0, 0, 0, 0x04, 0x2e, // largest timestamp
        1, 2, 3, 4, 5, 6, 7, 8, 0, 9, 0, 0, 0, 10, // producer id, epoch, sequence
        0, 0, 0, 2, // records
        24, 0, 0, 0, 2, b'k', 4, b'v', b'1', 2, 2, b'h',
        1, // 12 bytes, key "k", value "v1", header "h" null
        14, 0, 0x8c, 1, 2, 1, 1, 0, // 7 bytes, 70 ms later, offset 1, nulls
    ];
    let crc = crc32c(&expected[21..]);
    expected[17..21].copy_from_slice(&crc.to_be_bytes());
    assert_eq!(batch, expected);
}

#[test]
fn a_record_may_cross_chunks() {
    let mut builder = BatchBuilder::new(usize::MAX);
    let values: Vec<_> = (0..40_u8).map(|i| vec![i; usize::from(i) * 997]).collect();
    for value in &values {
        builder.append(0, Some(value), Some(value), [Header { key: value, value: Some(value) }]).unwrap();
    }
    let size = builder.estimated_size();
    let finished = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap();
    assert_eq!(finished.len, size);
    assert!(finished.chunks.len() > size / CHUNK_BYTES_MAX);
    assert!(finished.chunks.iter().all(|chunk| (1..=CHUNK_BYTES_MAX).contains(&chunk.len())));
    let records = read(&finished.to_vec()).unwrap();
    assert_eq!(records.len(), values.len());
    assert!(records.iter().zip(&values).all(|(record, value)| record.value.as_ref() == Some(value)));
}

#[test]
fn chunks_end_anywhere_in_a_record() {
    // So many lengths that every field of a record comes to lie across an end.
    let mut builder = BatchBuilder::new(usize::MAX);
    let values: Vec<_> = (0..20_000_usize).map(|i| vec![1; i % 97]).collect();
    for value in &values {
        let header = Header { key: b"abc", value: Some(value) };
        builder.append(0, Some(b"k"), Some(value), (value.len() % 2 == 0).then_some(header)).unwrap();
    }
    let finished = builder.finish(ProducerStamp::NONE, Codec::None, None).unwrap();
    let (last, full) = finished.chunks[1..].split_last().unwrap();
    assert!(
        full.len() > 60
            && full.iter().all(|chunk| chunk.len() == CHUNK_BYTES_MAX)
            && last.len() <= CHUNK_BYTES_MAX
    );
    let records = read(&finished.to_vec()).unwrap();
    assert_eq!(records.len(), values.len());
    assert!(records.iter().zip(&values).all(|(record, value)| record.value.as_ref() == Some(value)));
}

#[test]
fn the_limit_holds_but_for_the_first_record() {
    let mut builder = BatchBuilder::new(1000);
    assert!(builder.has_room_for(0, 5000, 0));
    assert!(Owned::value(&[0; 5000]).append(&mut builder));
    assert!(!Owned::value(b"").append(&mut builder), "nothing goes beside an oversized record");
    assert!(!builder.has_room_for(0, 0, 0));

    let mut builder = BatchBuilder::new(1000);
    let mut appended = 0;
    while builder.has_room_for(0, 10, 0) {
        assert!(Owned::value(&[0; 10]).append(&mut builder), "room was promised");
        appended += 1;
    }
    while Owned::value(&[0; 10]).append(&mut builder) {
        appended += 1;
    }
    assert_eq!(builder.records(), appended);
    assert!(builder.estimated_size() <= 1000 && builder.estimated_size() > 1000 - 20);
}

#[test]
fn a_closed_batch_can_be_stamped_again() {
    for codec in Codec::ALL {
        let mut builder = BatchBuilder::new(1 << 20);
        (0..1000).for_each(|_| assert!(Owned::value(&[5; 100]).append(&mut builder)));
        let closed = builder.close(codec, None).unwrap();
        let stamps = [
            ProducerStamp { producer_id: 7, epoch: 1, base_sequence: 99, transactional: true },
            ProducerStamp { producer_id: 7, epoch: 2, base_sequence: 0, transactional: false },
        ];
        for stamp in stamps {
            let batch = closed.stamp(stamp).to_vec();
            verify_crc(&batch).unwrap();
            let header = BatchHeader::parse(&batch).unwrap();
            assert_eq!((header.producer_id, header.producer_epoch), (stamp.producer_id, stamp.epoch));
            assert_eq!(header.base_sequence, stamp.base_sequence);
            assert_eq!((header.is_transactional(), header.codec().unwrap()), (stamp.transactional, codec));
            assert_eq!((closed.size(), closed.records()), (batch.len(), 1000));
        }
    }
}

#[test]
fn a_broker_patches_in_place() {
    let mut batch =
        build(&[Owned::value(b"x"), Owned::value(b"y")], ProducerStamp::NONE, Codec::Lz4).to_vec();
    patch(&mut batch, 1_000_000_000_000, 42).unwrap();
    verify_crc(&batch).unwrap();
    let header = BatchHeader::parse(&batch).unwrap();
    assert_eq!((header.base_offset, header.partition_leader_epoch), (1_000_000_000_000, 42));
    assert_eq!(header.last_offset(), 1_000_000_000_001);

    // What follows in the buffer is another batch, and stays as it is.
    batch.extend_from_slice(b"next");
    set_append_time(&mut batch, 1_800_000_000_000).unwrap();
    verify_crc(&batch).unwrap();
    let header = BatchHeader::parse(&batch).unwrap();
    assert_eq!(header.timestamp_type(), TimestampType::LogAppendTime);
    assert_eq!((header.max_timestamp, header.codec().unwrap()), (1_800_000_000_000, Codec::Lz4));
    assert!(batch.ends_with(b"next"));
    assert!(patch(&mut batch[..10], 0, 0).is_err());
    assert!(set_append_time(&mut batch[..70], 0).is_err());
}

fn set<const N: usize>(batch: &mut [u8], at: usize, bytes: [u8; N]) {
    batch[at..at + N].copy_from_slice(&bytes);
}

#[test]
fn a_lying_header_is_refused() {
    let batch = build(&[Owned::value(b"abc")], ProducerStamp::NONE, Codec::None).to_vec();
    let with = |change: &dyn Fn(&mut [u8])| {
        let mut changed = batch.clone();
        change(&mut changed);
        BatchHeader::parse(&changed)
    };
    assert_eq!(with(&|b| b[16] = 1), Err(RecordError::Magic(1)));
    assert_eq!(with(&|b| set(b, 8, 48_i32.to_be_bytes())), Err(RecordError::BatchLength(48)));
    assert_eq!(with(&|b| set(b, 8, (-1_i32).to_be_bytes())), Err(RecordError::BatchLength(-1)));
    for count in [-1, 2, i32::MAX] {
        let error = with(&|b| set(b, 57, i32::to_be_bytes(count)));
        assert_eq!(error, Err(RecordError::Count { count, bytes: batch.len() - BatchHeader::LEN }));
    }
    let offsets = |base: i64, delta: i32| {
        with(&|b| {
            set(b, 0, base.to_be_bytes());
            set(b, 23, delta.to_be_bytes());
        })
    };
    assert!(matches!(offsets(-1, 0), Err(RecordError::Offsets { .. })));
    assert!(matches!(offsets(0, -1), Err(RecordError::Offsets { .. })));
    assert!(matches!(offsets(i64::MAX, 0), Err(RecordError::Offsets { .. })));
    assert!(matches!(offsets(i64::MAX - 5, 5), Err(RecordError::Offsets { .. })));
    assert!(offsets(i64::MAX - 5, 4).is_ok());

    // The count of a compressed batch can only be checked once it is plain.
    let mut packed = build(&[Owned::value(b"abc")], ProducerStamp::NONE, Codec::Zstd).to_vec();
    set(&mut packed, 57, 1_000_000_i32.to_be_bytes());
    assert!(BatchHeader::parse(&packed).is_ok());
    assert!(matches!(read_unchecked(&packed), Err(RecordError::Count { count: 1_000_000, .. })));
}

#[test]
fn an_unknown_codec_can_be_stepped_over() {
    let mut batch = build(&[Owned::value(b"abc")], ProducerStamp::NONE, Codec::None).to_vec();
    batch[22] = 5;
    let header = BatchHeader::parse(&batch).unwrap();
    assert_eq!((header.codec(), header.size()), (Err(RecordError::Codec(5)), batch.len()));
}

#[test]
fn a_broker_refuses_what_no_producer_may_send() {
    let sound = build(&[Owned::value(b"abc")], ProducerStamp::NONE, Codec::None).to_vec();
    let sound = BatchHeader::parse(&sound).unwrap();
    let refused: [fn(&mut BatchHeader); 7] = [
        |h| h.records_count = 0,
        |h| h.last_offset_delta = 1,
        |h| h.attributes |= 0x20,
        |h| h.attributes |= 0x08,
        |h| h.attributes |= 0x10,
        |h| h.producer_id = 1,
        |h| (h.producer_id, h.producer_epoch) = (1, 0),
    ];
    for change in refused {
        let mut header = sound.clone();
        change(&mut header);
        assert!(matches!(header.check_produced(), Err(RecordError::NotProducible(_))), "{header:?}");
    }
}

/// A plain batch of one record with these bytes.
fn with_body(count: i32, body: &[u8]) -> Result<Vec<Owned>, RecordError> {
    let mut batch = build(&[Owned::value(b"")], ProducerStamp::NONE, Codec::None).to_vec();
    batch.truncate(BatchHeader::LEN);
    batch.extend_from_slice(body);
    let length = i32::try_from(batch.len() - 12).unwrap();
    set(&mut batch, 8, length.to_be_bytes());
    set(&mut batch, 57, count.to_be_bytes());
    read_unchecked(&batch)
}

#[test]
fn a_malformed_record_names_its_field() {
    let sound = [14, 0, 0, 0, 1, 2, b'v', 0];
    assert_eq!(with_body(1, &sound).unwrap(), [Owned::value(b"v")]);
    let cases: [(&[u8], &str); 13] = [
        (&[0x80; 8], "length"),
        (&[13, 0, 0, 0, 1, 2, b'v', 0], "length is negative"),
        (&[16, 0, 0, 0, 1, 2, b'v', 0], "length runs past the batch"),
        (&[0, 0, 0, 0, 1, 2, b'v', 0], "attributes"),
        (&[14, 0, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80], "timestamp delta"),
        (&[14, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x80], "offset delta"),
        (&[14, 0, 0, 0, 3, 2, b'v', 0], "key"),
        (&[14, 0, 0, 0, 20, 2, b'v', 0], "key"),
        (&[14, 0, 0, 0, 1, 20, b'v', 0], "value"),
        (&[14, 0, 0, 0, 1, 2, b'v', 1], "header count is negative"),
        (&[14, 0, 0, 0, 1, 2, b'v', 2], "header count"),
        (&[18, 0, 0, 0, 1, 2, b'v', 2, 1, 1], "header key"),
        (&[16, 0, 0, 0, 1, 2, b'v', 0, 0], "length does not match the fields"),
    ];
    for (body, what) in cases {
        assert_eq!(with_body(1, body), Err(RecordError::Record { index: 0, what }), "{body:?}");
    }
    let two = [&sound[..], &[14, 0, 0, 0, 1, 9, b'v', 0]].concat();
    assert_eq!(with_body(2, &two), Err(RecordError::Record { index: 1, what: "value" }));
    assert_eq!(with_body(1, &two), Err(RecordError::Trailing(8)));
    assert_eq!(with_body(0, &[]), Ok(Vec::new()));
}

#[test]
fn varints_keep_to_their_width() {
    let mut bytes: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0x0f];
    assert_eq!(varint::take_varint(&mut bytes), Some(i32::MIN));
    let mut bytes: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0x1f];
    assert_eq!(varint::take_varint(&mut bytes), None);
    let mut bytes: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    assert_eq!(varint::take_varlong(&mut bytes), Some(i64::MIN));
    let mut bytes: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
    assert_eq!(varint::take_varlong(&mut bytes), None);
    for value in [0, -1, 1, 63, 64, -64, -65, 8191, 8192, i64::from(i32::MAX), i64::MAX, i64::MIN] {
        let mut prefix = varint::Prefix::new();
        prefix.put_varlong(value);
        assert_eq!(prefix.len(), varint::varlong_len(value), "{value}");
        assert_eq!(varint::take_varlong(&mut prefix.as_slice()), Some(value));
    }
}

#[test]
fn a_batch_that_unpacks_to_more_than_allowed_is_refused() {
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let batch = build(&[Owned::value(&vec![0; 8 << 20])], ProducerStamp::NONE, codec).to_vec();
        assert!(batch.len() < 1 << 20);
        let mut plain = Vec::new();
        let limit = 1 << 20;
        let result = decompress(codec, &batch[BatchHeader::LEN..], limit, &mut plain);
        assert_eq!(result, Err(CompressionError::TooLarge { codec, limit }));
        assert!(plain.is_empty() && plain.capacity() <= 4 * limit, "{codec}: {}", plain.capacity());
    }
}

#[test]
fn control_types_are_read() {
    assert_eq!(ControlType::from_key(&[0, 0, 0, 0]), Some(ControlType::Abort));
    assert_eq!(ControlType::from_key(&[0, 0, 0, 1]), Some(ControlType::Commit));
    assert_eq!(ControlType::from_key(&[0, 0, 0, 6]), Some(ControlType::Other(6)));
    assert_eq!(ControlType::from_key(&[0, 0, 0]), None);
}
