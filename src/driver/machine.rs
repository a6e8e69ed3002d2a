//! The memory of the machine, beside that of its GPUs.
//!
//! Owns: how the system is asked for it.

use super::MemoryInfo;
use std::fs;

/// What to say where [`memory`] knows nothing.
pub(in crate::driver) const UNKNOWN_MEMORY: &str = "/proc/meminfo does not say how much memory the machine has";

/// Returns what the machine has, and what programs could still take of it, as the kernel estimates it. Of a control group with a
/// limit (version 2), its share. `None` if the system does not tell.
pub(in crate::driver) fn memory() -> Option<MemoryInfo> {
    let of_machine = read(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let in_group = |file: &str| fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse().ok();
    let group = in_group("memory.max").zip(in_group("memory.current"));
    Some(group.map_or(of_machine, |(limit, taken)| within(of_machine, limit, taken)))
}

/// Reads `/proc/meminfo`.
fn read(text: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
    };
    Some(MemoryInfo { free: bytes("MemAvailable")?, total: bytes("MemTotal")? })
}

fn within(machine: MemoryInfo, limit: u64, taken: u64) -> MemoryInfo {
    MemoryInfo { free: machine.free.min(limit.saturating_sub(taken)), total: machine.total.min(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_share_bounds_the_machines() {
        let text = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\nCached:  7 kB\n";
        let machine = read(text).unwrap();
        assert_eq!(machine, MemoryInfo { free: 600 << 10, total: 1000 << 10 });
        assert_eq!(within(machine, 500 << 10, 100 << 10), MemoryInfo { free: 400 << 10, total: 500 << 10 });
        assert_eq!(within(machine, 500 << 10, 501 << 10).free, 0);
        assert_eq!(within(machine, 1 << 40, 0), machine);
        assert_eq!(read("MemTotal: 5 kB\n"), None);
        assert_eq!(read("MemTotal: 5 kB\nMemAvailable: many kB\n"), None);
    }
}
