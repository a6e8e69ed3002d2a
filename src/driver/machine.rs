//! The memory of the machine, beside that of its GPUs.
//!
//! Owns: how the system is asked for it.

use super::MemoryInfo;
use std::fs;

/// What to say where [`memory`] knows nothing.
pub(in crate::driver) const UNKNOWN_MEMORY: &str = "/proc/meminfo does not say how much memory the machine has";

/// Where control groups of version 2 are.
const GROUPS: &str = "/sys/fs/cgroup";

/// Returns what the machine has, and what programs could still take of it, as the kernel estimates it. Of control groups with a
/// limit (version 2), their share. `None` if the system does not tell.
pub(in crate::driver) fn memory() -> Option<MemoryInfo> {
    let machine = read(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let group = fs::read_to_string("/proc/self/cgroup").ok().and_then(|text| group_of(&text).map(str::to_owned));
    Some(within_groups(machine, &group.unwrap_or_default(), |file| fs::read_to_string(format!("{GROUPS}/{file}")).ok()))
}

/// Reads `/proc/meminfo`.
fn read(text: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
    };
    Some(MemoryInfo { free: bytes("MemAvailable")?, total: bytes("MemTotal")? })
}

/// Reads `/proc/self/cgroup`: the path of the process's group, `/` inside of a container.
fn group_of(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

/// Bounds what the machine has by the share of a group, and of each one around it. `file` returns what a file says.
fn within_groups(machine: MemoryInfo, group: &str, file: impl Fn(&str) -> Option<String>) -> MemoryInfo {
    let mut group = group.trim_matches('/');
    let mut left = machine;
    loop {
        let number = |name: &str| file(&format!("{group}/{name}"))?.trim().parse::<u64>().ok();
        if let (Some(limit), Some(taken)) = (number("memory.max"), number("memory.current")) {
            // What was read of files goes before a limit refuses anything.
            let stat = file(&format!("{group}/memory.stat")).unwrap_or_default();
            let named = |line: &str| {
                ["inactive_file ", "active_file "].into_iter().find_map(|name| line.strip_prefix(name)?.parse().ok())
            };
            let cached = stat.lines().filter_map(named).fold(0, u64::saturating_add);
            left = within(left, limit, taken.saturating_sub(cached));
        }
        if group.is_empty() {
            return left;
        }
        group = group.rsplit_once('/').map_or("", |(around, _)| around);
    }
}

fn within(machine: MemoryInfo, limit: u64, taken: u64) -> MemoryInfo {
    MemoryInfo { free: machine.free.min(limit.saturating_sub(taken)), total: machine.total.min(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    #[test]
    fn a_groups_share_bounds_the_machines() {
        let text = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\nCached:  7 kB\n";
        let machine = read(text).unwrap();
        assert_eq!(machine, MemoryInfo { free: 600 * K, total: 1000 * K });
        assert_eq!(within(machine, 500 * K, 100 * K), MemoryInfo { free: 400 * K, total: 500 * K });
        assert_eq!(within(machine, 500 * K, 501 * K).free, 0);
        assert_eq!(within(machine, 1 << 40, 0), machine);
        assert_eq!(read("MemTotal: 5 kB\n"), None);
        assert_eq!(read("MemTotal: 5 kB\nMemAvailable: many kB\n"), None);
    }

    #[test]
    fn each_group_around_a_process_bounds_it_and_what_it_has_read_of_files_does_not_count() {
        let machine = MemoryInfo { free: 600 * K, total: 1000 * K };
        let files = |file: &str| {
            let text = match file {
                "/memory.max" | "a/b/memory.max" => "max\n".to_owned(),
                "a/memory.max" => format!("{}\n", 500 * K),
                "a/memory.current" => format!("{}\n", 300 * K),
                "a/memory.stat" => format!("anon 7\ninactive_file {}\nactive_file {}\n", 200 * K, 50 * K),
                "c/memory.max" => format!("{}\n", 100 * K),
                "c/memory.current" => "5\n".to_owned(),
                _ => return None,
            };
            Some(text)
        };
        let of = |group| within_groups(machine, group, files);
        assert_eq!(of("/a/b"), MemoryInfo { free: 450 * K, total: 500 * K });
        assert_eq!(of("/a"), of("/a/b"));
        assert_eq!(of("/c"), MemoryInfo { free: 100 * K - 5, total: 100 * K }, "a group that tells no more");
        assert_eq!((of("/"), of(""), of("/b")), (machine, machine, machine));
        assert_eq!(group_of("13:memory:/x\n0::/a/b\n"), Some("/a/b"));
        assert_eq!(group_of("13:memory:/x\n"), None);
    }
}
