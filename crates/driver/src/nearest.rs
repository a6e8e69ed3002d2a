//! Suggestions for a misspelt name.

/// Returns the candidate that begins with `name`, or else the candidate that `name` becomes with the fewest edits,
/// ignoring case. Returns the empty text without candidates.
pub fn nearest(name: &str, candidates: impl IntoIterator<Item = &'static str>) -> &'static str {
    let name = name.to_lowercase();
    let edits = |candidate: &&str| {
        let candidate = candidate.to_lowercase();
        (name.is_empty() || !candidate.starts_with(&name), strsim::damerau_levenshtein(&name, &candidate))
    };
    candidates.into_iter().min_by_key(edits).unwrap_or_default()
}

/// Returns the candidate that a misspelt name may have meant: a candidate that begins with the name, or that few edits
/// turn the name into, ignoring case. Returns `None` if no candidate is near.
pub fn near(name: &str, candidates: impl IntoIterator<Item = &'static str>) -> Option<&'static str> {
    const NEAR: f64 = 0.6;
    /// The least number of letters with which a name counts as the beginning of another.
    const BEGINNING: usize = 3;
    let found = nearest(name, candidates);
    let likeness = strsim::normalized_damerau_levenshtein(&name.to_lowercase(), &found.to_lowercase());
    let begun = name.len() >= BEGINNING && found.to_lowercase().starts_with(&name.to_lowercase());
    (begun || likeness >= NEAR).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_suggested() {
        assert_eq!(near("max_split", ["max_split_size_mb", "strategy"]), Some("max_split_size_mb"));
        assert_eq!(near("ma", ["max_split_size_mb", "strategy"]), None);
        let names = ["caching", "expandable"];
        assert_eq!(nearest("zzz", names), "caching");
        assert_eq!(near("zzz", names), None);
        assert_eq!(near("Expandabel", names), Some("expandable"));
        assert_eq!(nearest("x", []), "");
    }
}
