//! An allocator's thread, which checks every few seconds: it warns of waits that stay pending, and gives an idle
//! program's memory back (`idle_release_s`).
//!
//! Owns: how often the thread checks, and when it ends. [`IdleRelease`] decides which memory goes back.

use crate::ids::AllocatorId;
use crate::instance::Instance;
#[cfg(unix)]
use crate::lending;
use crate::live;
use crate::registry;
use crate::status::Outcome;
use seamalloc::{Error, IdleRelease, StrategyKind, StreamSharing};
use std::thread;
use std::time::{Duration, Instant};

/// The time between two checks. A check reads statistics under the allocator's lock for a few microseconds.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// The time between two checks of an allocator that is checked only for pending waits.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(5);
/// How long a wait is pending before a warning. A rank that evaluates or saves alone makes other ranks wait for some
/// seconds, which is no reason for a warning.
const PENDING: Duration = Duration::from_secs(30);

/// Gives an instance a handle, and a thread if its options ask for that.
pub(crate) fn add(instance: Box<Instance>) -> Outcome<AllocatorId> {
    let config = instance.allocator.config();
    let after_s = config.idle_release_s;
    // Only with these options may waits of streams for one another stay pending, of which the thread warns.
    let waits = config.strategy == StrategyKind::Stitch && config.sharing == StreamSharing::Wait;
    let id = registry::add(instance)?;
    live::serve_if_asked();
    #[cfg(unix)]
    lending::take_part(id);
    if after_s.is_some() || waits {
        let between = if after_s.is_some() { BETWEEN_LOOKS } else { BETWEEN_WARNINGS };
        watch(id, after_s, between, PENDING);
    }
    Ok(id)
}

/// Starts a thread for the allocator of a handle. The thread ends when the handle is removed, or with the first call
/// that the driver refuses. The thread keeps neither the allocator nor the process alive.
fn watch(id: AllocatorId, after_s: Option<u64>, between: Duration, pending: Duration) {
    let started = thread::Builder::new().name("seamalloc-watch".to_owned()).spawn(move || {
        let (start, mut idle) = (Instant::now(), after_s.map(|after_s| IdleRelease::new(Duration::from_secs(after_s))));
        loop {
            thread::sleep(between);
            let Ok(instance) = registry::borrow(id) else { return };
            let allocator = &instance.allocator;
            let looked = allocator.streams().warn_of_pending_waits(pending).and_then(|_| match &mut idle {
                Some(idle) => idle.tick(allocator, start.elapsed()),
                None => Ok(0),
            });
            match looked {
                Ok(_) => {}
                // The process, or the device's context, has ended: there is nothing left to check.
                Err(Error::Driver(error)) => {
                    tracing::debug!(%error, "an allocator is watched no more");
                    return;
                }
                Err(error) => tracing::warn!(%error, "the memory of an idle program stays"),
            }
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread can be started: idle_release_s is without effect, and no warning of pending waits is given");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seamalloc::driver::StreamId;
    use seamalloc::driver::sim::{SimConfig, SimGpu};
    use seamalloc::{Allocator, Config};
    use std::env;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    #[test]
    fn the_thread_gives_back_what_an_idle_allocator_holds_and_ends_with_its_handle() {
        let id = add(Instance::open("sim:h200", "idle_release_s:1").unwrap()).unwrap();
        {
            let instance = registry::borrow(id).unwrap();
            let addresses = [1, 2].map(|stream| instance.allocator.allocate(4 << 20, StreamId(stream)).unwrap());
            addresses.iter().for_each(|address| instance.allocator.free(*address).unwrap());
            assert_eq!(instance.allocator.reports().reserved(), 8 << 20);
        }
        let begin = Instant::now();
        while registry::borrow(id).unwrap().allocator.reports().reserved() > 0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing went back");
            thread::sleep(Duration::from_millis(20));
        }
        registry::remove(id).unwrap();
        assert_eq!(registry::borrow(id).map(drop).unwrap_err().status, crate::status::Status::InvalidHandle);
    }

    /// A stream gets the only block after a wait for work of another stream that never ends.
    fn wait_for_ever() {
        let mut instance = Instance::open("sim:h200", "").unwrap();
        let gpu = Arc::new(SimGpu::new(SimConfig::parse("sim:h200,capacity=8MiB").unwrap()).unwrap());
        instance.allocator = Allocator::new(Arc::<SimGpu>::clone(&gpu), Config::default()).unwrap();
        let id = add(instance).unwrap();
        let allocator = &registry::borrow(id).unwrap().allocator;
        let address = allocator.allocate(8 << 20, StreamId(0x10)).unwrap();
        gpu.hold(StreamId(0x10));
        allocator.free(address).unwrap();
        assert_eq!(allocator.allocate(8 << 20, StreamId(0x20)), Ok(address));
        // This thread checks for pending waits every 5 ms, and the thread that `add` starts only every 5 s.
        watch(id, None, Duration::from_millis(5), Duration::from_millis(20));
        thread::sleep(Duration::from_secs(60));
    }

    #[test]
    fn a_wait_that_stays_pending_is_a_line_on_standard_error() {
        const CHILD: &str = "SEAMALLOC_TEST_WAITS";
        if env::var_os(CHILD).is_some() {
            return wait_for_ever();
        }
        let mut itself = Command::new(env::current_exe().unwrap());
        itself.args(["--exact", "idle::tests::a_wait_that_stays_pending_is_a_line_on_standard_error", "--nocapture"]);
        itself.env_remove("SEAMALLOC_LOG").env(CHILD, "1").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = itself.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let told = ["WARN seamalloc::waits", "stream=0x20", "awaited=0x10", "sharing:never"];
        assert!(told.iter().all(|part| line.contains(part)), "{line}");
    }
}
