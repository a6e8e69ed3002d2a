//! The state and the actions of a broker, without sockets and without a clock.
//!
//! Owns: the effect of each line that a connected process sends, and the order of demands. Each device serves one
//! demand at a time, so that memory given for one request is not counted for another. Demands of processes below their
//! guarantees come first; among equals, the earlier demand does. A demand can be overtaken only a limited number of
//! times.
//!
//! The caller passes in the received bytes and the time, and sends the contents of the outboxes. The callers are the
//! broker with its sockets ([`Broker::run`](crate::Broker::run)), and tests that try many orders (`tests/schedules`).
//!
//! ```text
//! room     (here) all peers and demands
//! peer     one connection: its lines, its outbox, its time limit
//! demand   the steps of asking other members for a process that is short of memory
//! event    the reports to the program that runs the broker
//! ```
//!
//! ```
//! use seamalloc_broker::state::Room;
//! use std::time::Instant;
//!
//! let now = Instant::now();
//! let mut room = Room::new(now);
//! let member = room.enter(4711, now);
//! room.hear(member, b"{\"join\":{\"version\":1,\"device\":\"gpu\",\"guarantee\":0}}\n", now);
//! room.advance(now);
//! let said = room.outbox(member).map(std::mem::take);
//! assert_eq!(said.as_deref(), Some(&b"{\"joined\":{\"version\":1,\"member\":1}}\n"[..]));
//! ```

mod demand;
mod event;
mod peer;

use crate::protocol::{Answer, First, Has, Join, MAX_COMMAND, MAX_DEVICE, MAX_LIST, MemberStatus, Said, VERSION, line};
use demand::{Demand, GIVE_WITHIN_MS, LOOK, Step};
pub use event::{Event, GivenBy};
use peer::{Member, Peer, Role};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The time after a process's end in which the driver may still be reclaiming its memory.
const DEPARTED: Duration = Duration::from_secs(3);
/// The most departures that are remembered.
const MAX_DEPARTED: usize = 256;
/// The time after the broker's start in which the broker may not know all members. Members of a killed broker try to
/// connect every half second.
const SETTLING: Duration = Duration::from_millis(1500);
/// How often a waiting demand may be overtaken by later demands of members below their guarantees.
const MAX_OVERTAKEN: u32 = 2;

/// All connections, and all demands.
#[derive(Clone, Debug)]
pub struct Room {
    peers: BTreeMap<u64, Peer>,
    demands: Vec<Demand>,
    looks: Vec<Look>,
    departed: Vec<(String, Instant)>,
    events: Vec<Event>,
    entered: u64,
    questions: u64,
    begun: Instant,
    /// The most members. Further processes are refused.
    most_members: usize,
}

/// A request for the list of all members. To answer it, the broker asks each member for its bytes.
#[derive(Clone, Debug)]
struct Look {
    asker: u64,
    waiting: BTreeSet<u64>,
    until: Instant,
}

impl Room {
    /// Makes a room without connections.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            peers: BTreeMap::new(),
            demands: Vec::new(),
            looks: Vec::new(),
            departed: Vec::new(),
            events: Vec::new(),
            entered: 0,
            questions: 0,
            begun: now,
            most_members: usize::MAX,
        }
    }

    /// Limits the number of members to `most`.
    pub(crate) fn bound_members(&mut self, most: usize) {
        self.most_members = most;
    }

    /// Adds a connection of the process with number `pid`. Returns the number of the connection.
    pub fn enter(&mut self, pid: i32, now: Instant) -> u64 {
        self.entered += 1;
        self.peers.insert(self.entered, Peer::new(pid, now));
        self.entered
    }

    /// Takes received bytes of a connection, in any pieces. Returns whether the connection stays open. Bytes after a
    /// question are dropped.
    pub fn hear(&mut self, id: u64, bytes: &[u8], now: Instant) -> bool {
        if let Some(peer) = self.peers.get_mut(&id).filter(|peer| peer.speaks()) {
            peer.inbox.push(bytes);
        }
        while let Some(peer) = self.peers.get_mut(&id) {
            if !peer.speaks() {
                return true;
            }
            match peer.hear() {
                Ok(Some(line)) => self.heard(id, &line, now),
                Ok(None) => return true,
                Err(error) => {
                    tracing::debug!(%error, peer = id, "a connection of the broker is closed");
                    self.leave(id, now);
                }
            }
        }
        false
    }

    /// Returns whether a connection is open.
    #[must_use]
    pub fn is_open(&self, id: u64) -> bool {
        self.peers.contains_key(&id)
    }

    /// Returns whether more messages of a connection are expected. A connection that has asked its question sends no
    /// more.
    pub(crate) fn listens_to(&self, id: u64) -> bool {
        self.peers.get(&id).is_some_and(Peer::speaks)
    }

    /// Returns whether a connection belongs to a member.
    #[must_use]
    pub fn is_member(&self, id: u64) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.member().is_some())
    }

    /// Returns how many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.peers.len()
    }

    /// Returns the members, with the figures of their last answers.
    #[must_use]
    pub fn members(&self) -> Vec<MemberStatus> {
        self.peers.values().filter_map(Peer::member).map(|member| member.known.clone()).collect()
    }

    /// Returns the bytes to be sent over a connection; `None` if the connection is closed. The sender removes the bytes
    /// that it has sent.
    pub fn outbox(&mut self, id: u64) -> Option<&mut Vec<u8>> {
        self.peers.get_mut(&id).map(|peer| &mut peer.outbox)
    }

    /// Returns the events since the last call.
    #[must_use]
    pub fn told(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Returns when the next time limit ends, and [`Self::advance`] must be called. `None` if there is no time limit.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let steps = self.demands.iter().filter(|demand| demand.step != Step::Queued).map(|demand| demand.until);
        steps.chain(self.looks.iter().map(|look| look.until)).chain(self.peers.values().filter_map(Peer::until)).min()
    }

    /// Removes a connection that is closed, or whose process has ended.
    pub fn leave(&mut self, id: u64, now: Instant) {
        let Some(peer) = self.peers.remove(&id) else { return };
        self.demands.retain(|demand| demand.asker != id);
        self.demands.iter_mut().for_each(|demand| demand.forget(id));
        self.looks.retain(|look| look.asker != id);
        for look in &mut self.looks {
            look.waiting.remove(&id);
        }
        if let Some(member) = peer.member() {
            self.departed.retain(|(_, at)| now.duration_since(*at) < DEPARTED);
            if self.departed.len() == MAX_DEPARTED {
                self.departed.remove(0);
            }
            self.departed.push((member.known.device.clone(), now));
            self.events.push(Event::Left { member: id, pid: peer.pid, held: member.known.held });
        }
    }

    /// Handles due time limits. Closes connections whose answer is sent, or whose time is over.
    pub fn advance(&mut self, now: Instant) {
        let over = |peer: &Peer| peer.is_done() || peer.until().is_some_and(|until| now >= until);
        let gone: Vec<u64> = self.peers.iter().filter(|(_, peer)| over(peer)).map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.leave(id, now));
        // If no member can be asked, a step of a demand ends immediately, so the loop looks for the next step.
        while self.begin(now) || self.go_on(now) {}
        // A member that has not answered in time is listed with the figures of its last answer.
        while let Some(at) = self.looks.iter().position(|look| look.waiting.is_empty() || now >= look.until) {
            let look = self.looks.remove(at);
            self.list(look.asker, now);
        }
    }

    /// Begins the next demand of a device that serves no demand. Returns whether a demand began.
    fn begin(&mut self, now: Instant) -> bool {
        let busy: BTreeSet<&str> =
            self.demands.iter().filter(|demand| demand.step != Step::Queued).map(device).collect();
        let waiting = self.demands.iter().enumerate();
        let next = waiting.filter(|(_, demand)| demand.step == Step::Queued && !busy.contains(device(demand)));
        // Of equal demands, the earliest is served.
        let order = |demand: &Demand| (demand.overtaken < MAX_OVERTAKEN, !self.is_below_guarantee(demand));
        let Some((at, _)) = next.min_by_key(|(_, demand)| order(demand)) else { return false };
        let Some(demand) = self.demands.get(at) else { return false };
        let (device, own) = (demand.ask.device.clone(), self.own(demand));
        for earlier in self.demands.iter_mut().take(at) {
            if earlier.step == Step::Queued && earlier.ask.device == device {
                earlier.overtaken += 1;
            }
        }
        let concerns = |id: u64, member: &Member| member.known.device == device && own != Some(id);
        let members = self.peers.iter().filter_map(|(id, peer)| Some((*id, peer.member()?)));
        let all = members.filter(|(id, member)| concerns(*id, member)).count();
        let (number, asked) = self.question(concerns);
        let silent = u32::try_from(all - asked.len()).unwrap_or(u32::MAX);
        let Some(demand) = self.demands.get_mut(at) else { return false };
        demand.look(number, &asked, silent, now);
        asked.into_iter().for_each(|id| self.say(id, &Said::Spare { number }, now));
        true
    }

    /// Continues a demand whose step (a question to members) is over. Returns whether a demand continued.
    fn go_on(&mut self, now: Instant) -> bool {
        let Some(at) = self.demands.iter().position(|demand| demand.is_due(now)) else { return false };
        self.questions += 1;
        let number = self.questions;
        let Some(demand) = self.demands.get_mut(at) else { return false };
        let late: Vec<u64> = demand.waiting.keys().copied().collect();
        let gives = demand.next(number, now);
        for id in late {
            if let Some(member) = self.peers.get_mut(&id).and_then(Peer::member_mut) {
                (member.late, member.known.silent) = (true, member.known.silent + 1);
            }
        }
        if gives.is_empty() {
            let demand = self.demands.remove(at);
            self.finish(&demand, now);
        }
        for (id, bytes) in gives {
            if let Some(member) = self.peers.get_mut(&id).and_then(Peer::member_mut) {
                member.open.push(number);
                member.known.asked_for = member.known.asked_for.saturating_add(bytes);
            }
            self.say(id, &Said::Give { number, bytes, within_ms: GIVE_WITHIN_MS }, now);
        }
        true
    }

    fn finish(&mut self, demand: &Demand, now: Instant) {
        let departed =
            |(device, at): &(String, Instant)| *device == demand.ask.device && now.duration_since(*at) < DEPARTED;
        let is_new = now.duration_since(self.begun) < SETTLING;
        let lent = demand.lent(is_new || self.departed.iter().any(departed));
        let short = self.own(demand).and_then(|id| self.peers.get_mut(&id)).and_then(Peer::member_mut);
        if let Some(member) = short {
            member.known.was_short += 1;
            member.known.received = member.known.received.saturating_add(lent.given);
        }
        if lent.given > 0 {
            self.events.push(demand.event(now));
        }
        self.dismiss(demand.asker, &Said::Lent(lent), now);
    }

    /// Returns the asker's own number as a member; `None` if the asker is no member. The asker may have sent a number
    /// of an earlier broker, which now belongs to another member. If the asker's process number is unknown (0), its
    /// number is accepted only if it belongs to a member whose process number is unknown too.
    fn own(&self, demand: &Demand) -> Option<u64> {
        let is_own = |peer: &Peer| {
            peer.pid == demand.pid && peer.member().is_some_and(|member| member.known.device == demand.ask.device)
        };
        demand.ask.member.filter(|id| self.peers.get(id).is_some_and(is_own))
    }

    fn is_below_guarantee(&self, demand: &Demand) -> bool {
        let member = self.own(demand).and_then(|id| self.peers.get(&id)).and_then(Peer::member);
        member.is_some_and(|member| demand.ask.held < member.known.guarantee)
    }

    /// Handles a line of a peer.
    fn heard(&mut self, id: u64, line: &[u8], now: Instant) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        match peer.role {
            Role::New => match serde_json::from_slice::<First>(line) {
                Ok(first) => self.first(id, first, now),
                Err(error) => self.refuse(id, format!("this is no question: {error}"), now),
            },
            Role::Member(_) => match serde_json::from_slice::<Answer>(line) {
                Ok(Answer::Has(has)) => self.has(id, has),
                Err(error) => self.refuse(id, format!("this is no answer: {error}"), now),
            },
            Role::Asker | Role::Leaving => {}
        }
    }

    fn first(&mut self, id: u64, first: First, now: Instant) {
        let (version, device) = match &first {
            First::Join(join) => (join.version, Some(&join.device)),
            First::Ask(ask) => (ask.version, Some(&ask.device)),
            First::Status { version } => (*version, None),
        };
        if version != VERSION {
            return self.refuse(id, format!("it speaks version {version}, and this broker {VERSION}"), now);
        }
        if device.is_some_and(|device| device.is_empty() || device.len() > MAX_DEVICE) {
            return self.refuse(id, format!("a device has a name, of {MAX_DEVICE} bytes at most"), now);
        }
        match first {
            First::Join(join) => self.join(id, join, now),
            First::Ask(ask) => {
                let Some(peer) = self.peers.get_mut(&id) else { return };
                peer.wait();
                self.demands.push(Demand::new(id, peer.pid, ask, now));
            }
            First::Status { .. } => self.look(id, now),
        }
    }

    fn join(&mut self, id: u64, join: Join, now: Instant) {
        if self.peers.values().filter(|peer| peer.member().is_some()).count() >= self.most_members {
            let why = format!("{} processes take part, for which the broker has descriptors", self.most_members);
            tracing::warn!(most = self.most_members, "a process is refused: the broker has no more descriptors");
            return self.refuse(id, why, now);
        }
        let Some(peer) = self.peers.get_mut(&id) else { return };
        let Join { device, guarantee, mut command, .. } = join;
        let end = (0..=MAX_COMMAND.min(command.len())).rev().find(|end| command.is_char_boundary(*end));
        command.truncate(end.unwrap_or(0));
        command.retain(|ch| !ch.is_control());
        let event = Event::Joined { member: id, pid: peer.pid, device: device.clone(), guarantee };
        peer.join(MemberStatus { member: id, pid: peer.pid, command, device, guarantee, ..MemberStatus::default() });
        self.events.push(event);
        self.say(id, &Said::Joined { version: VERSION, member: id }, now);
    }

    /// Asks all members for their bytes.
    fn look(&mut self, id: u64, now: Instant) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        peer.wait();
        let (number, asked) = self.question(|_, _| true);
        let waiting = asked.iter().copied().collect();
        self.looks.push(Look { asker: id, waiting, until: now + LOOK });
        asked.into_iter().for_each(|member| self.say(member, &Said::Spare { number }, now));
    }

    /// Makes a new question for these members. Returns the question's number and the members asked. A late member is
    /// not asked again until it has answered.
    fn question(&mut self, concerns: impl Fn(u64, &Member) -> bool) -> (u64, Vec<u64>) {
        self.questions += 1;
        let mut asked = Vec::new();
        for (id, peer) in &mut self.peers {
            if let Some(member) = peer.member_mut()
                && member.may_be_asked()
                && concerns(*id, member)
            {
                member.open.push(self.questions);
                asked.push(*id);
            }
        }
        (self.questions, asked)
    }

    /// Answers with the list of all members, as far as they fit into the answer.
    fn list(&mut self, id: u64, now: Instant) {
        let mut room = MAX_LIST / 2;
        let mut members = Vec::new();
        for member in self.peers.values().filter_map(Peer::member) {
            let length = line(&member.known).map_or(0, |line| line.len());
            let Some(left) = room.checked_sub(length) else { break };
            room = left;
            members.push(member.known.clone());
        }
        self.dismiss(id, &Said::Members(members), now);
    }

    /// Records a member's bytes from an answer.
    fn has(&mut self, id: u64, has: Has) {
        let Some(member) = self.peers.get_mut(&id).and_then(Peer::member_mut) else { return };
        // An answer without an open question is ignored.
        let Some(at) = member.open.iter().position(|number| *number == has.number) else { return };
        member.open.remove(at);
        member.late &= !member.open.is_empty();
        let known = &mut member.known;
        (known.held, known.live, known.free) = (has.held, has.live, has.free);
        known.given = known.given.saturating_add(has.given);
        let guarantee = known.guarantee;
        for look in &mut self.looks {
            look.waiting.remove(&id);
        }
        if let Some(demand) = self.demands.iter_mut().find(|demand| demand.number == has.number) {
            demand.answered(id, guarantee, has);
        }
    }

    fn refuse(&mut self, id: u64, why: String, now: Instant) {
        if self.peers.get(&id).is_some_and(|peer| peer.member().is_some()) {
            tracing::warn!(peer = id, why, "a process does not speak as a member; it takes part no more");
            return self.leave(id, now);
        }
        self.dismiss(id, &Said::Refused(why), now);
    }

    fn dismiss(&mut self, id: u64, said: &Said, now: Instant) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if peer.dismiss(said, now).is_err() {
            self.leave(id, now);
        }
    }

    fn say(&mut self, id: u64, said: &Said, now: Instant) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Err(error) = peer.say(said) {
            tracing::debug!(%error, peer = id, "a process takes part no more");
            self.leave(id, now);
        }
    }
}

fn device(demand: &Demand) -> &str {
    &demand.ask.device
}
