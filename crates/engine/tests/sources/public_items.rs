//! Compares the public items of the crate with the list in `tests/public_items.txt`.
//!
//! The list contains the types, traits, functions, methods and constants that users can access with the features
//! `tokio` and `tracing`. It does not contain fields, variants, trait implementations and items of other crates. Run
//! the test with `UPDATE=1` to rewrite the list.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::read;
use syn::{Attribute, Ident, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

/// `docs/design/decisions/2026-11-25-public-api.md` states the reason.
const ITEMS_MAX: usize = 589;

/// A module of the crate, parsed from its sources.
#[derive(Default)]
struct Module {
    items: Vec<Item>,
    /// The child modules by name, and whether each is public.
    children: BTreeMap<String, (bool, Module)>,
}

/// The path of an item from the crate root.
type ItemPath = Vec<String>;

/// Returns whether builds for users contain an item. An item with `#[doc(hidden)]` counts as contained.
fn is_compiled(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).all(|attribute| {
        let text = attribute.meta.require_list().unwrap().tokens.to_string();
        match text.replace(' ', "").as_str() {
            "feature=\"metrics\""
            | "feature=\"tokio\""
            | "feature=\"tracing\""
            | "not(loom)"
            | "unix"
            | "debug_assertions" => true,
            text => {
                text.starts_with("not(feature=\"t")
                    && !text.contains("tracing")
                    && !text.contains("tokio")
            }
        }
    })
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn read_module(file: &Path, dir: &Path) -> Module {
    module_of(syn::parse_file(&read(file)).unwrap().items, dir)
}

fn module_of(items: Vec<Item>, dir: &Path) -> Module {
    let mut module = Module::default();
    for item in items {
        let Item::Mod(child) = item else {
            module.items.push(item);
            continue;
        };
        if !is_compiled(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let inside = dir.join(&name);
        let content = match child.content {
            Some((_, items)) => module_of(items, &inside),
            None => {
                let files = [dir.join(format!("{name}.rs")), inside.join("mod.rs")];
                let file: &PathBuf = files.iter().find(|file| file.exists()).unwrap();
                read_module(file, &inside)
            }
        };
        module.children.insert(name, (is_public(&child.vis), content));
    }
    module
}

impl Module {
    fn at(&self, path: &[String]) -> Option<&Module> {
        path.iter().try_fold(self, |module, name| Some(&module.children.get(name)?.1))
    }

    /// Returns the imports of the module from this crate. Each has the local name and the full path of the item.
    fn imports(&self, own: &[String], only_public: bool) -> Vec<(String, ItemPath)> {
        let mut imports = Vec::new();
        for item in &self.items {
            if let Item::Use(item) = item
                && is_compiled(&item.attrs)
                && (!only_public || is_public(&item.vis))
            {
                flatten(&item.tree, &mut Vec::new(), &mut imports);
            }
        }
        imports.retain_mut(|(_, path)| match path[0].as_str() {
            "crate" => {
                path.remove(0);
                true
            }
            "self" | "super" => {
                let up = path.iter().take_while(|name| *name == "super").count();
                let skipped =
                    path.iter().take_while(|name| *name == "super" || *name == "self").count();
                let parent = &own[..own.len() - up];
                *path = parent.iter().chain(&path[skipped..]).cloned().collect();
                true
            }
            name if self.children.contains_key(name) => {
                *path = own.iter().chain(&*path).cloned().collect();
                true
            }
            _ => false,
        });
        imports
    }

    fn defined(&self) -> BTreeMap<String, &Item> {
        let mut defined = BTreeMap::new();
        for item in &self.items {
            let (attributes, visibility, name): (_, _, &Ident) = match item {
                Item::Struct(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Enum(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Trait(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Type(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Const(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Static(item) => (&item.attrs, &item.vis, &item.ident),
                Item::Fn(item) => (&item.attrs, &item.vis, &item.sig.ident),
                _ => continue,
            };
            if is_public(visibility) && is_compiled(attributes) {
                defined.insert(name.to_string(), item);
            }
        }
        defined
    }
}

fn flatten(tree: &UseTree, path: &mut ItemPath, found: &mut Vec<(String, ItemPath)>) {
    match tree {
        UseTree::Path(part) => {
            path.push(part.ident.to_string());
            flatten(&part.tree, path, found);
            path.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            found.push((path.last().unwrap().clone(), path.clone()));
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            found.push((name.clone(), path.iter().cloned().chain([name]).collect()));
        }
        UseTree::Rename(rename) => {
            let full = path.iter().cloned().chain([rename.ident.to_string()]).collect();
            found.push((rename.rename.to_string(), full));
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path, found)),
        UseTree::Glob(_) => found.push(("*".to_owned(), path.clone())),
    }
}

/// Follows imports to the definition of an item. Returns the path of the definition, or `None` if another crate
/// contains it.
fn resolve(root: &Module, path: &[String]) -> Option<ItemPath> {
    let (name, parent) = path.split_last()?;
    let module = root.at(parent)?;
    if module.defined().contains_key(name) {
        return Some(path.to_vec());
    }
    let imports = module.imports(parent, false);
    let (_, target) =
        imports.into_iter().find(|(local, target)| local == name && target != path)?;
    resolve(root, &target)
}

/// Collects all items that users can access. Maps the path of each definition to the shortest public path.
fn reach(root: &Module, path: &[String], reached: &mut BTreeMap<ItemPath, ItemPath>) {
    let module = root.at(path).unwrap();
    let mut offer = |definition: ItemPath, public: ItemPath| {
        let shortest = reached.entry(definition).or_insert_with(|| public.clone());
        if public.len() < shortest.len() {
            *shortest = public;
        }
    };
    let inside =
        |name: &str| -> ItemPath { path.iter().cloned().chain([name.to_owned()]).collect() };
    for name in module.defined().into_keys() {
        offer(inside(&name), inside(&name));
    }
    for (name, target) in module.imports(path, true) {
        if let Some(definition) = resolve(root, &target) {
            offer(definition, inside(&name));
        }
    }
    for (name, (public, _)) in &module.children {
        if *public {
            reach(root, &inside(name), reached);
        }
    }
}

/// Collects the public methods and constants of each type. The keys are the paths of the type definitions.
fn members(root: &Module, path: &[String], found: &mut BTreeMap<ItemPath, BTreeSet<String>>) {
    let module = root.at(path).unwrap();
    for item in &module.items {
        let Item::Impl(item) = item else { continue };
        if item.trait_.is_some() || !is_compiled(&item.attrs) {
            continue;
        }
        let Type::Path(own) = &*item.self_ty else { continue };
        let names: Vec<_> = own.path.segments.iter().map(|part| part.ident.to_string()).collect();
        let full: ItemPath = match names[0].as_str() {
            "crate" => names[1..].to_vec(),
            _ => path.iter().cloned().chain(names).collect(),
        };
        let Some(definition) = resolve(root, &full) else { continue };
        for member in &item.items {
            let (attributes, visibility, name) = match member {
                ImplItem::Fn(member) => (&member.attrs, &member.vis, &member.sig.ident),
                ImplItem::Const(member) => (&member.attrs, &member.vis, &member.ident),
                _ => continue,
            };
            if is_public(visibility) && is_compiled(attributes) {
                found.entry(definition.clone()).or_default().insert(name.to_string());
            }
        }
    }
    for name in module.children.keys() {
        members(root, &path.iter().cloned().chain([name.clone()]).collect::<Vec<_>>(), found);
    }
}

fn public_items() -> BTreeSet<String> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = read_module(&src.join("lib.rs"), &src);
    let (mut reached, mut found) = (BTreeMap::new(), BTreeMap::new());
    reach(&root, &[], &mut reached);
    members(&root, &[], &mut found);
    let mut lines = BTreeSet::new();
    for (definition, public) in reached {
        let (name, parent) = definition.split_last().unwrap();
        let module = root.at(parent).unwrap();
        let line = public.join("::");
        if let Item::Trait(item) = module.defined()[name] {
            for member in &item.items {
                match member {
                    TraitItem::Fn(member) if !is_compiled(&member.attrs) => false,
                    TraitItem::Fn(member) => lines.insert(format!("{line}::{}", member.sig.ident)),
                    TraitItem::Const(member) => lines.insert(format!("{line}::{}", member.ident)),
                    _ => false,
                };
            }
        }
        for member in found.get(&definition).into_iter().flatten() {
            lines.insert(format!("{line}::{member}"));
        }
        lines.insert(line);
    }
    lines
}

#[test]
fn public_items_equal_the_checked_in_list() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/public_items.txt");
    let items = public_items();
    let list: String = items.iter().map(|item| format!("{item}\n")).collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, &list).unwrap();
    }
    let checked_in = read(&file);
    let expected: BTreeSet<String> = checked_in.lines().map(str::to_owned).collect();
    let added: Vec<_> = items.difference(&expected).collect();
    let removed: Vec<_> = expected.difference(&items).collect();
    assert!(
        added.is_empty() && removed.is_empty(),
        "public items changed (UPDATE=1 rewrites the list): added {added:?}, removed {removed:?}"
    );
    assert!(items.len() <= ITEMS_MAX, "{} public items, at most {ITEMS_MAX}", items.len());
}
