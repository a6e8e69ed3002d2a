//! The threads that carry out the work of streams.
//!
//! Owns: these threads, the state that they share with the device, and the CPU's waits for them. The threads start with
//! the first work.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use super::lane::Mark;
use super::state::State;
use super::streams::Streams;
use super::work::{HostWork, Progress};
use crate::bookkeeping::{Answer, refuse};
use seamalloc_driver::{Status, StreamId};

/// The fewest threads. Two threads let streams overtake each other even if the machine has one core.
const FEWEST_THREADS: usize = 2;
/// The most threads. More threads find no further errors.
const MOST_THREADS: usize = 4;

/// The state that a device and its threads share. A thread that holds the lock of `streams` takes no other lock.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: RwLock<State>,
    pub(super) streams: Mutex<Streams>,
    /// The condition that is notified when work may be due.
    due: Condvar,
    /// The condition that is notified when work was done.
    pub(super) done: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Shared {
    pub(super) fn new(state: State) -> Self {
        Self {
            state: RwLock::new(state),
            streams: Mutex::default(),
            due: Condvar::new(),
            done: Condvar::new(),
            threads: Mutex::default(),
        }
    }

    /// Changes the state of the streams. Then wakes the device's threads that get work by this, and waiting callers
    /// (the CPU).
    pub(super) fn with_streams<T>(&self, change: impl FnOnce(&mut Streams) -> T) -> T {
        let mut streams = self.streams.lock();
        let result = change(&mut streams);
        self.wake(&mut streams);
        result
    }

    /// Wakes the device's threads that get work by a change of streams, and waiting callers (the CPU).
    fn wake(&self, streams: &mut Streams) {
        self.wake_resting(streams, 0);
        self.done.notify_all();
    }

    /// Wakes a resting thread for each new step (part of a stream's work) except `own` steps, which the calling thread
    /// carries out itself. Wakes all resting threads for a pause.
    fn wake_resting(&self, streams: &mut Streams, own: usize) {
        let steps = streams.take_new_steps().saturating_sub(own);
        if streams.take_new_pause() {
            self.due.notify_all();
        } else {
            for _ in 0..steps.min(MOST_THREADS) {
                self.due.notify_one();
            }
        }
    }

    /// Gives a stream work. The CPU waits while the stream is full.
    pub(super) fn give(self: &Arc<Self>, stream: StreamId, work: &Arc<HostWork>) -> Answer<()> {
        self.start()?;
        let mut streams = self.streams.lock();
        while streams.is_full(stream)? {
            self.done.wait(&mut streams);
        }
        streams.give(stream, Arc::clone(work))?;
        self.wake(&mut streams);
        Ok(())
    }

    /// Waits on the CPU until all work before the marks (points in streams) that `marks` returns is done. Ends work of
    /// `hold` (work without an end of its own) on which the marks depend.
    pub(super) fn wait_for(&self, marks: impl FnOnce(&mut Streams) -> Answer<Vec<Arc<Mark>>>) -> Answer<()> {
        let mut streams = self.streams.lock();
        let marks = marks(&mut streams)?;
        streams.let_pass(&marks);
        self.wake(&mut streams);
        while marks.iter().any(|mark| !mark.has_passed()) {
            self.done.wait(&mut streams);
        }
        Ok(())
    }

    /// Starts the threads if they do not run yet.
    fn start(self: &Arc<Self>) -> Answer<()> {
        let mut threads = self.threads.lock();
        if threads.is_empty() {
            let cores = thread::available_parallelism().map_or(FEWEST_THREADS, usize::from);
            for _ in 0..cores.clamp(FEWEST_THREADS, MOST_THREADS) {
                let shared = Arc::clone(self);
                let started = thread::Builder::new().name("seamalloc-host".to_owned()).spawn(move || shared.work());
                match started {
                    Ok(thread) => threads.push(thread),
                    Err(_) if !threads.is_empty() => break,
                    Err(error) => return Err(refuse(Status::OUT_OF_MEMORY, format!("no thread can be had: {error}"))),
                }
            }
        }
        Ok(())
    }

    /// Forgets all work, and waits for the threads to end.
    pub(super) fn end(&self) {
        self.with_streams(Streams::end);
        self.due.notify_all();
        for thread in self.threads.lock().drain(..) {
            // The thread catches the panics of work.
            let _ = thread.join();
        }
    }

    /// Runs the loop of each thread.
    fn work(&self) {
        let mut streams = self.streams.lock();
        while !streams.ends {
            if let Some((lane, stream, work, done)) = streams.next_step() {
                // Pauses that have ended may have made other steps due, which other threads carry out.
                self.wake_resting(&mut streams, 0);
                let progress = MutexGuard::unlocked(&mut streams, || self.step(&work, done, stream));
                streams.stepped(lane, progress);
                self.wake_resting(&mut streams, 1);
                if streams.take_advanced() {
                    self.done.notify_all();
                }
            } else {
                // Pauses (work that only takes time) that have ended may have completed work for which the CPU waits.
                self.done.notify_all();
                match streams.next_pause() {
                    Some(until) => drop(self.due.wait_until(&mut streams, until)),
                    None => self.due.wait(&mut streams),
                }
            }
        }
    }

    /// Carries out a step. Returns the number of bytes done, or `None` when the work has ended.
    fn step(&self, work: &HostWork, done: u64, stream: StreamId) -> Option<u64> {
        let state = self.state.read();
        if state.lost.is_some() {
            return None;
        }
        let stepped = catch_unwind(AssertUnwindSafe(|| work.step(done, &state.memory, stream)));
        drop(state);
        match stepped {
            Ok(Ok(Progress::Bytes(bytes))) => return Some(bytes),
            Ok(Ok(Progress::Done)) => {}
            Ok(Err(fault)) => self.state.write().report(fault),
            Err(_) => {
                tracing::error!(?work, "work panicked: the context is lost");
                self.state.write().lost = Some(Status::LAUNCH_FAILED);
            }
        }
        None
    }
}
