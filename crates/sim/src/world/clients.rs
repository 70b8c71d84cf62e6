//! Engines: their turns and timers, what they want done, and what they tell.

use headrace_client::engine::{Action, Engine, OverVerbs};
use headrace_wire::primitive::Segment;

use super::{Event, World};
use crate::client::{Runs, Who, Wires};
use crate::net::Way;

impl World {
    pub(super) fn runs(&mut self, who: Who) -> &mut dyn Runs {
        match who {
            Who::Producer(number) => &mut self.producers[number].engine,
            Who::Consumer(number) => &mut self.consumers[number].engine,
            Who::Sharer(number) => &mut self.sharers[number].engine,
        }
    }

    pub(super) fn wires(&mut self, who: Who) -> &mut Wires {
        match who {
            Who::Producer(number) => &mut self.producers[number].wires,
            Who::Consumer(number) => &mut self.consumers[number].wires,
            Who::Sharer(number) => &mut self.sharers[number].wires,
        }
    }

    pub(super) fn wants_timeout(&self, who: Who) -> Option<u64> {
        match who {
            Who::Producer(number) => self.producers[number].engine.wants_timeout(),
            Who::Consumer(number) => self.consumers[number].engine.wants_timeout(),
            Who::Sharer(number) => self.sharers[number].engine.wants_timeout(),
        }
    }

    pub(super) fn lives(&self, who: Who) -> bool {
        match who {
            Who::Producer(number) => !self.producers[number].gone,
            Who::Consumer(number) => !self.consumers[number].gone,
            Who::Sharer(number) => !self.sharers[number].gone,
        }
    }

    pub(super) fn touch(&mut self, who: Who) {
        if !self.touched.contains(&who) {
            self.touched.push(who);
        }
    }

    pub(super) fn turn(&mut self, who: Who) -> Result<(), String> {
        self.wires(who).turn_scheduled = false;
        match who {
            Who::Producer(number) => {
                if self.producers[number].gone {
                    return Ok(());
                }
                for command in self.producers[number].take_commands() {
                    self.producers[number].engine.handle_command(self.now, command);
                }
            }
            Who::Consumer(number) => {
                if self.consumers[number].gone {
                    return Ok(());
                }
                for command in self.consumers[number].take_commands() {
                    self.consumers[number].engine.handle_command(self.now, command);
                }
            }
            Who::Sharer(number) => {
                if self.sharers[number].gone {
                    return Ok(());
                }
                for command in self.sharers[number].take_commands() {
                    self.sharers[number].engine.handle_command(self.now, command);
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
            let mut quiet = true;
            while let Some(action) = self.runs(who).action() {
                quiet = false;
                self.act(who, action)?;
            }
            quiet &= match who {
                Who::Producer(number) => self.hear_producer(number)?,
                Who::Consumer(number) => self.hear_consumer(number)?,
                Who::Sharer(number) => self.hear_sharer(number)?,
            };
            if quiet {
                return self.check_ended(who);
            }
        }
    }

    /// True when it tells nothing.
    pub(super) fn hear_producer(&mut self, number: usize) -> Result<bool, String> {
        let mut quiet = true;
        while let Some(event) = self.producers[number].engine.poll_event() {
            quiet = false;
            self.tell(|| format!("producer {number} tells {event:?}"));
            self.digest(1);
            let woken = self.producers[number].on_event(self.now, event);
            for caller in woken.map_err(|why| format!("producer {number}: {why}"))? {
                self.at(self.now.mono_ms, Event::Caller(number, caller));
            }
        }
        Ok(quiet)
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
            Who::Sharer(number) => self.sharers[number].has_commands(),
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

    pub(super) fn act(&mut self, who: Who, action: Action) -> Result<(), String> {
        match action {
            Action::Connect { conn, host, port } => self.begin_connect(who, conn, &host, port)?,
            Action::Write { conn, data } => {
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
            Action::Link { link, address, token } => self.begin_link(who, link, address, token.0)?,
            Action::WriteDirect(write) => self.write_direct(who, &write)?,
            Action::Unlink { link } => self.unlink(who, link)?,
            Action::Verbs(OverVerbs::Begin { link }) => self.begin_verbs(who, link),
            Action::Verbs(OverVerbs::Connect { link, hello }) => self.connect_verbs(who, link, &hello),
            Action::Verbs(OverVerbs::Draw { link, key, at, add }) => self.draw(who, link, (key, at, add))?,
            // The simulated client sees the broker's word itself.
            Action::Verbs(OverVerbs::Refresh { .. }) => {}
            Action::Verbs(OverVerbs::Read { link, key, at, len }) => {
                self.card_reads(who, link, (key, at, len));
            }
            Action::Verbs(OverVerbs::Watch { link, key, bytes }) => {
                self.card_watches(who, link, key, bytes)?;
            }
            Action::Verbs(OverVerbs::Offer { .. } | OverVerbs::Carry { .. }) => {
                return Err("a client carries a connection over RDMA".to_owned());
            }
            Action::Token { conn } => {
                let now = self.now;
                self.runs(who).token(now, conn);
            }
            Action::Close { conn } => {
                let Some(key) = self.wires(who).conns.remove(&conn) else { return Ok(()) };
                self.wires(who).conns_ended += 1;
                self.tell(|| format!("{who:?} closes connection {key}"));
                self.server.give_up(key);
                if let Who::Sharer(number) = who {
                    self.sharers[number].note_loss(self.now);
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
