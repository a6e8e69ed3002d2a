//! Arithmetic on the indices of pools, found by its words: `pools[`, `& 1`, `& !1` and `pool + 1`.

use super::modules::Crate;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;

/// Where such arithmetic stands in a crate's own code, tests aside: file, line and words.
pub(crate) fn found(of: &Crate) -> Vec<(String, usize, &'static str)> {
    let mut all = Vec::new();
    for module in &of.modules {
        for item in &module.items {
            let mut places = Vec::new();
            scan(item.to_token_stream(), &mut places);
            all.extend(places.into_iter().map(|(line, words)| (module.file.clone(), line, words)));
        }
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn scan(tokens: TokenStream, out: &mut Vec<(usize, &'static str)>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for (at, token) in tokens.iter().enumerate() {
        let line = token.span().start().line;
        let [second, third] = [1, 2].map(|more| tokens.get(at + more));
        let words = match token {
            TokenTree::Ident(name) if name == "pools" && is_index(second) => "pools[",
            TokenTree::Ident(name) if name == "pool" && is_mark(second, '+') && is_one(third) => "pool + 1",
            // A reference has nothing before it that could be an operand.
            TokenTree::Punct(mark) if mark.as_char() == '&' && at > 0 && is_operand(&tokens[at - 1]) => {
                match (is_one(second), is_mark(second, '!') && is_one(third)) {
                    (true, _) => "& 1",
                    (_, true) => "& !1",
                    _ => continue,
                }
            }
            TokenTree::Group(group) => {
                scan(group.stream(), out);
                continue;
            }
            _ => continue,
        };
        out.push((line, words));
    }
}

fn is_index(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Bracket)
}

fn is_mark(token: Option<&TokenTree>, mark: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == mark)
}

fn is_one(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Literal(literal)) if ["1", "1_u32", "1u32", "1usize"].contains(&&*literal.to_string()))
}

fn is_operand(token: &TokenTree) -> bool {
    match token {
        TokenTree::Ident(word) => !["in", "return", "match", "if", "mut", "as"].iter().any(|keyword| word == keyword),
        TokenTree::Literal(_) => true,
        TokenTree::Group(group) => group.delimiter() != Delimiter::Brace,
        TokenTree::Punct(_) => false,
    }
}
