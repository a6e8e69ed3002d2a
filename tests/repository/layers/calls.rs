//! Which file needs which other by calls of inherent methods: `self.name(…)` needs the file that defines `name` for the type.
//!
//! Types of receivers come from signatures, fields and `let` lines. A call whose receiver's type is unknown is no arrow.

use super::imports::{Arrow, What};
use super::modules::{Crate, is_for_tests};
use super::types::{Function, Named, Place, Types};
use std::collections::BTreeMap;
use syn::visit::{self, Visit};
use syn::{Expr, FnArg, Member, Pat};

/// All arrows between different files of a crate that calls make, those of one line to one file once.
pub(crate) fn calls(of: &Crate) -> Vec<Arrow> {
    let types = Types::read(of);
    let mut found = BTreeMap::new();
    for (module, content) in of.modules.iter().enumerate() {
        let mut code =
            Code { types: &types, place: Place { module, own: None }, variables: BTreeMap::new(), found: Vec::new() };
        content.items.iter().for_each(|item| code.visit_item(item));
        for (path, line, to) in code.found.into_iter().filter(|(.., to)| *to != content.file) {
            let from = content.file.clone();
            let key = (from.clone(), line, to.clone());
            found.entry(key).or_insert(Arrow { from, line, path, to, what: What::Call });
        }
    }
    found.into_values().collect()
}

/// The code of a module as it is read.
struct Code<'a> {
    types: &'a Types<'a>,
    place: Place<'a>,
    variables: BTreeMap<String, Named>,
    /// Calls: what is called, the line, and the file that defines it.
    found: Vec<(String, usize, String)>,
}

impl Code<'_> {
    /// The type of a value, as far as it is known.
    fn of(&self, value: &Expr) -> Option<Named> {
        match value {
            Expr::Reference(of) => self.of(&of.expr),
            Expr::Paren(of) => self.of(&of.expr),
            Expr::Group(of) => self.of(&of.expr),
            Expr::Try(of) => self.of(&of.expr),
            Expr::Unary(of) => self.of(&of.expr),
            Expr::Index(of) => self.of(&of.expr),
            Expr::Cast(of) => self.types.named(self.place, &of.ty),
            Expr::Struct(of) => self.types.named_by(self.place, &of.path),
            Expr::Field(of) => {
                let name = match &of.member {
                    Member::Named(name) => name.to_string(),
                    Member::Unnamed(at) => at.index.to_string(),
                };
                self.types.field(&self.of(&of.base)?, &name)
            }
            Expr::Path(of) => of.path.get_ident().and_then(|name| self.variables.get(&name.to_string())).cloned(),
            Expr::MethodCall(call) => {
                let receiver = self.of(&call.receiver)?;
                match self.types.method(&receiver, &call.method.to_string()) {
                    Some(method) => method.returns.clone(),
                    None => Some(receiver),
                }
            }
            Expr::Call(call) => match &*call.func {
                Expr::Path(of) if is_variant(&of.path) => self.of(call.args.first()?),
                Expr::Path(of) => match self.types.function_at(self.place, &of.path) {
                    Some(function) => function.returns.clone(),
                    // A tuple struct, by its constructor.
                    None => self.types.named_by(self.place, &of.path),
                },
                _ => None,
            },
            _ => None,
        }
    }

    /// Notes the types of the names in a pattern that a value of this type is taken apart by.
    fn bind(&mut self, pattern: &Pat, of: Option<Named>) {
        match pattern {
            Pat::Ident(name) => {
                let variable = name.ident.to_string();
                match of {
                    Some(of) => self.variables.insert(variable, of),
                    None => self.variables.remove(&variable),
                };
            }
            Pat::Reference(pattern) => self.bind(&pattern.pat, of),
            Pat::Paren(pattern) => self.bind(&pattern.pat, of),
            Pat::Type(pattern) => {
                let of = self.types.named(self.place, &pattern.ty).or(of);
                self.bind(&pattern.pat, of);
            }
            Pat::TupleStruct(pattern) => {
                let of = of.filter(|_| is_variant(&pattern.path));
                pattern.elems.iter().for_each(|pattern| self.bind(pattern, of.clone()));
            }
            Pat::Tuple(pattern) => pattern.elems.iter().for_each(|pattern| self.bind(pattern, None)),
            Pat::Or(pattern) => pattern.cases.iter().for_each(|pattern| self.bind(pattern, of.clone())),
            Pat::Slice(pattern) => pattern.elems.iter().for_each(|pattern| self.bind(pattern, of.clone())),
            Pat::Struct(pattern) => {
                let whole = self.types.named_by(self.place, &pattern.path);
                for field in &pattern.fields {
                    let Member::Named(name) = &field.member else { continue };
                    let of = whole.as_ref().and_then(|whole| self.types.field(whole, &name.to_string()));
                    self.bind(&field.pat, of);
                }
            }
            _ => {}
        }
    }

    /// Notes the types in a pattern that takes a value apart.
    fn bind_value(&mut self, pattern: &Pat, value: &Expr) {
        match (pattern, value) {
            (Pat::Tuple(pattern), Expr::Tuple(value)) => {
                pattern.elems.iter().zip(&value.elems).for_each(|(pattern, value)| self.bind_value(pattern, value));
            }
            _ => self.bind(pattern, self.of(value)),
        }
    }

    /// Reads the arguments of a call; closures among them with the types that the function calls them with, or with the receiver's.
    fn arguments<'ast>(
        &mut self,
        of: Option<&Function>,
        receiver: Option<&Named>,
        arguments: impl Iterator<Item = &'ast Expr>,
    ) {
        for (at, argument) in arguments.enumerate() {
            let Expr::Closure(closure) = argument else {
                self.visit_expr(argument);
                continue;
            };
            let with: Vec<Option<Named>> = match of {
                Some(function) => function.closures.get(at).cloned().unwrap_or_default(),
                None => vec![receiver.cloned(); closure.inputs.len()],
            };
            let before = self.variables.clone();
            let with = with.into_iter().chain(std::iter::repeat(None));
            closure.inputs.iter().zip(with).for_each(|(input, with)| self.bind(input, with));
            self.visit_expr(&closure.body);
            self.variables = before;
        }
    }

    /// Reads a function's body with the types of its parameters.
    fn body(&mut self, signature: &syn::Signature, read: impl FnOnce(&mut Self)) {
        let before = std::mem::take(&mut self.variables);
        for input in &signature.inputs {
            match input {
                FnArg::Receiver(_) => {
                    if let Some(own) = self.place.own {
                        self.variables.insert("self".to_owned(), own.clone());
                    }
                }
                FnArg::Typed(input) => {
                    let of = self.types.named(self.place, &input.ty);
                    self.bind(&input.pat, of);
                }
            }
        }
        read(self);
        self.variables = before;
    }
}

/// Whether a path is a variant that stands for what it holds.
fn is_variant(path: &syn::Path) -> bool {
    ["Some", "Ok"].iter().any(|name| path.is_ident(name))
}

impl<'ast> Visit<'ast> for Code<'_> {
    fn visit_item_impl(&mut self, block: &'ast syn::ItemImpl) {
        let own = self.types.named(self.place, &block.self_ty);
        let mut inside = Code {
            types: self.types,
            place: Place { own: own.as_ref(), ..self.place },
            variables: BTreeMap::new(),
            found: Vec::new(),
        };
        visit::visit_item_impl(&mut inside, block);
        self.found.append(&mut inside.found);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !function.attrs.iter().any(is_for_tests) {
            self.body(&function.sig, |code| visit::visit_impl_item_fn(code, function));
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !function.attrs.iter().any(is_for_tests) {
            self.body(&function.sig, |code| visit::visit_item_fn(code, function));
        }
    }

    fn visit_local(&mut self, line: &'ast syn::Local) {
        let Some(init) = &line.init else { return self.bind(&line.pat, None) };
        self.visit_expr(&init.expr);
        if let Some((_, otherwise)) = &init.diverge {
            self.visit_expr(otherwise);
        }
        self.bind_value(&line.pat, &init.expr);
    }

    fn visit_expr_let(&mut self, line: &'ast syn::ExprLet) {
        self.visit_expr(&line.expr);
        self.bind_value(&line.pat, &line.expr);
    }

    fn visit_expr_for_loop(&mut self, line: &'ast syn::ExprForLoop) {
        self.visit_expr(&line.expr);
        self.bind_value(&line.pat, &line.expr);
        self.visit_block(&line.body);
    }

    fn visit_expr_match(&mut self, line: &'ast syn::ExprMatch) {
        self.visit_expr(&line.expr);
        for arm in &line.arms {
            self.bind_value(&arm.pat, &line.expr);
            visit::visit_arm(self, arm);
        }
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        let before = self.variables.clone();
        closure.inputs.iter().for_each(|input| self.bind(input, None));
        self.visit_expr(&closure.body);
        self.variables = before;
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.visit_expr(&call.receiver);
        let receiver = self.of(&call.receiver);
        let name = call.method.to_string();
        let types = self.types;
        let method = receiver.as_ref().and_then(|of| types.method(of, &name));
        if let (Some(method), Some((_, of))) = (method, &receiver) {
            self.found.push((format!("{of}::{name}"), call.method.span().start().line, method.file.clone()));
        }
        self.arguments(method, receiver.as_ref(), call.args.iter());
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        self.visit_expr(&call.func);
        let types = self.types;
        let function = match &*call.func {
            Expr::Path(of) => types.function_at(self.place, &of.path),
            _ => None,
        };
        self.arguments(function, None, call.args.iter());
    }

    fn visit_expr_path(&mut self, of: &'ast syn::ExprPath) {
        let Some(name) = of.path.segments.last().filter(|_| of.path.segments.len() > 1) else { return };
        let types = self.types;
        if let Some(function) = types.function_at(self.place, &of.path) {
            let words: Vec<String> = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.found.push((words.join("::"), name.ident.span().start().line, function.file.clone()));
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        use syn::parse::{ParseStream, Parser};
        let parse = |input: ParseStream<'_>| {
            let mut values = Vec::new();
            while let Ok(value) = input.parse::<Expr>() {
                values.push(value);
                if input.parse::<syn::Token![,]>().is_err() {
                    break;
                }
            }
            input.parse::<proc_macro2::TokenStream>()?;
            Ok(values)
        };
        let values = parse.parse2(call.tokens.clone()).unwrap_or_default();
        values.iter().for_each(|value| self.visit_expr(value));
    }
}
