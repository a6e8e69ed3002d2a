//! Strategies and families of them, read by name.

use super::error::ConfigError;
use super::strategy_kind::StrategyKind;
use seamalloc_driver::nearest::near;
use std::str::FromStr;

impl StrategyKind {
    /// Returns the strategies of a family, or the strategy of this name.
    ///
    /// ```
    /// use seamalloc::StrategyKind;
    /// assert_eq!(StrategyKind::named("classic")?, StrategyKind::CLASSIC);
    /// assert_eq!(StrategyKind::named("tiny")?, [StrategyKind::Tiny]);
    /// # Ok::<(), seamalloc::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::UnknownStrategy`] if there is no such family or strategy; [`ConfigError::Removed`] for `planned`.
    pub fn named(text: &str) -> Result<Vec<Self>, ConfigError> {
        match Self::FAMILIES.iter().find(|(name, _)| *name == text) {
            Some((_, kinds)) => Ok(kinds.to_vec()),
            None => Ok(vec![text.parse()?]),
        }
    }
}

impl FromStr for StrategyKind {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        if let Some(kind) = Self::ALL.into_iter().find(|kind| kind.name() == text) {
            return Ok(kind);
        }
        if text == "planned" {
            return Err(ConfigError::Removed { what: "strategy", name: "planned", instead: "use `stitch`" });
        }
        Err(ConfigError::UnknownStrategy { found: text.to_owned(), nearest: near(text, Self::ALL.map(Self::name)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_strategy_is_of_one_family_and_has_a_name_of_its_own() {
        for kind in StrategyKind::ALL {
            let of = StrategyKind::FAMILIES.iter().filter(|(name, kinds)| *name != "all" && kinds.contains(&kind));
            assert_eq!(of.count(), 1, "{kind}");
            assert_eq!(StrategyKind::named(kind.name()), Ok(vec![kind]));
            assert!(StrategyKind::FAMILIES.iter().all(|(name, _)| *name != kind.name()), "{kind}");
        }
        assert_eq!(StrategyKind::named("all"), Ok(StrategyKind::ALL.to_vec()));
        assert!(StrategyKind::named("classics").is_err());
    }
}
