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
