//! Engines: their turns and timers, what they want done, and what they tell.

use headrace_client::engine::Engine;
use headrace_client::io::{ChannelEvent, ChannelRequest, ConnId, Input, LinkId, LinkRequest, Output};
use headrace_client::producer::ProducerEvent;
use headrace_wire::primitive::Segment;

use super::state::{Event, World};
use crate::client::{AnyEvent, Who};
use crate::net::Way;

impl World {
    pub(super) fn step(&mut self, number: usize, caller: usize) -> Result<(), String> {
        if self.producers[number].gone {
            return Ok(());
        }
        let again = self.producers[number].step(caller, self.now);
        let again = again.map_err(|why| format!("producer {number}: {why}"))?;
        if let Some(at) = again {
            self.at(at, Event::Caller(number, caller));
        }
        Ok(())
    }

    /// A timer is over, if it is still set to this time.
    pub(super) fn timer(&mut self, who: Who, armed: u64) -> Result<(), String> {
        if self.lives(who) && self.wires(who).armed == Some(armed) {
            self.wires(who).armed = None;
            if !matches!(who, Who::Producer(_)) {
                self.touch(who);
            }
            if self.wants_timeout(who).is_some_and(|at| at <= self.now.mono_ms) {
                self.input(who, Input::Timeout);
                self.settle(who)?;
            }
        }
        Ok(())
    }

    pub(super) fn turn(&mut self, who: Who) -> Result<(), String> {
        self.wires(who).turn_scheduled = false;
        match who {
            Who::Producer(number) => {
                if self.producers[number].gone {
                    return Ok(());
                }
                for command in self.producers[number].take_commands() {
                    self.producers[number].engine.handle(self.now, Input::Command(command));
                }
            }
            Who::Consumer(number) => {
                if self.consumers[number].gone {
                    return Ok(());
                }
                for command in self.consumers[number].take_commands() {
                    self.consumers[number].engine.handle(self.now, Input::Command(command));
                }
            }
            Who::ShareConsumer(number) => {
                if self.share_consumers[number].gone {
                    return Ok(());
                }
                for command in self.share_consumers[number].take_commands() {
                    self.share_consumers[number].engine.handle(self.now, Input::Command(command));
                }
            }
        }
        self.settle(who)
    }

    /// Carries out what an engine wants done, and hands on what it tells.
    pub(super) fn settle(&mut self, who: Who) -> Result<(), String> {
        if !matches!(who, Who::Producer(_)) {
            self.touch(who);
        }
        loop {
            // A parked record has its place before its batch can end.
            if let Who::Producer(number) = who {
                self.producers[number].hear(self.now).map_err(|why| format!("producer {number}: {why}"))?;
            }
            let (mut quiet, mut rings) = (true, false);
            while let Some(output) = self.poll_output(who) {
                quiet = false;
                match output {
                    Output::Channel(conn, request) => self.act(who, conn, request)?,
                    Output::Link(link, request) => self.act_on_link(who, link, request)?,
                    Output::Event(event) => rings |= self.hear(who, event)?,
                }
            }
            if rings {
                self.ring(who);
            }
            if quiet {
                return self.check_ended(who);
            }
        }
    }

    /// Hands on what an engine tells; whether its caller is woken by that.
    fn hear(&mut self, who: Who, event: AnyEvent) -> Result<bool, String> {
        match (who, event) {
            (Who::Producer(number), AnyEvent::Producer(event)) => {
                self.hear_producer(number, event)?;
                Ok(false)
            }
            (Who::Consumer(number), AnyEvent::Consumer(event)) => self.hear_consumer(number, event),
            (Who::ShareConsumer(number), AnyEvent::Share(event)) => self.hear_share_consumer(number, event),
            (who, event) => Err(format!("{who:?} tells {event:?}")),
        }
    }

    /// A caller is woken, which may take its time.
    fn ring(&mut self, who: Who) {
        let lag_ms = if self.healed { 0 } else { self.plan.lag_ms_max };
        let at = self.now.mono_ms + self.rng.between(0, lag_ms);
        match who {
            // Its callers are woken one by one.
            Who::Producer(_) => {}
            Who::Consumer(number) => self.at(at, Event::Reader(number)),
            Who::ShareConsumer(number) => self.at(at, Event::ShareConsumer(number)),
        }
    }

    fn hear_producer(&mut self, number: usize, event: ProducerEvent) -> Result<(), String> {
        self.tell(|| format!("producer {number} tells {event:?}"));
        self.digest(1);
        let woken = self.producers[number].on_event(self.now, event);
        for caller in woken.map_err(|why| format!("producer {number}: {why}"))? {
            self.at(self.now.mono_ms, Event::Caller(number, caller));
        }
        Ok(())
    }

    pub(super) fn after_producer(&mut self, number: usize) {
        let lag_ms = if self.healed { 0 } else { self.plan.lag_ms_max };
        for caller in self.producers[number].take_woken() {
            let at = self.now.mono_ms + self.rng.between(0, lag_ms);
            self.at(at, Event::Caller(number, caller));
        }
        self.after_client(Who::Producer(number));
    }

    pub(super) fn after_client(&mut self, who: Who) {
        if !self.lives(who) {
            return;
        }
        let lag_ms = if self.healed { 0 } else { self.plan.lag_ms_max };
        let has_commands = match who {
            Who::Producer(number) => self.producers[number].has_commands(),
            Who::Consumer(number) => self.consumers[number].has_commands(),
            Who::ShareConsumer(number) => self.share_consumers[number].has_commands(),
        };
        if has_commands && !self.wires(who).turn_scheduled {
            self.wires(who).turn_scheduled = true;
            let at = self.now.mono_ms + self.rng.between(0, lag_ms);
            self.at(at, Event::Turn(who));
        }
        if let Some(at) = self.wants_timeout(who)
            && self.wires(who).armed.is_none_or(|armed| at < armed)
        {
            self.wires(who).armed = Some(at);
            let late = at.max(self.now.mono_ms) + self.rng.between(0, lag_ms);
            self.at(late, Event::Timer(who, at));
        }
    }

    /// Carries out what is to be done about a link, or over it.
    fn act_on_link(&mut self, who: Who, link: LinkId, request: LinkRequest) -> Result<(), String> {
        match request {
            LinkRequest::Connect { address, token } => self.begin_link(who, link, address, token.0),
            LinkRequest::MakeEndpoint => {
                self.begin_verbs(who, link);
                Ok(())
            }
            LinkRequest::Join(hello) => {
                self.connect_verbs(who, link, &hello);
                Ok(())
            }
            LinkRequest::Close => self.unlink(who, link),
            request => self.link_request(who, link, request),
        }
    }

    pub(super) fn act(&mut self, who: Who, conn: ConnId, request: ChannelRequest) -> Result<(), String> {
        match request {
            ChannelRequest::Connect { host, port } => self.begin_connect(who, conn, &host, port)?,
            ChannelRequest::Write(data) => {
                let Some(&conn) = self.wires(who).conns.get(&conn) else { return Ok(()) };
                self.tell(|| format!("{who:?} writes {} bytes to connection {conn}", data.len));
                if let Who::Consumer(number) = who {
                    self.inspect(number, conn, &data)?;
                }
                for segment in data.segments {
                    let Segment::Bytes(bytes) = segment else {
                        return Err("a client writes bytes that it does not have".to_owned());
                    };
                    self.send(conn, Way::ToServer, bytes);
                }
            }
            ChannelRequest::MakeEndpoint | ChannelRequest::Carry(_) => {
                return Err("a client carries a connection over RDMA".to_owned());
            }
            ChannelRequest::RenewToken => self.channel(who, conn, ChannelEvent::TokenRenewed),
            ChannelRequest::Close => {
                let Some(key) = self.wires(who).conns.remove(&conn) else { return Ok(()) };
                self.wires(who).conns_ended += 1;
                self.tell(|| format!("{who:?} closes connection {key}"));
                self.server.give_up(key);
                if let Who::ShareConsumer(number) = who {
                    self.share_consumers[number].note_loss(self.now);
                }
                let (due, lossy) = (self.delay(), self.rng.chance(50));
                let Some(conn) = self.conns.get_mut(&key) else { return Ok(()) };
                conn.client = false;
                conn.to_client.clear();
                conn.to_client.mute();
                conn.to_server.copy_out();
                if lossy {
                    conn.to_server.lose_tail(&mut self.rng);
                }
                let due = conn.to_server.end(due);
                self.arrivals(key, Way::ToServer, due);
            }
        }
        Ok(())
    }
}
