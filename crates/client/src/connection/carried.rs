//! The last step before calls, with `headrace.datapath=two-sided`: from then on the connection uses RDMA.

use bytes::Bytes;
use headrace_wire::errors::ErrorCode;
use headrace_wire::frame::encode_request;
use headrace_wire::messages::{DirectConnectRequest, DirectConnectResponse, Message, Request};
use headrace_wire::primitive::{Encoded, Reader};

use super::{BrokerVersions, Connection, Received, State};
use crate::error::{Error, Result};

/// What the broker calls it.
const FABRIC: &str = "two-sided";
const OPTION: &str = "headrace.datapath";

impl<T> Connection<T> {
    /// The broker knows who we are: calls may be sent, or sent once the connection goes over RDMA.
    pub(super) fn get_ready(&mut self, versions: BrokerVersions, out: &mut Vec<Received<T>>) -> Result<()> {
        // A login that renews the session goes where all goes.
        if !std::mem::take(&mut self.is_to_be_carried) {
            self.state = State::Ready(versions);
            out.push(Received::Ready);
            return Ok(());
        }
        if versions.get(DirectConnectRequest::KEY.code()).is_none() {
            let why = format!("{} is no broker of headrace's, and has no RDMA", self.peer);
            return Err(Error::config(OPTION, why));
        }
        self.state = State::AwaitingEnd(versions);
        out.push(Received::NeedsEnd);
        Ok(())
    }

    /// Our end of the link is made: asks for the broker's. Nothing when it is not awaited any more.
    pub(crate) fn offered(
        &mut self,
        made: std::result::Result<Vec<u8>, String>,
        client_id: &str,
    ) -> Result<Option<Encoded>> {
        let State::AwaitingEnd(versions) = &self.state else { return Ok(None) };
        let versions = versions.clone();
        let hello = made.map_err(|why| Error::config(OPTION, why))?;
        let request = DirectConnectRequest { fabric: FABRIC.to_owned(), hello: hello.into() };
        let correlation = self.next_correlation();
        let version = DirectConnectRequest::VERSIONS.max;
        let data = encode_request(version, correlation, Some(client_id), &request)
            .map_err(|e| Error::Usage(format!("DirectConnect cannot be encoded: {e}")))?;
        self.state = State::AskingEnd { versions, correlation };
        Ok(Some(data))
    }

    /// The broker's answer: the last thing that comes over TCP.
    pub(super) fn take_end(&mut self, mut body: Bytes, out: &mut Vec<Received<T>>) -> Result<()> {
        let State::AskingEnd { versions, .. } = &self.state else { return Ok(()) };
        let versions = versions.clone();
        let version = DirectConnectRequest::VERSIONS.max;
        self.skip_header(DirectConnectRequest::KEY, version, &mut body)?;
        let response = DirectConnectResponse::decode(version, &mut Reader::new(body))
            .map_err(|e| self.protocol(format!("sent a broken DirectConnect response: {e}")))?;
        let code = ErrorCode::from(response.error_code);
        if !code.is_none() {
            let why = response.error_message.unwrap_or_default();
            let refusal = Error::broker(code, why);
            return Err(if refusal.retriable() {
                refusal
            } else {
                Error::config(OPTION, refusal.to_string())
            });
        }
        out.push(Received::Carry(response.hello));
        self.state = State::Ready(versions);
        out.push(Received::Ready);
        Ok(())
    }
}
