//! Mixture of experts: the number of tokens that the router sends to each expert.
//!
//! Owns: the routing. `recipe.rs` has the experts' operations, and `transformer.rs` the training around them.

use super::{layer::RowCounts, models::Transformer, tape::Dice};

/// Draws the number of tokens of each expert of one layer. The popularity of experts is skewed, as in a model trained
/// without a capacity limit. The busiest expert gets several times the mean, and with few tokens some experts get none.
/// Draws no numbers for dense models.
pub(super) fn route(shape: &Transformer, tokens: u64, dice: &mut Dice) -> RowCounts {
    let Some(experts) = shape.experts else { return RowCounts::dense(tokens) };
    /// The range of popularity before squaring.
    const POPULARITY: (u64, u64) = (1, 100);
    let popularity: Vec<u64> = (0..experts.count)
        .map(|_| {
            let drawn = dice.between(POPULARITY.0, POPULARITY.1);
            drawn * drawn
        })
        .collect();
    let total = popularity.iter().sum::<u64>().max(1);
    let routed = tokens * experts.per_token;
    // An expert sees a token at most once.
    let mut rows: Vec<u64> = popularity.iter().map(|p| (routed * p / total).min(tokens)).collect();
    let mut left = routed - rows.iter().sum::<u64>();
    for row in &mut rows {
        let more = left.min(tokens - *row);
        *row += more;
        left -= more;
    }
    RowCounts { tokens, experts: rows }
}

#[cfg(test)]
mod tests {
    use super::{super::models, *};

    #[test]
    fn every_token_reaches_its_experts() {
        let shape = models::QWEN_MOE_SMALL.transformer().unwrap();
        let mut dice = Dice::new(3);
        for tokens in [1, 5, 77, 8000] {
            let rows = route(shape, tokens, &mut dice);
            assert_eq!(rows.experts.iter().sum::<u64>(), tokens * 4);
            assert!(rows.experts.iter().all(|r| *r <= tokens));
        }
    }

    #[test]
    fn experts_are_not_equally_busy_and_layers_differ() {
        let shape = models::QWEN_MOE_SMALL.transformer().unwrap();
        let mut dice = Dice::new(3);
        let (one, other) = (route(shape, 8000, &mut dice), route(shape, 8000, &mut dice));
        assert!(one.experts.iter().max().unwrap() > &(2 * 8000 * 4 / 32));
        assert_ne!(one.experts, other.experts);
    }

    #[test]
    fn a_dense_model_has_no_experts_and_draws_nothing() {
        let shape = models::OPT_1_3B.transformer().unwrap();
        let mut dice = Dice::new(3);
        let rows = route(shape, 10, &mut dice);
        assert_eq!((rows.tokens, rows.experts.len()), (10, 0));
        assert_eq!(dice.between(0, 1000), Dice::new(3).between(0, 1000));
    }
}
