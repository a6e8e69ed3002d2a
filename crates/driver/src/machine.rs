//! The size of host memory.
//!
//! Owns: how the system is asked for the size of this memory.

use super::MemoryInfo;
use std::fs;

/// The message for a machine whose [`memory`] is unknown.
pub const UNKNOWN_MEMORY: &str = "/proc/meminfo does not say how much memory the machine has";

/// The names under which one version of control groups reports limits and use.
struct Groups {
    folder: &'static str,
    /// The controller's name in `/proc/self/cgroup`; "" in version 2.
    controller: &'static str,
    limit: &'static str,
    taken: &'static str,
    /// The entries of `memory.stat` that count the page cache.
    cached: [&'static str; 2],
}

/// Version 1 of control groups, with a folder for each controller, and version 2, with one folder for all controllers.
/// A machine may have both versions; one of the versions then controls the memory.
const GROUPS: [Groups; 2] = [
    Groups {
        folder: "/sys/fs/cgroup/memory",
        controller: "memory",
        limit: "memory.limit_in_bytes",
        taken: "memory.usage_in_bytes",
        cached: ["total_inactive_file ", "total_active_file "],
    },
    Groups {
        folder: "/sys/fs/cgroup",
        controller: "",
        limit: "memory.max",
        taken: "memory.current",
        cached: ["inactive_file ", "active_file "],
    },
];

/// Returns the total host memory, and the kernel's estimate of the bytes that programs could still take. The limit of a
/// control group, of either version, bounds both figures. Returns `None` if the system does not report these figures.
pub fn memory() -> Option<MemoryInfo> {
    let machine = read(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let within = |left, groups: &Groups| {
        let file = |file: &str| fs::read_to_string(format!("{}/{file}", groups.folder)).ok();
        groups.bound(left, groups.of(&text).unwrap_or_default(), file)
    };
    Some(GROUPS.iter().fold(machine, within))
}

/// Reads `/proc/meminfo`.
fn read(text: &str) -> Option<MemoryInfo> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
    };
    Some(MemoryInfo { free: bytes("MemAvailable")?, total: bytes("MemTotal")? })
}

impl Groups {
    /// Returns the path of the process's control group from `/proc/self/cgroup`: `/` inside of a container, or a path
    /// of the machine around the container.
    fn of<'a>(&self, text: &'a str) -> Option<&'a str> {
        text.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            controllers.split(',').any(|name| name == self.controller).then_some(path)
        })
    }

    /// Bounds host memory by the limits of a control group and of each group around it. `file` returns the content of a
    /// file.
    fn bound(&self, machine: MemoryInfo, group: &str, file: impl Fn(&str) -> Option<String>) -> MemoryInfo {
        let mut group = group.trim_matches('/');
        let mut left = machine;
        loop {
            let number = |name: &str| file(&format!("{group}/{name}"))?.trim().parse::<u64>().ok();
            if let (Some(limit), Some(taken)) = (number(self.limit), number(self.taken)) {
                // The page cache counts as free: the kernel drops it before a limit refuses a request.
                let stat = file(&format!("{group}/memory.stat")).unwrap_or_default();
                let named = |line: &str| self.cached.iter().find_map(|name| line.strip_prefix(name)?.parse().ok());
                let cached = stat.lines().filter_map(named).fold(0, u64::saturating_add);
                left = within(left, limit, taken.saturating_sub(cached));
            }
            if group.is_empty() {
                return left;
            }
            group = group.rsplit_once('/').map_or("", |(around, _)| around);
        }
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
        for groups in &GROUPS {
            let [inactive, active] = groups.cached;
            let files = |file: &str| {
                let (group, name) = file.rsplit_once('/')?;
                let text = match (group, name) {
                    // Control groups of versions 2 and 1 write these two values if there is no limit.
                    ("", _) if name == groups.limit => "max\n".to_owned(),
                    ("a/b", _) if name == groups.limit => "9223372036854771712\n".to_owned(),
                    ("a", _) if name == groups.limit => format!("{}\n", 500 * K),
                    ("a", _) if name == groups.taken => format!("{}\n", 300 * K),
                    ("a", "memory.stat") => format!("anon 7\n{inactive}{}\n{active}{}\n", 200 * K, 50 * K),
                    ("c", _) if name == groups.limit => format!("{}\n", 100 * K),
                    ("a/b" | "c", _) if name == groups.taken => "5\n".to_owned(),
                    _ => return None,
                };
                Some(text)
            };
            let of = |group| groups.bound(machine, group, files);
            assert_eq!(of("/a/b"), MemoryInfo { free: 450 * K, total: 500 * K });
            assert_eq!(of("/a"), of("/a/b"));
            assert_eq!(of("/c"), MemoryInfo { free: 100 * K - 5, total: 100 * K }, "a group that tells no more");
            assert_eq!((of("/"), of(""), of("/b")), (machine, machine, machine));
        }
    }

    #[test]
    fn the_group_is_that_of_the_controller() {
        let text = "13:cpu,memory:/x\n12:memory_of_others:/y\n1:name=systemd:/z:1\n0::/a/b\n";
        assert_eq!([&GROUPS[0], &GROUPS[1]].map(|groups| groups.of(text)), [Some("/x"), Some("/a/b")]);
        assert_eq!(GROUPS[0].of("0::/a/b\n"), None);
        assert_eq!(GROUPS[1].of("13:memory:/x\n"), None);
        assert_eq!(GROUPS[0].of("nonsense\n13:memory\n"), None);
    }
}
