//! One row of the page.

use seamalloc::Config;

const MIB: u64 = 1 << 20;

/// One option.
pub(crate) struct Row {
    /// As in text.
    pub(crate) name: &'static str,
    /// The field of `Config`, `guard.sample`. Empty: another name for what another row has.
    pub(crate) field: &'static str,
    /// What is typed, and its unit.
    pub(crate) value: &'static str,
    /// The default, as it is typed.
    pub(crate) default: fn(&Config) -> String,
    /// When to touch it.
    pub(crate) when: &'static str,
    /// A value other than the default, which the strategies that are not named must not heed.
    pub(crate) example: &'static str,
}

/// Options that belong together.
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) about: &'static str,
    pub(crate) rows: &'static [Row],
}

/// As options in MiB are typed.
pub(crate) fn mib(bytes: u64) -> String {
    (bytes / MIB).to_string()
}
