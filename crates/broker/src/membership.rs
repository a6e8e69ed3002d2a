//! The membership of a process at the broker.
//!
//! Owns: the thread that answers the broker, and the lender that asks the broker. The thread sleeps until a message of
//! the broker arrives. Without a broker, the thread tries to connect every half second.

use crate::error::BrokerError;
use crate::protocol::{Answer, Ask, First, Has, Join, LentSaid, MAX_COMMAND, MAX_LINE, Said, VERSION, line};
use crate::status::exchange;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
pub use seamalloc::Lent;
use seamalloc::{Allocator, Lender, Shortage};
use seamalloc_socket::{Bounded, Lines, Owner, Stop, Stopped, command_line, connect};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The time limit for immediate answers of the broker, and for sending a line.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time limit for the answer to a demand. The broker asks the other processes in up to three rounds (`ROUNDS`) of
/// at most two seconds each (`GIVE`). A demand may also wait for earlier demands.
const PATIENCE_OF_ASKERS: Duration = Duration::from_secs(10);
/// The time between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a request waits for a lost broker to return, if the process was connected to it.
const RETURN: Duration = Duration::from_secs(3);
/// The time between two demands of one request: an eighth of the time that the request has waited, within these bounds.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// The pause between two tries to release memory for one demand of the broker. Meanwhile work on the GPU may end, so
/// that the next try finds more free memory.
const BETWEEN_RELEASES: Duration = Duration::from_millis(1);
/// The longest time for which an answer waits for work on the GPU that still uses freed memory. Afterwards the answer
/// reports the bytes released so far.
const MOST_RELEASES: Duration = Duration::from_millis(20);

/// The terms on which a process takes part.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Terms {
    /// The device: [`DeviceProperties::identity`](seamalloc::driver::DeviceProperties::identity).
    pub device: String,
    /// The broker's socket.
    pub socket: PathBuf,
    /// The guarantee in bytes: [`Config::broker_guarantee`](seamalloc::Config::broker_guarantee).
    pub guarantee: u64,
    /// The wait: [`Config::broker_wait_ms`](seamalloc::Config::broker_wait_ms).
    pub wait: Duration,
}

impl Terms {
    /// Makes terms without a guarantee, with the default time that a request waits for memory.
    #[must_use]
    pub fn new(device: &str, socket: &Path) -> Self {
        let config = seamalloc::Config::default();
        Self {
            device: device.to_owned(),
            socket: socket.to_owned(),
            guarantee: config.broker_guarantee,
            wait: Duration::from_millis(config.broker_wait_ms),
        }
    }

    /// Returns the terms in an allocator's options; `None` if the options name no broker.
    #[must_use]
    pub fn of(allocator: &Allocator) -> Option<Self> {
        let config = allocator.config();
        let named = config.broker.as_deref()?;
        let socket = if named == "auto" { crate::default_socket() } else { PathBuf::from(named) };
        let terms = Self::new(&allocator.driver().properties().identity, &socket);
        let wait = Duration::from_millis(config.broker_wait_ms);
        Some(Self { guarantee: config.broker_guarantee, wait, ..terms })
    }
}

/// The allocator of a membership.
pub trait Member: Send + 'static {
    /// Calls `look` with the allocator. Returns `false` if the allocator has ended, which also ends the membership.
    fn with(&self, look: &mut dyn FnMut(&Allocator)) -> bool;
}

impl Member for Weak<Allocator> {
    fn with(&self, look: &mut dyn FnMut(&Allocator)) -> bool {
        self.upgrade().map(|allocator| look(&allocator)).is_some()
    }
}

/// The state that the thread and the lender share.
#[derive(Debug)]
struct Shared {
    terms: Terms,
    /// The process that started the thread. A forked child has a copy of the state, but no thread.
    owner: Owner,
    link: Mutex<Link>,
    joined: Condvar,
}

impl Shared {
    /// Returns the link; `None` in a forked child. In the child, the thread that may have held the lock at the fork
    /// does not exist.
    fn link(&self) -> Option<MutexGuard<'_, Link>> {
        self.owner.is_here().then(|| self.link.lock())
    }
}

#[derive(Debug, Default)]
struct Link {
    /// This process's number at the broker, while the process is connected.
    member: Option<u64>,
    /// The time at which the connection was lost.
    lost: Option<Instant>,
}

/// A membership, which ends when it is dropped.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<Shared>,
    /// Dropping this field ends the thread.
    _stop: Stop,
}

impl Membership {
    /// Starts the thread that joins the broker and answers it. A missing broker is no error: the thread tries again
    /// until a broker runs. The allocator asks other processes only after it gets [`Self::lender`].
    ///
    /// # Errors
    /// [`BrokerError::Thread`].
    pub fn start(terms: Terms, member: impl Member) -> Result<Self, BrokerError> {
        let (stop, stopped) = Stop::new().map_err(BrokerError::Thread)?;
        let (link, joined) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { terms, owner: Owner::here(), link, joined });
        let of_thread = Arc::clone(&shared);
        let run = move || {
            // The allocator's sources and observers are code of the program, which may panic.
            if catch_unwind(AssertUnwindSafe(|| take_part(&of_thread, &member, &stopped))).is_err() {
                tracing::error!("a panic while memory was lent; this process takes part no more");
            }
            of_thread.link.lock().member = None;
        };
        thread::Builder::new().name("seamalloc-lend".to_owned()).spawn(run).map_err(BrokerError::Thread)?;
        Ok(Self { shared, _stop: stop })
    }

    /// Returns the lender that asks other processes, for
    /// [`DeviceLending::set_lender`](seamalloc::operations::DeviceLending::set_lender).
    #[must_use]
    pub fn lender(&self) -> Arc<dyn Lender> {
        Arc::new(Asker(Arc::clone(&self.shared)))
    }

    /// Returns whether a broker knows this process at present; `false` in a forked child.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        self.shared.link().is_some_and(|link| link.member.is_some())
    }

    /// Waits until a broker knows this process, for at most `most`. Returns whether a broker knows it. In a forked
    /// child, returns `false` without waiting.
    #[must_use]
    pub fn wait_joined(&self, most: Duration) -> bool {
        let until = Instant::now() + most;
        let Some(mut link) = self.shared.link() else { return false };
        while link.member.is_none() {
            if self.shared.joined.wait_until(&mut link, until).timed_out() {
                return link.member.is_some();
            }
        }
        true
    }
}

/// Joins the broker, again after each lost connection, until the membership ends.
fn take_part(shared: &Shared, member: &dyn Member, stopped: &Stopped) {
    let mut is_told = false;
    loop {
        let ended = match join(&shared.terms) {
            Ok((stream, number, rest)) => {
                tracing::info!(socket = %shared.terms.socket.display(), member = number, "free memory is lent by the broker");
                is_told = false;
                shared.link.lock().member = Some(number);
                shared.joined.notify_all();
                let ended = attend(&stream, rest, member, stopped);
                *shared.link.lock() = Link { member: None, lost: Some(Instant::now()) };
                // A forked child may hold a copy of the connection, so the connection is shut down.
                let _ = stream.shutdown(Shutdown::Both);
                ended
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) => return,
            Err(error) if !is_told => {
                let socket = shared.terms.socket.display();
                tracing::warn!(%error, %socket, "there is no broker; memory is not lent until there is one");
                is_told = true;
            }
            Err(_) => {}
        }
        if stopped.within(AGAIN) || !member.with(&mut |_| {}) {
            return;
        }
    }
}

/// Connects and sends the terms. Returns the connection, this process's number at the broker, and the bytes read after
/// the broker's answer.
fn join(terms: &Terms) -> io::Result<(UnixStream, u64, Vec<u8>)> {
    let stream = connect(&terms.socket, PATIENCE)?;
    let Terms { device, guarantee, .. } = terms.clone();
    let first = First::Join(Join { version: VERSION, device, guarantee, command: command_line(MAX_COMMAND) });
    let mut talk = Bounded::new(&stream, PATIENCE);
    talk.write_all(&line(&first)?)?;
    let (said, rest) = talk.line(MAX_LINE)?;
    match serde_json::from_slice(&said)? {
        Said::Joined { version: VERSION, member } => Ok((stream, member, rest)),
        Said::Refused(why) => Err(io::Error::other(why)),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "what answers is no broker")),
    }
}

/// Answers the broker until the membership ends. Returns an error of the connection.
fn attend(mut stream: &UnixStream, rest: Vec<u8>, member: &dyn Member, stopped: &Stopped) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut inbox = Lines::new(MAX_LINE);
    inbox.push(&rest);
    loop {
        while let Some(line) = inbox.next_line()? {
            if !answer(stream, serde_json::from_slice(&line)?, member)? {
                return Ok(());
            }
        }
        let mut polled = [PollFd::new(stream, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => continue,
            polled => polled?,
        };
        let [_, ended] = polled.map(|polled| !polled.revents().is_empty());
        if ended {
            return Ok(());
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => inbox.push(piece.get(..read).unwrap_or_default()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Answers one message of the broker. Returns `false` if the allocator has ended, or its device's context is lost, so
/// that no memory can be given back.
fn answer(stream: &UnixStream, said: Said, member: &dyn Member) -> io::Result<bool> {
    let (number, bytes, within) = match said {
        Said::Spare { number } => (number, 0, Duration::ZERO),
        Said::Give { number, bytes, within_ms } => (number, bytes, Duration::from_millis(within_ms)),
        Said::Refused(why) => return Err(io::Error::other(why)),
        // The message may be from a later version, and is ignored.
        Said::Joined { .. } | Said::Lent(_) | Said::Members(_) => return Ok(true),
    };
    let mut has = Has { number, ..Has::default() };
    let mut goes_on = true;
    let is_there = member.with(&mut |allocator| {
        match give(allocator, bytes, within.min(MOST_RELEASES)) {
            Ok(given) => has.given = given,
            Err(error) => {
                goes_on = !error.is_context_lost();
                tracing::warn!(%error, goes_on, "memory that another process needs stays");
            }
        }
        let spare = allocator.lending().lendable();
        (has.held, has.live, has.free) = (spare.held, spare.live, spare.free);
    });
    if !is_there || !goes_on {
        return Ok(false);
    }
    Bounded::new(stream, PATIENCE).write_all(&line(&Answer::Has(has))?)?;
    Ok(true)
}

/// Gives free memory back until `bytes` are released, no more can be released, or the time `most` has passed. Returns
/// the released bytes.
fn give(allocator: &Allocator, bytes: u64, most: Duration) -> seamalloc::Result<u64> {
    let begun = Instant::now();
    let mut given = 0;
    while given < bytes {
        match allocator.lending().lend(bytes - given) {
            Ok(now) => given += now,
            // Bytes that were released before the error are reported.
            Err(error) if given == 0 => return Err(error),
            Err(_) => break,
        }
        if given >= bytes || allocator.lending().lendable().free == 0 || begun.elapsed() >= most {
            break;
        }
        thread::sleep(BETWEEN_RELEASES);
    }
    Ok(given)
}

/// Returns how long a request waits before its next demand, after it has waited `waited`, with `left` of its time limit
/// remaining.
fn pause(waited: Duration, left: Duration) -> Duration {
    (waited / 8).clamp(PAUSES.0, PAUSES.1).min(left)
}

/// Returns whether a request waits before it tries again. If other processes gave enough, the request tries again
/// immediately. A request that has been waiting for longer than the longest of the [`PAUSES`] always waits.
fn waits_after(given: u64, missing: u64, waited: Duration) -> bool {
    given < missing || waited > PAUSES.1
}

/// The lender that asks the broker for memory when a request lacks memory.
struct Asker(Arc<Shared>);

impl Asker {
    fn question(&self, shortage: &Shortage, member: Option<u64>) -> Ask {
        let device = self.0.terms.device.clone();
        Ask { version: VERSION, device, member, missing: shortage.wanted, held: shortage.held }
    }
}

impl Lender for Asker {
    fn ask(&self, shortage: &Shortage) -> Lent {
        let terms = &self.0.terms;
        let Some((member, lost)) = self.0.link().map(|link| (link.member, link.lost)) else { return Lent::default() };
        let waited = shortage.since.elapsed();
        let left = terms.wait.saturating_sub(waited);
        let pause = pause(waited, left);
        if member.is_none() {
            // The broker was perhaps killed, and another broker may take its place.
            let returns = lost.is_some_and(|at| at.elapsed() < RETURN) && !left.is_zero();
            if returns {
                thread::sleep(pause);
            }
            return Lent { again: returns, ..Lent::default() };
        }
        let patience = left.clamp(PATIENCE, PATIENCE_OF_ASKERS);
        let asked = exchange(&terms.socket, &First::Ask(self.question(shortage, member)), patience, MAX_LINE);
        let said = match asked {
            Ok(Said::Lent(said)) => said,
            Ok(_) => return Lent::default(),
            Err(error) => {
                tracing::debug!(%error, "the broker does not answer");
                thread::sleep(pause);
                return Lent { again: !left.is_zero(), ..Lent::default() };
            }
        };
        let LentSaid { processes, given, held, live, guaranteed, departed, .. } = said;
        let again = (processes > 0 || departed) && !left.is_zero();
        if again && waits_after(given, shortage.missing, waited) {
            thread::sleep(pause);
        }
        Lent { processes, given, held, live, guaranteed, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seamalloc::Config;
    use seamalloc::driver::sim::{Range, SimConfig, SimGpu};
    use seamalloc::driver::{Call, Driver, Status, StreamId};

    const MIB: u64 = 1 << 20;
    const LONG: Duration = Duration::from_secs(60);

    /// Returns a device and an allocator with three free blocks of 100 MiB. The GPU has completed the work on the first
    /// block, and completes the work on the others after `ns` nanoseconds.
    fn freed(ns: u64) -> (Arc<SimGpu>, Allocator) {
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=1GiB").unwrap()).unwrap());
        let allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::parse("chunk_size_mb:2").unwrap()).unwrap();
        let blocks =
            [1, 2, 3].map(|stream| (allocator.allocate(100 * MIB, StreamId(stream)).unwrap(), StreamId(stream)));
        allocator.free(blocks[0].0).unwrap();
        // This call records an event behind the first block's work, and `synchronize` completes the event.
        allocator.lending().lend(2 * MIB).unwrap();
        gpu.synchronize().unwrap();
        for (address, stream) in &blocks[1..] {
            gpu.launch(*stream, &[Range { address: *address, size: MIB }], ns).unwrap();
            allocator.free(*address).unwrap();
        }
        (gpu, allocator)
    }

    /// Work that uses free memory may end while other memory is released, so that more memory can be released then.
    #[test]
    fn as_much_is_given_as_was_asked_for() {
        let (_, allocator) = freed(500_000);
        let held = allocator.reports().reserved();
        let given = give(&allocator, 250 * MIB, LONG).unwrap();
        assert_eq!((given, allocator.reports().reserved()), (250 * MIB, held - 250 * MIB));
        assert_eq!(give(&allocator, 0, LONG).unwrap(), 0);
        // Memory that stays in use for long does not delay the answer without end.
        let (_, allocator) = freed(1 << 50);
        let passed = allocator.reports().reserved() - 200 * MIB;
        assert_eq!(give(&allocator, 250 * MIB, MOST_RELEASES).unwrap(), passed);
    }

    #[test]
    fn pauses_grow_with_the_time_that_a_request_has_waited() {
        let ms = Duration::from_millis;
        for (waited, left, expected) in
            [(0, 500, 1), (8, 500, 1), (80, 500, 10), (400, 500, 50), (4000, 500, 50), (4000, 7, 7), (0, 0, 0)]
        {
            assert_eq!(pause(ms(waited), ms(left)), ms(expected), "{waited}, {left}");
        }
        for (given, waited, waits) in [(4, 0, true), (5, 0, false), (6, 50, false), (5, 51, true), (4, 51, true)] {
            assert_eq!(waits_after(given, 5, ms(waited)), waits, "{given}, {waited}");
        }
    }

    /// Memory that was released before a failed call is reported.
    #[test]
    fn what_was_given_before_a_failure_counts() {
        let (gpu, allocator) = freed(1 << 50);
        let before = gpu.call_stats().get(Call::EventQuery).count;
        let passed = allocator.lending().lend(250 * MIB).unwrap();
        assert!(passed > 0 && allocator.reports().reserved() == 200 * MIB, "the others are in use");
        let queries = gpu.call_stats().get(Call::EventQuery).count - before;
        let (gpu, allocator) = freed(1 << 50);
        (1..100).for_each(|nth| gpu.fail_nth(Call::EventQuery, queries + nth, Status::UNKNOWN));
        assert_eq!(give(&allocator, 250 * MIB, LONG).unwrap(), passed);
        assert!(give(&allocator, 100 * MIB, LONG).is_err(), "nothing went before it");
    }
}
