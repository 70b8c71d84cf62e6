//! Tests of the records module as a whole: what is built is what is read.

use super::*;
use crate::compression::{Codec, decompress};

fn sample(codec: Codec) -> Vec<u8> {
    let mut builder = BatchBuilder::new(1 << 20);
    for i in 0..1000_i64 {
        let value = vec![u8::try_from(i % 251).unwrap(); 100];
        let headers = [Header { key: b"k", value: Some(b"v") }, Header { key: b"n", value: None }];
        let headers = if i % 3 == 0 { &headers[..] } else { NO_HEADERS };
        let key = (i % 2 == 0).then_some(&b"key"[..]);
        assert!(builder.append(1_700_000_000_000 + i, key, Some(&value), headers.iter().copied()));
    }
    builder.finish(ProducerStamp::NONE, codec, None).unwrap().to_vec()
}

#[test]
fn what_is_built_is_read() {
    for codec in Codec::ALL {
        let batch = sample(codec);
        verify_crc(&batch).unwrap();
        let header = BatchHeader::parse(&batch).unwrap();
        assert_eq!((header.size(), header.codec().unwrap()), (batch.len(), codec));
        header.check_produced().unwrap();
        let mut plain = Vec::new();
        decompress(codec, &batch[BatchHeader::LEN..], 1 << 20, &mut plain).unwrap();
        let records: Vec<_> = RecordIter::new(&header, &plain).unwrap().map(Result::unwrap).collect();
        assert_eq!(records.len(), 1000);
        for (i, record) in records.iter().enumerate() {
            assert_eq!(record.offset_delta, i32::try_from(i).unwrap());
            assert_eq!(record.timestamp_delta, i64::try_from(i).unwrap());
            assert_eq!(record.value.unwrap(), vec![u8::try_from(i % 251).unwrap(); 100]);
            assert_eq!(record.headers.len(), if i % 3 == 0 { 2 } else { 0 });
            assert_eq!(record.headers.iter().count(), record.headers.len());
        }
    }
}
