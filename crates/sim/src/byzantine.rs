//! A peer that speaks Kafka's protocol badly, or not at all.

use bytes::Bytes;
use headrace_wire::frame::{decode_request_header, encode_response};
use headrace_wire::messages::api_versions_response::ApiVersion;
use headrace_wire::messages::{ApiKey, ApiVersionsRequest, ApiVersionsResponse};
use headrace_wire::primitive::Reader;

use crate::frames::Frames;
use crate::rng::Rng;

/// What it does instead of answering.
#[derive(Debug, Clone, Copy)]
enum Lie {
    Garbage,
    WrongCorrelation,
    OversizedFrame,
    NegativeFrame,
    GarbageInAFrame,
    HalfAFrame,
    Silence,
}

const LIES: &[Lie] = &[
    Lie::Garbage,
    Lie::WrongCorrelation,
    Lie::OversizedFrame,
    Lie::NegativeFrame,
    Lie::GarbageInAFrame,
    Lie::HalfAFrame,
    Lie::Silence,
];

/// A byzantine's side of one connection.
#[derive(Debug)]
pub(crate) struct ByzantinePeer {
    lie: Lie,
    /// The first exchange is honest, so that the lie meets a connection that is in use.
    honest_first: bool,
    frames: Frames,
}

impl ByzantinePeer {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        Self { lie: rng.pick(LIES), honest_first: rng.chance(70), frames: Frames::default() }
    }

    /// What it says to these bytes.
    pub(crate) fn receive(&mut self, rng: &mut Rng, bytes: &[u8]) -> Result<Vec<Bytes>, String> {
        self.frames.push(bytes);
        let mut said = Vec::new();
        while let Some(frame) = self.frames.next()? {
            let header = decode_request_header(&mut Reader::new(frame)).map_err(|why| why.to_string())?;
            let (version, id) = (header.api_version, header.correlation_id);
            if header.api_key == ApiKey::ApiVersions {
                let honest = handshake(version, id)?;
                if self.honest_first {
                    said.push(honest);
                    continue;
                }
            }
            said.extend(self.lie(rng, version, id)?);
        }
        Ok(said)
    }

    fn lie(&self, rng: &mut Rng, version: i16, id: i32) -> Result<Option<Bytes>, String> {
        let len = rng.index(80);
        let framed = |size: usize, id: i32, body: Vec<u8>| {
            let size = i32::try_from(size).unwrap_or(i32::MAX).to_be_bytes();
            Bytes::from([&size[..], &id.to_be_bytes()[..], &body].concat())
        };
        Ok(match self.lie {
            Lie::Garbage => Some(rng.bytes(len + 1).into()),
            Lie::WrongCorrelation => {
                Some(handshake(version.min(ApiKey::ApiVersions.versions().max), id.wrapping_add(1))?)
            }
            Lie::OversizedFrame => Some(framed(usize::MAX, id, rng.bytes(len))),
            Lie::NegativeFrame => Some(Bytes::from_static(&[0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 1])),
            Lie::GarbageInAFrame => Some(framed(4 + len, id, rng.bytes(len))),
            Lie::HalfAFrame => Some(framed(4 + 2 * len + 1, id, rng.bytes(len))),
            Lie::Silence => None,
        })
    }
}

fn handshake(version: i16, id: i32) -> Result<Bytes, String> {
    let keys = ApiKey::ALL.iter().map(|key| {
        let versions = key.versions();
        ApiVersion { api_key: key.code(), min_version: versions.min, max_version: versions.max }
    });
    let response = ApiVersionsResponse { api_keys: keys.collect(), ..Default::default() };
    let encoded =
        encode_response::<ApiVersionsRequest>(version, id, &response).map_err(|why| why.to_string())?;
    encoded.to_bytes().ok_or_else(|| "a response has no bytes".to_owned())
}
