//! Frames: a size, a header, a message.
//!
//! A flexible version of a request has header v2 and its response v1, both with tagged fields; others have v1 and
//! v0. The response to ApiVersions always has v0, so that a client that asked in a version too new can read it.

use crate::messages::{ApiKey, Message, Request};
use crate::primitive::{DecodeError, DecodeProblem, EncodeError, Encoded, Form, Reader, Writer};
use bytes::Bytes;

/// Bytes of the size before each frame.
pub const SIZE_BYTES: usize = 4;

/// Bytes that most messages fit in, reserved ahead for one.
const USUAL_BYTES: usize = 512;

/// The beginning of every request, which is the same in all versions of all kinds of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestStart {
    /// What is asked; see [`ApiKey::from_code`].
    pub api_key: i16,
    /// In which version.
    pub api_version: i16,
    /// Comes back in the response.
    pub correlation_id: i32,
}

/// The header of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// What is asked.
    pub api_key: ApiKey,
    /// In which version; one of those known here.
    pub api_version: i16,
    /// Comes back in the response.
    pub correlation_id: i32,
    /// What the client calls itself.
    pub client_id: Option<String>,
}

/// Length of the frame behind a size field, in bytes; an error if it is negative or above `frame_bytes_max`.
pub fn frame_len(size: [u8; SIZE_BYTES], frame_bytes_max: usize) -> Result<usize, DecodeError> {
    let size = i32::from_be_bytes(size);
    match usize::try_from(size) {
        Ok(len) if len <= frame_bytes_max => Ok(len),
        _ => Err(DecodeError { field: "frame size", offset: 0, problem: DecodeProblem::FrameSize(size) }),
    }
}

/// Reads the beginning of a request without knowing more about it. `frame` comes without its size.
pub fn peek_request(frame: &Bytes) -> Result<RequestStart, DecodeError> {
    request_start(&mut Reader::new(frame.clone()))
}

fn request_start(reader: &mut Reader) -> Result<RequestStart, DecodeError> {
    Ok(RequestStart {
        api_key: reader.i16("RequestHeader.RequestApiKey")?,
        api_version: reader.i16("RequestHeader.RequestApiVersion")?,
        correlation_id: reader.i32("RequestHeader.CorrelationId")?,
    })
}

/// Reads the header of a request; the reader then stands at the message. An unknown kind or version is an error:
/// ask [`peek_request`] first.
pub fn decode_request_header(reader: &mut Reader) -> Result<RequestHeader, DecodeError> {
    let start = request_start(reader)?;
    let known = ApiKey::from_code(start.api_key).filter(|key| key.versions().contains(start.api_version));
    let Some(api_key) = known else {
        let problem = DecodeProblem::UnsupportedVersion(start.api_version);
        return Err(reader.error("RequestHeader.RequestApiVersion", problem));
    };
    // Classic in all versions of the header: a broker must be able to read it before it knows the version.
    let client_id = reader.nullable_string("RequestHeader.ClientId", Form::Classic)?;
    if api_key.flexible(start.api_version) {
        reader.skip_tagged_fields("RequestHeader.tags")?;
    }
    let RequestStart { api_version, correlation_id, .. } = start;
    Ok(RequestHeader { api_key, api_version, correlation_id, client_id })
}

/// A whole request with its size.
pub fn encode_request<R: Request>(
    version: i16,
    correlation_id: i32,
    client_id: Option<&str>,
    request: &R,
) -> Result<Encoded, EncodeError> {
    let mut writer = Writer::with_capacity(USUAL_BYTES);
    writer.start_frame();
    writer.i16(R::KEY.code());
    writer.i16(version);
    writer.i32(correlation_id);
    match client_id {
        Some(id) => writer.string("RequestHeader.ClientId", id, Form::Classic)?,
        None => writer.null_string(Form::Classic),
    }
    if R::KEY.flexible(version) {
        writer.uvarint(0);
    }
    request.encode(version, &mut writer)?;
    writer.finish_frame()
}

/// A whole response to a request of kind `R`, with its size. `version` is that of the message; an answer to an
/// ApiVersions request in an unknown version is of version 0.
pub fn encode_response<R: Request>(
    version: i16,
    correlation_id: i32,
    response: &R::Response,
) -> Result<Encoded, EncodeError> {
    let mut writer = Writer::with_capacity(USUAL_BYTES);
    writer.start_frame();
    writer.i32(correlation_id);
    if response_header_is_flexible(R::KEY, version) {
        writer.uvarint(0);
    }
    response.encode(version, &mut writer)?;
    writer.finish_frame()
}

/// Reads the header of a response to a request of this kind and version; the reader then stands at the message.
/// Returns the correlation id.
pub fn decode_response_header(key: ApiKey, version: i16, reader: &mut Reader) -> Result<i32, DecodeError> {
    let correlation_id = reader.i32("ResponseHeader.CorrelationId")?;
    if response_header_is_flexible(key, version) {
        reader.skip_tagged_fields("ResponseHeader.tags")?;
    }
    Ok(correlation_id)
}

/// The correlation id of a response, which stands first in all versions. `frame` comes without its size.
pub fn peek_correlation_id(frame: &Bytes) -> Result<i32, DecodeError> {
    Reader::new(frame.clone()).i32("ResponseHeader.CorrelationId")
}

/// A whole response without its size: correlation id and message.
pub fn decode_response<R: Request>(version: i16, frame: Bytes) -> Result<(i32, R::Response), DecodeError> {
    let mut reader = Reader::new(frame);
    let correlation_id = decode_response_header(R::KEY, version, &mut reader)?;
    Ok((correlation_id, R::Response::decode(version, &mut reader)?))
}

/// Whether the header of a response has tagged fields: in flexible versions of all but ApiVersions.
#[must_use]
pub const fn response_header_is_flexible(key: ApiKey, version: i16) -> bool {
    !matches!(key, ApiKey::ApiVersions) && key.flexible(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{ApiVersionsRequest, ApiVersionsResponse, HeartbeatRequest, HeartbeatResponse};

    fn frame(encoded: &Encoded) -> Bytes {
        let bytes = encoded.to_bytes().unwrap();
        let len = frame_len(*bytes.first_chunk().unwrap(), 1000).unwrap();
        let frame = bytes.slice(SIZE_BYTES..);
        assert_eq!(len, frame.len());
        frame
    }

    #[test]
    fn golden_request() {
        let request =
            ApiVersionsRequest { client_software_name: "hr".into(), client_software_version: "1".into() };
        let bytes = encode_request(3, 5, Some("me"), &request).unwrap().to_bytes().unwrap();
        // Size; key 18, version 3, id 5, classic client id, no tags; compact strings, no tags.
        assert_eq!(bytes, &b"\0\0\0\x13\0\x12\0\x03\0\0\0\x05\0\x02me\0\x03hr\x021\0"[..]);
        let classic = encode_request(2, 5, None, &ApiVersionsRequest::default()).unwrap().to_bytes().unwrap();
        assert_eq!(classic, &b"\0\0\0\x0A\0\x12\0\x02\0\0\0\x05\xFF\xFF"[..]);
    }

    #[test]
    fn request_headers_come_back() {
        for version in HeartbeatRequest::VERSIONS.min..=HeartbeatRequest::VERSIONS.max {
            let request = HeartbeatRequest { group_id: "g".into(), ..HeartbeatRequest::default() };
            let bytes = frame(&encode_request(version, -3, Some("c"), &request).unwrap());
            let start = RequestStart { api_key: 12, api_version: version, correlation_id: -3 };
            assert_eq!(peek_request(&bytes), Ok(start));
            let mut reader = Reader::new(bytes);
            let header = decode_request_header(&mut reader).unwrap();
            assert_eq!(header.api_key, ApiKey::Heartbeat);
            assert_eq!((header.api_version, header.correlation_id), (version, -3));
            assert_eq!(header.client_id.as_deref(), Some("c"));
            assert_eq!(HeartbeatRequest::decode(version, &mut reader), Ok(request));
            assert_eq!(reader.remaining(), 0);
        }
    }

    #[test]
    fn an_unsupported_request_can_be_peeked_at() {
        for start in [
            RequestStart { api_key: 18, api_version: 99, correlation_id: 1 },
            RequestStart { api_key: 999, api_version: 0, correlation_id: 2 },
        ] {
            let mut writer = Writer::new();
            writer.i16(start.api_key);
            writer.i16(start.api_version);
            writer.i32(start.correlation_id);
            let bytes = writer.finish().to_bytes().unwrap();
            assert_eq!(peek_request(&bytes), Ok(start));
            let error = decode_request_header(&mut Reader::new(bytes)).unwrap_err();
            assert_eq!(error.problem, DecodeProblem::UnsupportedVersion(start.api_version));
        }
        let error = peek_request(&Bytes::from_static(b"\0\x12\0")).unwrap_err();
        assert_eq!(error.field, "RequestHeader.RequestApiVersion");
    }

    #[test]
    fn api_versions_responses_have_the_old_header() {
        let response = ApiVersionsResponse { error_code: 35, ..ApiVersionsResponse::default() };
        let flexible = encode_response::<ApiVersionsRequest>(4, 9, &response).unwrap();
        let bytes = frame(&flexible);
        assert_eq!(bytes, &b"\0\0\0\x09\0\x23\x01\0\0\0\0\0"[..]);
        assert_eq!(decode_response::<ApiVersionsRequest>(4, bytes.clone()), Ok((9, response)));
        assert_eq!(peek_correlation_id(&bytes), Ok(9));

        let other = HeartbeatResponse { throttle_time_ms: 1, error_code: 2 };
        let bytes = frame(&encode_response::<HeartbeatRequest>(4, 9, &other).unwrap());
        assert_eq!(bytes, &b"\0\0\0\x09\0\0\0\0\x01\0\x02\0"[..]);
        assert_eq!(decode_response::<HeartbeatRequest>(4, bytes), Ok((9, other)));
    }

    #[test]
    fn frame_sizes_have_limits() {
        assert_eq!(frame_len([0, 0, 1, 0], 256), Ok(256));
        assert_eq!(frame_len([0, 0, 1, 1], 256).unwrap_err().problem, DecodeProblem::FrameSize(257));
        // What a TLS hello or an HTTP request would claim.
        assert!(frame_len(*b"GET ", 100 << 20).is_err());
        assert_eq!(frame_len([0xFF; 4], usize::MAX).unwrap_err().problem, DecodeProblem::FrameSize(-1));
    }
}
