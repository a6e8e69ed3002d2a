//! Options as text: of an allocator in the first line, of a simulated device in the second.
//!
//! Owns: what must hold of a text that is read, and of an error.

use seamalloc::driver::StreamId;
use seamalloc::driver::sim::{SimConfig, SimGpu};
use seamalloc::units::{format_bytes_exactly, parse_bytes};
use seamalloc::{Allocator, Config, ConfigError};
use std::sync::Arc;

const DEVICE: &str = "sim:h200,capacity=1GiB";
const MIB: u64 = 1 << 20;
/// Bytes asked for under options that were read: of both classes, around the sizes at which rules change.
const REQUESTS: [u64; 8] = [600, MIB, MIB + 1, 3 * MIB, 5 * MIB, 30 * MIB, 200 * MIB, 700 * MIB];
const STREAMS: u64 = 3;

/// Reads both lines.
///
/// # Panics
/// What is printed is not read back as the same, an error does not say what is wrong, or an allocator with these options
/// breaks a rule.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let (options, device) = text.split_once('\n').unwrap_or((text, DEVICE));
    sizes(options);
    let device = read_device(device);
    if let Some(config) = read_options(options) {
        use_options(config, device);
    }
}

fn sizes(text: &str) {
    match parse_bytes(text) {
        Ok(bytes) => assert_eq!(parse_bytes(&format_bytes_exactly(bytes)), Ok(bytes), "{text}"),
        Err(error) => assert_eq!(error.text, text),
    }
}

fn read_device(text: &str) -> SimConfig {
    match SimConfig::parse(text) {
        Ok(config) => {
            assert_eq!(SimConfig::parse(&config.to_string()).as_ref(), Ok(&config), "{text}");
            config
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            SimConfig::parse(DEVICE).expect("a device")
        }
    }
}

fn read_options(text: &str) -> Option<Config> {
    match Config::parse(text) {
        Ok(config) => {
            let printed = config.to_string();
            assert_eq!(Config::parse(&printed).as_ref(), Ok(&config), "`{text}` is printed as `{printed}`");
            Some(config)
        }
        Err(error) => {
            let said = error.to_string();
            let named = match &error {
                ConfigError::Syntax { text: whole, at, .. } => {
                    assert!(*at <= whole.len() && whole.is_char_boundary(*at), "byte {at} of `{whole}`");
                    text.contains(whole.as_str())
                }
                ConfigError::UnknownOption { found, .. } | ConfigError::UnknownStrategy { found, .. } => {
                    text.contains(found.as_str()) && said.contains(found)
                }
                ConfigError::Removed { name, instead, .. } => {
                    text.contains(name) && said.contains(name) && said.contains(instead)
                }
                // Its value may be that of another option, or as it was understood.
                ConfigError::BadValue { option, found, .. } => said.contains(option) && said.contains(found),
                _ => panic!("`{text}`: {error:?} has no check"),
            };
            assert!(named, "`{text}`: {said}");
            None
        }
    }
}

fn use_options(config: Config, device: SimConfig) {
    let gpu = Arc::new(SimGpu::new(device).expect("it was checked"));
    let Ok(allocator) = Allocator::new(Arc::<SimGpu>::clone(&gpu), config) else { return };
    let mut live = Vec::new();
    for (at, size) in REQUESTS.into_iter().enumerate() {
        match allocator.allocate(size, StreamId(at as u64 % STREAMS)) {
            Ok(address) => live.push(address),
            Err(error) => assert!(error.is_out_of_memory(), "{error}"),
        }
        if at % 3 == 2
            && let Some(address) = live.pop()
        {
            allocator.free(address).expect("it is live");
        }
        allocator.reports().check().expect("every rule holds");
    }
    live.into_iter().for_each(|address| allocator.free(address).expect("it is live"));
    allocator.empty_cache().expect("no call fails");
    allocator.reports().check().expect("every rule holds");
    assert_eq!(allocator.reports().reserved(), gpu.leaks().bytes);
    assert_eq!(allocator.stats().allocated_bytes.all.current, 0);
}
