//! The types of a crate: their fields, their inherent methods, and in which file each method is defined.
//!
//! A container stands for what it holds: `Option<Box<Guard>>` is `Guard`, a map is its values, and a method that no file of the
//! crate defines returns its receiver. So a type may be assumed where the compiler would know of none; it is never another one.

use super::modules::{Crate, Kind, ModuleId, is_for_tests};
use std::collections::BTreeMap;
use syn::{FnArg, GenericArgument, ImplItem, Item, PathArguments, ReturnType, Type};

/// A type of the crate: the file that defines it, and its name there.
pub(crate) type Named = (String, String);

/// A method or a function.
pub(crate) struct Function {
    /// The file that defines it.
    pub(crate) file: String,
    pub(crate) returns: Option<Named>,
    /// The types that each parameter, if it is a closure, is called with; `self` left out.
    pub(crate) closures: Vec<Vec<Option<Named>>>,
}

/// The known types of a crate.
pub(crate) struct Types<'a> {
    of: &'a Crate,
    fields: BTreeMap<(Named, String), Named>,
    methods: BTreeMap<(Named, String), Function>,
    functions: BTreeMap<Named, Function>,
}

/// Where types are named: a module, and the type of an `impl` block.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) module: ModuleId,
    pub(crate) own: Option<&'a Named>,
}

impl<'a> Types<'a> {
    pub(crate) fn read(of: &'a Crate) -> Self {
        let (fields, methods, functions) = Default::default();
        let mut types = Self { of, fields, methods, functions };
        for (module, content) in of.modules.iter().enumerate() {
            content.items.iter().for_each(|item| types.note(module, &content.file, item));
        }
        types
    }

    fn note(&mut self, module: ModuleId, file: &str, item: &Item) {
        let place = Place { module, own: None };
        match item {
            Item::Struct(item) => {
                let own = (file.to_owned(), item.ident.to_string());
                for (at, field) in item.fields.iter().enumerate() {
                    let name = field.ident.as_ref().map_or_else(|| at.to_string(), ToString::to_string);
                    if let Some(named) = self.named(Place { own: Some(&own), ..place }, &field.ty) {
                        self.fields.insert((own.clone(), name), named);
                    }
                }
            }
            Item::Fn(item) => {
                let function = self.function(place, file, &item.sig);
                self.functions.insert((file.to_owned(), item.sig.ident.to_string()), function);
            }
            Item::Impl(block) if block.trait_.is_none() => {
                let Some(own) = self.named(place, &block.self_ty) else { return };
                for item in &block.items {
                    if let ImplItem::Fn(method) = item
                        && !method.attrs.iter().any(is_for_tests)
                    {
                        let function = self.function(Place { own: Some(&own), ..place }, file, &method.sig);
                        self.methods.insert((own.clone(), method.sig.ident.to_string()), function);
                    }
                }
            }
            _ => {}
        }
    }

    fn function(&self, place: Place<'_>, file: &str, signature: &syn::Signature) -> Function {
        let returns = match &signature.output {
            ReturnType::Type(_, of) => self.named(place, of),
            ReturnType::Default => None,
        };
        let closures = signature.inputs.iter().filter_map(|input| match input {
            FnArg::Receiver(_) => None,
            FnArg::Typed(input) => Some(self.called_with(place, &signature.generics, &input.ty)),
        });
        Function { file: file.to_owned(), returns, closures: closures.collect() }
    }

    /// The types that a parameter is called with, if it is a closure: `impl Fn(A)`, or an `F` with `F: Fn(A)`.
    fn called_with(&self, place: Place<'_>, generics: &syn::Generics, of: &Type) -> Vec<Option<Named>> {
        let bounds = match of {
            Type::Reference(of) => return self.called_with(place, generics, &of.elem),
            Type::ImplTrait(of) => Some(&of.bounds),
            Type::TraitObject(of) => Some(&of.bounds),
            Type::Path(of) => generics.type_params().find(|name| of.path.is_ident(&name.ident)).map(|of| &of.bounds),
            _ => None,
        };
        for bound in bounds.into_iter().flatten() {
            if let syn::TypeParamBound::Trait(bound) = bound
                && let Some(last) = bound.path.segments.last()
                && let PathArguments::Parenthesized(called) = &last.arguments
            {
                return called.inputs.iter().map(|input| self.named(place, &input.ty)).collect();
            }
        }
        Vec::new()
    }

    /// The type of the crate that a type is, or holds.
    pub(crate) fn named(&self, place: Place<'_>, of: &Type) -> Option<Named> {
        match of {
            Type::Reference(of) => self.named(place, &of.elem),
            Type::Ptr(of) => self.named(place, &of.elem),
            Type::Paren(of) => self.named(place, &of.elem),
            Type::Group(of) => self.named(place, &of.elem),
            Type::Slice(of) => self.named(place, &of.elem),
            Type::Array(of) => self.named(place, &of.elem),
            Type::ImplTrait(of) => of.bounds.iter().find_map(|bound| self.item_of(place, bound)),
            Type::Path(of) => self.named_by(place, &of.path),
            _ => None,
        }
    }

    /// Returns the item that an `impl Iterator<Item = T>` gives.
    fn item_of(&self, place: Place<'_>, bound: &syn::TypeParamBound) -> Option<Named> {
        let syn::TypeParamBound::Trait(bound) = bound else { return None };
        let PathArguments::AngleBracketed(list) = &bound.path.segments.last()?.arguments else { return None };
        list.args.iter().find_map(|argument| match argument {
            GenericArgument::AssocType(item) => self.named(place, &item.ty),
            _ => None,
        })
    }

    /// The type that a path names.
    pub(crate) fn named_by(&self, place: Place<'_>, path: &syn::Path) -> Option<Named> {
        let last = path.segments.last()?;
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if words == ["Self"] {
            return place.own.cloned();
        }
        if let Some(target) = self.of.resolve(place.module, &words)
            && target.kind == Kind::Other
            && !WRAPPERS.contains(&words[words.len() - 1].as_str())
        {
            return Some((target.file, words[words.len() - 1].clone()));
        }
        let PathArguments::AngleBracketed(list) = &last.arguments else { return None };
        let arguments = list.args.iter().filter_map(|argument| match argument {
            GenericArgument::Type(of) => Some(of),
            _ => None,
        });
        if last.ident.to_string().ends_with("Map") {
            return self.named(place, arguments.last()?);
        }
        self.named(place, arguments.into_iter().next()?)
    }

    pub(crate) fn field(&self, of: &Named, name: &str) -> Option<Named> {
        self.fields.get(&(of.clone(), name.to_owned())).cloned()
    }

    pub(crate) fn method(&self, of: &Named, name: &str) -> Option<&Function> {
        self.methods.get(&(of.clone(), name.to_owned()))
    }

    /// The function, or associated function, that a path in code names.
    pub(crate) fn function_at(&self, place: Place<'_>, path: &syn::Path) -> Option<&Function> {
        let mut before = path.clone();
        let last = before.segments.pop()?.ident.to_string();
        before.segments.pop_punct();
        if let Some(of) = self.named_by(place, &before)
            && let Some(found) = self.method(&of, &last)
        {
            return Some(found);
        }
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let target = self.of.resolve(place.module, &words)?;
        self.functions.get(&(target.file, last))
    }
}

/// Types and aliases of the crate that stand for what they hold.
const WRAPPERS: [&str; 3] = ["Result", "Grown", "Option"];
