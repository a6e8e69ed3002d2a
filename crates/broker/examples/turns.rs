//! Runs two processes whose phases take turns on one device. Each phase needs most of the device's memory, and one
//! process is killed in the middle of a phase. Then measures the time in which 10 GiB move from one process to the
//! other. Prints lines of JSON; the exit code is 1 if a phase ran out of memory or found other bytes than it wrote.
//!
//! ```sh
//! cargo build --release -p seamalloc-broker --example turns
//! target/release/examples/turns cuda:0
//! target/release/examples/turns sim:h100       # two processes on one simulated device, whose memory a file counts
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

#[cfg(target_os = "linux")]
#[path = "../tests/processes/shared_device.rs"]
#[allow(clippy::unwrap_used, reason = "that of the tests")]
mod shared_device;

#[cfg(target_os = "linux")]
mod turns {
    use crate::shared_device::SharedDevice;
    use seamalloc::driver::sim::{SimConfig, SimGpu};
    use seamalloc::driver::{Device, Driver, StreamId};
    use seamalloc::{Allocator, Config};
    use seamalloc_broker::{Broker, Membership, Terms, status};
    use serde_json::{Value, json};
    use std::error::Error;
    use std::io::{BufRead, BufReader, Write};
    use std::path::{Path, PathBuf};
    use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    type Outcome<T> = Result<T, Box<dyn Error>>;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    /// The share of the device's memory that a phase needs, in percent.
    const PERCENT: u64 = 70;
    const ROUNDS: u64 = 6;
    /// The round in which one process is killed.
    const KILLED_IN: u64 = 3;
    /// How often 10 GiB move each way.
    const MOVES: u64 = 3;
    const MOVED: u64 = 10 * GIB;
    /// The device memory that is left to the driver when one process takes all other memory.
    const LEFT: u64 = 512 * MIB;
    /// The largest block of a phase.
    const BLOCK: u64 = 512 * MIB;
    const WORKER: &str = "worker";

    pub(crate) fn main() -> Outcome<bool> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        match &arguments[..] {
            [worker, device, folder, options] if worker == WORKER => {
                work(device, Path::new(folder), options).map(|()| true)
            }
            [device] => direct(device),
            _ => Err("usage: turns cuda:0|sim:h100".into()),
        }
    }

    /// Returns a driver of the device. Each process simulates its own device; a file in `folder` counts the memory of
    /// both.
    fn driver(device: &str, folder: &Path) -> Outcome<Arc<dyn Driver>> {
        if device.starts_with("sim") {
            let gpu = SimGpu::new(SimConfig::parse(device)?)?;
            return Ok(Arc::new(SharedDevice::open(Box::new(gpu), &folder.join("device"))?));
        }
        Ok(Device::parse(device)?.open()?.driver)
    }

    /// The worker process: does the task in each line of its input.
    fn work(device: &str, folder: &Path, options: &str) -> Outcome<()> {
        let allocator = Arc::new(Allocator::new(driver(device, folder)?, Config::parse(options)?)?);
        let membership = Terms::of(&allocator).map(|terms| Membership::start(terms, Arc::downgrade(&allocator)));
        let membership = membership.transpose()?;
        if let Some(membership) = &membership {
            allocator.lending().set_lender(Some(membership.lender()));
            if !membership.wait_joined(Duration::from_secs(20)) {
                return Err("there is no broker".into());
            }
        }
        let total = allocator.driver().memory_info()?.total;
        println!("{}", json!({ "ready": allocator.driver().properties().identity, "total": total }));
        for line in std::io::stdin().lines() {
            let line = line?;
            let begun = Instant::now();
            let done = match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["phase", bytes, seed] => phase(&allocator, bytes.parse()?, seed.parse()?),
                // Allocates one block, reports the time of this, and frees the block.
                ["take", bytes] => take(&allocator, bytes.parse()?),
                ["fill"] => allocator
                    .driver()
                    .memory_info()
                    .map_err(Box::from)
                    .and_then(|info| take(&allocator, info.free.saturating_sub(LEFT) / (64 * MIB) * (64 * MIB))),
                ["empty"] => allocator.empty_cache().map(|bytes| json!({ "given_back": bytes })).map_err(Box::from),
                _ => Err(format!("{line} is no task").into()),
            };
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            let (reserved, error) = (allocator.reports().reserved(), done.as_ref().err().map(ToString::to_string));
            println!("{}", json!({ "ms": ms, "reserved": reserved, "did": done.ok(), "error": error }));
        }
        drop(membership);
        allocator.empty_cache()?;
        Ok(())
    }

    fn take(allocator: &Allocator, bytes: u64) -> Outcome<Value> {
        let begun = Instant::now();
        let address = allocator.allocate(bytes, StreamId::DEFAULT)?;
        let allocated_ms = begun.elapsed().as_secs_f64() * 1e3;
        allocator.free(address)?;
        Ok(json!({ "bytes": bytes, "allocated_ms": allocated_ms }))
    }

    /// Allocates blocks, fills each with bytes of its own, checks these bytes, and frees all blocks.
    fn phase(allocator: &Allocator, bytes: u64, seed: u64) -> Outcome<Value> {
        let (mut blocks, mut left, mut state) = (Vec::new(), bytes, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let begun = Instant::now();
        let driver = allocator.driver();
        while left > 0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let size = (2 * MIB + (state >> 33) % BLOCK).min(left);
            left -= size;
            let address = allocator.allocate(size, StreamId::DEFAULT)?;
            let value = (state >> 40) as u8;
            driver.fill(address, size, value, StreamId::DEFAULT)?;
            blocks.push((address, size, value));
        }
        let allocated_ms = begun.elapsed().as_secs_f64() * 1e3;
        driver.synchronize()?;
        let mut wrong = 0;
        for (address, size, value) in &blocks {
            let mut found = [0u8; 4096];
            for at in [0, size / 2, size.saturating_sub(4096)] {
                driver.read(address + at, &mut found)?;
                wrong += found.iter().filter(|byte| **byte != *value).count();
            }
        }
        for (address, ..) in &blocks {
            allocator.free(*address)?;
        }
        if wrong > 0 {
            return Err(format!("{wrong} bytes have changed").into());
        }
        Ok(json!({ "bytes": bytes, "blocks": blocks.len(), "allocated_ms": allocated_ms }))
    }

    struct Worker {
        child: Child,
        input: ChildStdin,
        output: BufReader<ChildStdout>,
        total: u64,
    }

    impl Worker {
        fn start(device: &str, folder: &Path, options: &str) -> Outcome<Self> {
            let mut command = Command::new(std::env::current_exe()?);
            command.args([WORKER, device]).arg(folder).arg(options).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn()?;
            let input = child.stdin.take().ok_or("it has no input")?;
            let output = BufReader::new(child.stdout.take().ok_or("it has no output")?);
            let mut worker = Self { child, input, output, total: 0 };
            worker.total = worker.answer()?["total"].as_u64().unwrap_or(0);
            Ok(worker)
        }

        fn begin(&mut self, task: &str) -> Outcome<()> {
            Ok(writeln!(self.input, "{task}")?)
        }

        fn answer(&mut self) -> Outcome<Value> {
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err("a process has ended".into());
            }
            Ok(serde_json::from_str(&line)?)
        }

        fn run(&mut self, task: &str) -> Outcome<Value> {
            self.begin(task)?;
            self.answer()
        }
    }

    impl Drop for Worker {
        /// Kills the process with SIGKILL.
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    /// Waits for the driver to reclaim the memory of ended processes: until 95% of the device is free, at most two
    /// seconds.
    fn rest(device: &str, folder: &Path) -> Outcome<()> {
        let (driver, begun) = (driver(device, folder)?, Instant::now());
        while begun.elapsed() < Duration::from_secs(2) {
            let info = driver.memory_info()?;
            if info.free >= info.total / 100 * 95 {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Prints what a process did. Returns whether it succeeded.
    fn tell(what: &str, more: Value, answer: &Value) -> bool {
        println!("{}", json!({ "what": what, "of": more, "answer": answer }));
        answer["error"].is_null()
    }

    fn direct(device: &str) -> Outcome<bool> {
        let folder =
            PathBuf::from(format!("{}/seamalloc-turns-{}", std::env::temp_dir().display(), std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let told = direct_in(device, &folder);
        std::fs::remove_dir_all(&folder)?;
        told
    }

    fn direct_in(device: &str, folder: &Path) -> Outcome<bool> {
        let socket = folder.join("broker.sock");
        let broker = Broker::start(&socket)?;
        // Without a broker, the second process runs out of memory.
        {
            let [mut one, mut two] = [Worker::start(device, folder, "")?, Worker::start(device, folder, "")?];
            let task = format!("phase {} 1", one.total / 100 * PERCENT);
            tell("without a broker", json!({ "process": 0 }), &one.run(&task)?);
            tell("without a broker", json!({ "process": 1 }), &two.run(&task)?);
        }
        rest(device, folder)?;
        let options = format!("broker:{}", socket.display());
        let mut workers = vec![Worker::start(device, folder, &options)?, Worker::start(device, folder, &options)?];
        let mut whole = true;
        for round in 0..ROUNDS {
            for at in 0..workers.len() {
                let task = format!("phase {} {round}", workers[at].total / 100 * PERCENT);
                if round == KILLED_IN && at == 0 {
                    workers[at].begin(&task)?;
                    std::thread::sleep(Duration::from_millis(60));
                    drop(workers.remove(at));
                    // The other process begins its phase immediately.
                    let answer = workers[0].run(&task)?;
                    whole &= tell("phase right after kill -9 of the other", json!({ "round": round }), &answer);
                    let begun = Instant::now();
                    workers.insert(at, Worker::start(device, folder, &options)?);
                    let started_ms = begun.elapsed().as_secs_f64() * 1e3;
                    println!("{}", json!({ "what": "started again", "ms": started_ms }));
                }
                let answer = workers[at].run(&task)?;
                whole &= tell("phase", json!({ "round": round, "process": at }), &answer);
            }
        }
        println!("{}", json!({ "what": "members", "members": status::members(&socket)? }));
        drop(workers);
        for chunks in ["", ",chunk_size_mb:2"] {
            rest(device, folder)?;
            let options = format!("{options}{chunks}");
            let mut two = [Worker::start(device, folder, &options)?, Worker::start(device, folder, &options)?];
            for turn in 0..2 * MOVES {
                let [from, to] = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
                for worker in &mut two {
                    worker.run("empty")?;
                }
                whole &=
                    tell("one has the device", json!({ "process": from, "options": chunks }), &two[from].run("fill")?);
                let before = status::members(&socket)?.iter().map(|member| member.given).sum::<u64>();
                let answer = two[to].run(&format!("take {MOVED}"))?;
                let given = status::members(&socket)?.iter().map(|member| member.given).sum::<u64>() - before;
                whole &= tell("10 GiB move", json!({ "to": to, "options": chunks, "given": given }), &answer);
            }
        }
        drop(broker);
        println!("{}", json!({ "what": "end", "no_out_of_memory": whole }));
        Ok(whole)
    }
}

fn main() -> std::process::ExitCode {
    #[cfg(target_os = "linux")]
    match turns::main() {
        Ok(true) => return std::process::ExitCode::SUCCESS,
        Ok(false) => {}
        Err(error) => eprintln!("{error}"),
    }
    std::process::ExitCode::FAILURE
}
