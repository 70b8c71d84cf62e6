//! Headers of requests and responses from any bytes: no panic, and both ways of reading a request agree.
#![no_main]

use bytes::Bytes;
use headrace_wire::frame;
use headrace_wire::messages::ApiKey;
use headrace_wire::primitive::Reader;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let frame = Bytes::copy_from_slice(data);
    if let Ok(header) = frame::decode_request_header(&mut Reader::new(frame.clone())) {
        let start = frame::peek_request(&frame).expect("a whole header has a beginning");
        assert_eq!(start.api_key, header.api_key.code());
        assert_eq!(start.api_version, header.api_version);
        assert_eq!(start.correlation_id, header.correlation_id);
        assert!(header.api_key.versions().contains(header.api_version));
    }
    for key in ApiKey::ALL {
        let newest = key.versions().max;
        if let Ok(id) = frame::decode_response_header(*key, newest, &mut Reader::new(frame.clone())) {
            assert_eq!(frame::peek_correlation_id(&frame), Ok(id));
        }
    }
});
