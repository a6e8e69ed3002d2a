//! The rows of the page: the table of the options, `crates/config/src/table.rs`, as the library has it.

/// A field of the options.
pub(crate) struct Field {
    /// The section of the page, and what stands at its head.
    pub(crate) title: &'static str,
    pub(crate) introduction: &'static str,
    /// The struct, and the field of `Config` that it is; `whole` is `Config` itself.
    pub(crate) owner: &'static str,
    pub(crate) place: &'static str,
    pub(crate) name: &'static str,
    /// The lines of its documentation.
    pub(crate) doc: &'static [&'static str],
    /// The options that set it: its own, and other names for it.
    pub(crate) rows: &'static [Row],
}

/// An option.
pub(crate) struct Row {
    /// As in text.
    pub(crate) name: &'static str,
    /// The options that the option needs beside it to have an effect.
    pub(crate) beside: &'static str,
    /// The text that is typed, and its unit.
    pub(crate) typed: &'static str,
    /// The default, as it is typed.
    pub(crate) default: &'static str,
    /// A value other than the default, which the strategies that are not named must not heed.
    pub(crate) example: &'static str,
    /// When to touch it.
    pub(crate) when: &'static str,
}

macro_rules! options {
    ($(
        $(#[$about:meta])*
        pub struct $Owner:ident at $place:ident, $visible:vis const $DEFAULT:ident $of_default:literal {
            $( @section $title:literal, $introduction:literal; $(
                $(#[doc = $doc:literal])* $field:ident: $type:ty = $value:expr;
                $(
                    $name:literal: $syntax:expr
                        $(, only $strategies:expr)? $(, beside $beside:literal)?
                        $(, set $set:expr)? $(, given $given:expr)? $(, valid $valid:expr)?,
                        typed $typed:literal, default $default:literal, example $example:literal, when $when:literal;
                )*
            )* )*
        }
    )*) => {
        pub(crate) const FIELDS: &[Field] = &[ $( $( $( Field {
            title: $title,
            introduction: $introduction,
            owner: stringify!($Owner),
            place: stringify!($place),
            name: stringify!($field),
            doc: &[ $($doc),* ],
            rows: &[ $( Row {
                name: $name,
                beside: concat!("" $(, $beside, ",")?),
                typed: $typed,
                default: $default,
                example: $example,
                when: $when,
            } ),* ],
        }, )* )* )* ];
    };
}
include!("../../../crates/config/src/table.rs");
