//! Asks a driver what it allows and what it refuses, and prints one `rule: status` line each.
//!
//! ```text
//! cargo run --release --example driver_rules -- cuda:0
//! cargo run --release --example driver_rules -- sim:h200
//! ```
//!
//! Where the two differ, the simulated GPU is stricter on purpose (docs/measurements/). Exit code 2: no such device.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]

use std::io::Write as _;
use std::process::ExitCode;

use seamalloc::driver::cuda::CudaDriver;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::driver::{Driver, DriverResult, EventId, Handle, StreamId};

/// Address space that one GPU has, seen on an H200: 64 TiB can be reserved at once, 100 TiB cannot.
const ADDRESS_SPACE_THERE: u64 = 64 << 40;
const ADDRESS_SPACE_TOO_MUCH: u64 = 100 << 40;

fn main() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_else(|| "cuda:0".to_owned());
    match open(&name) {
        Ok((driver, model)) => {
            eprintln!("{name}: {model}");
            probe(&*driver);
            for (call, stat) in driver.call_stats().iter().filter(|(_, stat)| stat.count > 0) {
                eprintln!("{call}: {} calls, {} us in all", stat.count, stat.total_ns / 1000);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// The driver of that name, and what is known of it.
fn open(name: &str) -> Result<(Box<dyn Driver>, String), Box<dyn std::error::Error>> {
    if name.starts_with("sim") {
        let gpu = SimGpu::new(SimConfig::parse(name)?)?;
        return Ok((Box::new(gpu), "simulated".to_owned()));
    }
    let driver = CudaDriver::open(CudaDriver::parse_ordinal(name)?)?;
    let model = format!("{}, {:?}", driver.model(), driver.api());
    Ok((Box::new(driver), model))
}

/// Puts every question to `driver`. Gives back all that it takes, unless the driver surprises it.
fn probe(driver: &dyn Driver) {
    let properties = driver.properties();
    say("granularity", &properties.granularity.to_string());
    say("virtual_memory", &properties.virtual_memory.to_string());
    let probe = Probe { driver, granule: properties.granularity, stream: StreamId::DEFAULT };
    probe.reservations();
    probe.memory();
    probe.mappings();
    probe.ranges();
    probe.lifetimes();
    probe.plain_memory();
    probe.events();
}

struct Probe<'a> {
    driver: &'a dyn Driver,
    granule: u64,
    stream: StreamId,
}

impl Probe<'_> {
    fn reservations(&self) {
        let (driver, granule) = (self.driver, self.granule);
        let reserve = |rule: &str, size: u64, alignment: u64| {
            let answer = driver.reserve(size, alignment);
            report(rule, &answer);
            if let Ok(address) = answer {
                report(&format!("{rule}, then address_free"), &driver.address_free(address, size));
            }
        };
        reserve("reserve one granule", granule, 0);
        reserve("reserve nothing", 0, 0);
        reserve("reserve half a granule", granule / 2, 0);
        reserve("reserve one and a half granules", granule + granule / 2, 0);
        reserve("reserve aligned to 16 granules", granule, 16 * granule);
        reserve("reserve aligned to three granules", granule, 3 * granule);
        reserve("reserve aligned to 512 bytes", granule, 512);
        reserve("reserve 64 TiB", ADDRESS_SPACE_THERE, 0);
        reserve("reserve 100 TiB", ADDRESS_SPACE_TOO_MUCH, 0);
        let Some(address) = needed("reserve four granules", driver.reserve(4 * granule, 0)) else { return };
        report("address_free of the first half", &driver.address_free(address, 2 * granule));
        report("address_free of the second half", &driver.address_free(address + 2 * granule, 2 * granule));
        report("address_free of more than was reserved", &driver.address_free(address, 8 * granule));
        report("address_free of the whole", &driver.address_free(address, 4 * granule));
        report("address_free again", &driver.address_free(address, 4 * granule));
    }

    fn memory(&self) {
        let (driver, granule) = (self.driver, self.granule);
        let create = |rule: &str, size: u64| {
            let answer = driver.create(size);
            report(rule, &answer);
            if let Ok(handle) = answer {
                report(&format!("{rule}, then release"), &driver.release(handle));
            }
        };
        create("create one granule", granule);
        create("create nothing", 0);
        create("create half a granule", granule / 2);
        create("create one and a half granules", granule + granule / 2);
        let total = driver.properties().total_memory / granule * granule;
        create("create twice what the device has", 2 * total);
        if let Some(info) = needed("memory_info", driver.memory_info()) {
            create("create a granule more than is free", info.free / granule * granule + granule);
        }
    }

    fn mappings(&self) {
        let (driver, granule) = (self.driver, self.granule);
        let Some(base) = needed("reserve eight granules", driver.reserve(8 * granule, 0)) else { return };
        let Some(handle) = needed("create four granules", driver.create(4 * granule)) else { return };
        let map = |rule: &str, address: u64, size: u64, offset: u64| {
            let answer = driver.map(address, size, offset, handle);
            report(rule, &answer);
            if answer.is_ok() {
                report(&format!("{rule}, then unmap"), &driver.unmap(address, size));
            }
        };
        map("map whole", base, 4 * granule, 0);
        map("map with an offset", base, 2 * granule, 2 * granule);
        map("map a part from the start", base, 2 * granule, 0);
        map("map nothing", base, 0, 0);
        map("map more than the handle has", base, 8 * granule, 0);
        map("map half a granule", base, granule / 2, 0);
        map("map at half a granule", base + granule / 2, 4 * granule, 0);
        map("map over the end of the reservation", base + 6 * granule, 4 * granule, 0);
        report("map of no handle", &driver.map(base, 4 * granule, 0, Handle(0)));

        report("map at one address", &driver.map(base, 4 * granule, 0, handle));
        report("map over a mapping", &driver.map(base, 4 * granule, 0, handle));
        report("map over half a mapping", &driver.map(base + 2 * granule, 4 * granule, 0, handle));
        report("map the same handle at a second address", &driver.map(base + 4 * granule, 4 * granule, 0, handle));
        report("set_access over both", &driver.set_access(base, 8 * granule));
        report("set_access again", &driver.set_access(base, 8 * granule));
        report("set_access to a part of a mapping", &driver.set_access(base, granule));
        report(
            "set_access to the end of one and the start of the next",
            &driver.set_access(base + granule, 4 * granule),
        );
        report("set_access to half a granule", &driver.set_access(base, granule / 2));
        report("set_access to nothing", &driver.set_access(base, 0));
        report("unmap of a part from the start", &driver.unmap(base, granule));
        report("unmap of a part in the middle", &driver.unmap(base + granule, granule));
        report("unmap over one and a half mappings", &driver.unmap(base, 6 * granule));
        report("unmap of nothing", &driver.unmap(base, 0));
        report("unmap of both at once", &driver.unmap(base, 8 * granule));
        report("unmap again", &driver.unmap(base, 8 * granule));
        report("set_access where nothing is mapped", &driver.set_access(base, 4 * granule));
        report("release", &driver.release(handle));
        report("address_free", &driver.address_free(base, 8 * granule));
        if let Some(handle) = needed("create one granule", driver.create(granule)) {
            report("map into what is not reserved", &driver.map(base, granule, 0, handle));
            report("release", &driver.release(handle));
        }
    }

    /// Two mappings with a gap between them.
    fn ranges(&self) {
        let (driver, granule) = (self.driver, self.granule);
        let Some(base) = needed("reserve three granules", driver.reserve(3 * granule, 0)) else { return };
        let Some(handle) = needed("create one granule", driver.create(granule)) else { return };
        report("map before the gap", &driver.map(base, granule, 0, handle));
        report("map after the gap", &driver.map(base + 2 * granule, granule, 0, handle));
        report("set_access over the gap", &driver.set_access(base, 3 * granule));
        report("set_access into the gap", &driver.set_access(base, 2 * granule));
        report("set_access from the gap", &driver.set_access(base + granule, 2 * granule));
        report("unmap over the gap", &driver.unmap(base, 3 * granule));
        // Whatever the driver did of the call above, nothing stays mapped.
        report("unmap before the gap", &driver.unmap(base, granule));
        report("unmap after the gap", &driver.unmap(base + 2 * granule, granule));
        report("release", &driver.release(handle));
        report("address_free", &driver.address_free(base, 3 * granule));

        let Some(first) = needed("reserve one granule", driver.reserve(granule, 0)) else { return };
        let Some(second) = needed("reserve another", driver.reserve(granule, granule)) else { return };
        say("reservations follow each other", &(first.abs_diff(second) == granule).to_string());
        report("address_free of one", &driver.address_free(first, granule));
        report("address_free of the other", &driver.address_free(second, granule));
    }

    fn lifetimes(&self) {
        let (driver, granule) = (self.driver, self.granule);
        let size = 16 * granule;
        let Some(base) = needed("reserve 16 granules", driver.reserve(size, 0)) else { return };
        let Some(before) = needed("memory_info", driver.memory_info()) else { return };
        let Some(handle) = needed("create 16 granules", driver.create(size)) else { return };
        let free_now = || driver.memory_info().map_or(u64::MAX, |info| info.free);
        say("free memory falls by what was created", &(before.free.wrapping_sub(free_now()) == size).to_string());
        report("map", &driver.map(base, size, 0, handle));
        report("address_free with a live mapping", &driver.address_free(base, size));
        report("release with a live mapping", &driver.release(handle));
        say(
            "released memory stays taken while it is mapped",
            &(before.free.wrapping_sub(free_now()) == size).to_string(),
        );
        report("set_access after release", &driver.set_access(base, size));
        report("map after release", &driver.map(base, size, 0, handle));
        report("unmap after release", &driver.unmap(base, size));
        say("free memory is as it was", &(before.free == free_now()).to_string());
        report("release again", &driver.release(handle));
        report("release of no handle", &driver.release(Handle(0)));
        report("address_free", &driver.address_free(base, size));
    }

    fn plain_memory(&self) {
        let driver = self.driver;
        let malloc = |rule: &str, size: u64| {
            let answer = driver.malloc(size);
            report(rule, &answer);
            if let Ok(address) = answer {
                report(&format!("{rule}, then free"), &driver.free(address));
            }
        };
        malloc("malloc of 512 bytes", 512);
        malloc("malloc of one byte", 1);
        malloc("malloc of nothing", 0);
        malloc("malloc of twice what the device has", 2 * driver.properties().total_memory);
        let Some(address) = needed("malloc of a granule", driver.malloc(self.granule)) else { return };
        report("free of its middle", &driver.free(address + 512));
        report("unmap of it", &driver.unmap(address, self.granule));
        report("address_free of it", &driver.address_free(address, self.granule));
        report("free", &driver.free(address));
        report("free again", &driver.free(address));
        report("free of address 0", &driver.free(0));
    }

    fn events(&self) {
        let driver = self.driver;
        let Some(event) = needed("event_create", driver.event_create()) else { return };
        report_value("event_query of one never recorded", &driver.event_query(event));
        report("event_synchronize of one never recorded", &driver.event_synchronize(event));
        report("stream_wait for one never recorded", &driver.stream_wait(self.stream, event));
        report("event_record", &driver.event_record(event, self.stream));
        report("event_record again", &driver.event_record(event, self.stream));
        report("event_synchronize", &driver.event_synchronize(event));
        report_value("event_query of a complete one", &driver.event_query(event));
        report_value("is_capturing", &driver.is_capturing(self.stream));
        report("stream_synchronize", &driver.stream_synchronize(self.stream));
        report("event_destroy", &driver.event_destroy(event));
        report("event_destroy again", &driver.event_destroy(event));
        report("event_query of a destroyed one", &driver.event_query(event));
        report("event_record of no event", &driver.event_record(EventId(0), self.stream));
    }
}

fn report<T>(rule: &str, answer: &DriverResult<T>) {
    match answer {
        Ok(_) => say(rule, "CUDA_SUCCESS (0)"),
        Err(error) => say(rule, &error.status.to_string()),
    }
}

fn report_value(rule: &str, answer: &DriverResult<bool>) {
    match answer {
        Ok(value) => say(rule, &value.to_string()),
        Err(_) => report(rule, answer),
    }
}

/// Reports a call that the questions after it cannot do without.
fn needed<T>(rule: &str, answer: DriverResult<T>) -> Option<T> {
    report(rule, &answer);
    answer.map_err(|error| eprintln!("skipping what follows: {error}")).ok()
}

/// One line, out at once: a driver that crashes has shown on which rule.
fn say(rule: &str, answer: &str) {
    println!("{rule}: {answer}");
    let _ = std::io::stdout().flush();
}
