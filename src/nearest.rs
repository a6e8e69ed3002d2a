//! What a misspelt name may have meant.

/// The candidate that `name` begins, or else that takes the fewest edits, whatever the case; of none, the empty text.
pub(crate) fn nearest(name: &str, candidates: impl IntoIterator<Item = &'static str>) -> &'static str {
    let name = name.to_lowercase();
    let edits = |candidate: &&str| {
        let candidate = candidate.to_lowercase();
        (name.is_empty() || !candidate.starts_with(&name), strsim::damerau_levenshtein(&name, &candidate))
    };
    candidates.into_iter().min_by_key(edits).unwrap_or_default()
}

/// The same, if it is near enough to be meant.
pub(crate) fn near(name: &str, candidates: impl IntoIterator<Item = &'static str>) -> Option<&'static str> {
    const NEAR: f64 = 0.6;
    let found = nearest(name, candidates);
    let likeness = strsim::normalized_damerau_levenshtein(&name.to_lowercase(), &found.to_lowercase());
    (likeness >= NEAR).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_near_is_suggested() {
        let names = ["caching", "expandable"];
        assert_eq!(nearest("zzz", names), "caching");
        assert_eq!(near("zzz", names), None);
        assert_eq!(near("Expandabel", names), Some("expandable"));
        assert_eq!(nearest("x", []), "");
    }
}
