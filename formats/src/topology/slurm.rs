//! Slurm's network topology: `topology.conf` of the tree and the block plug-in, or what `scontrol show topology` prints of
//! a tree.

use std::collections::BTreeMap;

use ir::Problem;

use super::hostlist;
use crate::text::{Faults, Line, lines, nearest};

/// The most nodes or switches of one file.
const MOST: usize = 1 << 20;

/// Nodes under one leaf switch, or in one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The switch or block.
    pub name: String,
    /// Its nodes, in the order written.
    pub nodes: Vec<String>,
}

/// How nodes are joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    /// Leaves in the order in which a walk from the root meets them; blocks as written.
    pub leaves: Vec<Leaf>,
    /// Switches between a node and the root, that of the leaf included; 1 for blocks.
    pub levels: usize,
}

impl Topology {
    /// Nodes in all.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.leaves.iter().map(|leaf| leaf.nodes.len()).sum()
    }

    /// Nodes of each leaf, where `nodes` fill them one after the other: all that they fill are equally large, but the last
    /// may be smaller or filled in part.
    ///
    /// # Errors
    /// Why not: more nodes than there are, or leaves of unlike size.
    pub fn leaf_size(&self, nodes: u64) -> Result<u32, String> {
        let all = self.nodes() as u64;
        if nodes > all {
            return Err(format!("joins {all} nodes, and the cluster has {nodes}"));
        }
        let first = self.leaves.first().map_or(0, |leaf| leaf.nodes.len());
        let mut rest = nodes;
        for leaf in &self.leaves {
            let size = leaf.nodes.len() as u64;
            if rest == 0 {
                break;
            }
            if size != first as u64 && (size > first as u64 || rest > size) {
                return Err(format!("has leaves of unlike size under these {nodes} nodes: {}", self.sizes()));
            }
            rest -= rest.min(size);
        }
        u32::try_from(first).map_err(|_| "has a leaf of too many nodes".to_owned())
    }

    /// `2 x 1, 3 x 2, 1 x 11`: how many leaves there are of each size.
    #[must_use]
    pub fn sizes(&self) -> String {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        self.leaves.iter().for_each(|leaf| *counts.entry(leaf.nodes.len()).or_default() += 1);
        counts.iter().map(|(size, count)| format!("{count} x {size}")).collect::<Vec<_>>().join(", ")
    }

    /// Leaves that hold so many nodes, so that a gang of them crosses no other switch.
    #[must_use]
    pub fn hold(&self, nodes: usize) -> Vec<&Leaf> {
        self.leaves.iter().filter(|leaf| leaf.nodes.len() >= nodes).collect()
    }
}

/// A switch as written.
#[derive(Debug)]
struct Switch<'t> {
    line: Line<'t>,
    name: String,
    below: Vec<String>,
    nodes: Vec<String>,
    /// What `scontrol` prints: nodes of an upper switch are those of the switches below it, told again.
    level: Option<usize>,
}

/// Reads `topology.conf`, or the tree that `scontrol show topology` prints. `file_name` is the file as the person named
/// it.
///
/// # Errors
/// Every fault with its line: unknown keys and switches, names under two parents, switches without anything below, loops,
/// several roots, a mixture of switches and blocks.
pub fn read(text: &str, file_name: &str) -> Result<Topology, Vec<Problem>> {
    let mut faults = Faults::new(file_name);
    let (mut switches, mut blocks) = (Vec::new(), Vec::new());
    let mut base = None;
    for line in lines(text) {
        let written = line.text.split('#').next().unwrap_or_default().trim();
        if written.is_empty() {
            continue;
        }
        if written.starts_with("- ") || written == "---" {
            let hint = "give what `scontrol show topology` prints";
            faults.whole("topology", "is topology.yaml, not topology.conf", hint, text.len());
            break;
        }
        let first = switches.is_empty() && blocks.is_empty() && base.is_none() && faults.is_empty();
        if first && !written.contains('=') {
            let word = written.split_whitespace().next().unwrap_or_default();
            let hint = "another kind of file? lines of topology.conf are such as SwitchName=leaf1 Nodes=node[1-8]";
            faults.at(&line, format!("`{word}` is no Key=Value"), Some(hint.to_owned()));
            break;
        }
        let keys = keys(&line, written, &mut faults);
        match keys.first().map(|(key, _)| *key) {
            Some("SwitchName") => switches.extend(switch(&line, &keys, &mut faults)),
            Some("BlockName") => blocks.extend(block(&line, &keys, &mut faults)),
            Some("BlockSizes") if keys.len() == 1 => base = Some((line, keys[0].1)),
            Some(key) => {
                let hint = "a line starts with SwitchName, BlockName or BlockSizes";
                faults.at(&line, format!("{key} belongs to no switch"), Some(hint.to_owned()));
            }
            None => {}
        }
    }
    if faults.is_empty() && (switches.is_empty() == blocks.is_empty()) {
        let what = if blocks.is_empty() { "names no switch and no block" } else { "has both switches and blocks" };
        faults.whole("topology", what, "lines such as SwitchName=leaf1 Nodes=node[1-8]", text.len());
    }
    if let Some((line, sizes)) = &base {
        block_sizes(line, sizes, &blocks, &mut faults);
    }
    let topology =
        if blocks.is_empty() { tree(&switches, text.len(), &mut faults) } else { blocked(blocks, &mut faults) };
    faults.finish(|| topology)
}

/// The known keys of both plug-ins, as Slurm writes them; case does not matter.
const KEYS: [&str; 7] = ["SwitchName", "Switches", "Nodes", "LinkSpeed", "Level", "BlockName", "BlockSizes"];

/// `Key=Value` pairs of a line, none twice.
fn keys<'t>(line: &Line<'_>, written: &'t str, faults: &mut Faults<'_>) -> Vec<(&'static str, &'t str)> {
    let mut found: Vec<(&'static str, &str)> = Vec::new();
    for word in written.split_whitespace() {
        let Some((key, value)) = word.split_once('=') else {
            faults.at(line, format!("`{word}` is no Key=Value"), nearest(word, &KEYS));
            continue;
        };
        let Some(known) = KEYS.into_iter().find(|known| known.eq_ignore_ascii_case(key)) else {
            let all = || Some(format!("one of: {}", KEYS.join(", ")));
            faults.at(line, format!("unknown key `{key}`"), nearest(key, &KEYS).or_else(all));
            continue;
        };
        if found.iter().any(|(there, _)| *there == known) {
            faults.at(line, format!("{known} is said twice"), None);
        }
        found.push((known, value));
    }
    found
}

fn value<'t>(keys: &[(&'static str, &'t str)], wanted: &str) -> Option<&'t str> {
    keys.iter().find(|(key, _)| *key == wanted).map(|(_, value)| *value)
}

/// The names of a key's hostlist; none if the key is not there or wrong.
fn names(line: &Line<'_>, keys: &[(&'static str, &str)], wanted: &str, faults: &mut Faults<'_>) -> Vec<String> {
    let Some(list) = value(keys, wanted) else { return Vec::new() };
    hostlist::expand(list, MOST).unwrap_or_else(|message| {
        faults.at(line, format!("{wanted}: {message}"), None);
        Vec::new()
    })
}

fn switch<'t>(line: &Line<'t>, keys: &[(&'static str, &str)], faults: &mut Faults<'_>) -> Option<Switch<'t>> {
    let before = faults.count();
    let (below, nodes) = (names(line, keys, "Switches", faults), names(line, keys, "Nodes", faults));
    let level = value(keys, "Level").map(str::parse::<usize>);
    let name = value(keys, "SwitchName").unwrap_or_default().to_owned();
    if name.is_empty() || name.contains(['[', ',']) {
        faults.at(line, "SwitchName is one name", None);
    }
    for key in ["BlockName", "BlockSizes"].into_iter().filter(|key| value(keys, key).is_some()) {
        faults.at(line, format!("{key} belongs to no switch"), None);
    }
    let level = level.transpose().unwrap_or_else(|_| {
        faults.at(line, "Level is a whole number", None);
        None
    });
    if faults.count() == before && below.is_empty() && nodes.is_empty() {
        faults.at(line, format!("{name} has neither nodes nor switches below it"), None);
    }
    if !below.is_empty() && !nodes.is_empty() && level.is_none_or(|level| level == 0) {
        let hint = "give the nodes a leaf switch of their own, below this one";
        faults.at(line, format!("{name} has both nodes and switches below it"), Some(hint.to_owned()));
    }
    (faults.count() == before).then(|| Switch { line: line.clone(), name, below, nodes, level })
}

fn block<'t>(line: &Line<'t>, keys: &[(&'static str, &str)], faults: &mut Faults<'_>) -> Option<(Line<'t>, Leaf)> {
    let before = faults.count();
    let nodes = names(line, keys, "Nodes", faults);
    let name = value(keys, "BlockName").unwrap_or_default().to_owned();
    for (key, _) in keys.iter().filter(|(key, _)| !matches!(*key, "BlockName" | "Nodes")) {
        faults.at(line, format!("{key} belongs to no block"), None);
    }
    if faults.count() == before && nodes.is_empty() {
        faults.at(line, format!("{name} has no Nodes"), None);
    }
    (faults.count() == before).then(|| (line.clone(), Leaf { name, nodes }))
}

/// Each block has at least the nodes of the smallest block size, as Slurm demands of it.
fn block_sizes(line: &Line<'_>, sizes: &str, blocks: &[(Line<'_>, Leaf)], faults: &mut Faults<'_>) {
    let sizes: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
    let Some(base) = sizes.ok().and_then(|sizes| sizes.first().copied()).filter(|size| *size > 0) else {
        faults.at(line, "BlockSizes are whole numbers, such as 18,36", None);
        return;
    };
    for (line, block) in blocks.iter().filter(|(_, block)| block.nodes.len() < base) {
        faults.at(
            line,
            format!("{} has {} nodes, fewer than the block size of {base}", block.name, block.nodes.len()),
            None,
        );
    }
}

fn blocked(blocks: Vec<(Line<'_>, Leaf)>, faults: &mut Faults<'_>) -> Topology {
    let mut owner: BTreeMap<&str, &str> = BTreeMap::new();
    for (line, block) in &blocks {
        for node in &block.nodes {
            if let Some(other) = owner.insert(node, &block.name) {
                faults.at(line, format!("{node} is in {other} and in {}", block.name), None);
            }
        }
    }
    Topology { leaves: blocks.into_iter().map(|(_, block)| block).collect(), levels: 1 }
}

/// The leaves of the one tree that all switches make up.
fn tree(switches: &[Switch<'_>], length: usize, faults: &mut Faults<'_>) -> Topology {
    let none = Topology { leaves: Vec::new(), levels: 0 };
    // A line that could not be read would be missed below.
    if !faults.is_empty() {
        return none;
    }
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, switch) in switches.iter().enumerate() {
        if at.insert(&switch.name, index).is_some() {
            faults.at(&switch.line, format!("{} is described twice", switch.name), None);
        }
    }
    let parents = parents(switches, &at, faults);
    if !faults.is_empty() || switches.is_empty() {
        return none;
    }
    let roots: Vec<usize> = (0..switches.len()).filter(|index| parents[*index].is_none()).collect();
    let [root] = roots[..] else {
        let names: Vec<&str> = roots.iter().map(|root| switches[*root].name.as_str()).collect();
        let (what, hint) = if names.is_empty() {
            ("is a loop: every switch is below another".to_owned(), "one switch is below no other")
        } else {
            let names = names.join(", ");
            (
                format!("has several roots, whose nodes do not reach each other: {names}"),
                "one switch above them joins them",
            )
        };
        faults.whole("topology", what, hint, length);
        return none;
    };
    let mut found = Topology { leaves: Vec::new(), levels: 0 };
    // Depth first, children in the order written.
    let mut stack = vec![(root, 1)];
    let mut seen = 0;
    while let Some((index, depth)) = stack.pop() {
        seen += 1;
        found.levels = found.levels.max(depth);
        let switch = &switches[index];
        if switch.below.is_empty() {
            found.leaves.push(Leaf { name: switch.name.clone(), nodes: switch.nodes.clone() });
        }
        stack.extend(switch.below.iter().rev().map(|name| (at[name.as_str()], depth + 1)));
    }
    if seen < switches.len() {
        let apart = (0..switches.len()).find(|index| in_a_loop(*index, &parents)).expect("a switch not reached");
        faults.at(&switches[apart].line, format!("{} is above itself", switches[apart].name), None);
    }
    nodes_once(switches, &at, faults);
    found
}

/// The switch above each.
fn parents(switches: &[Switch<'_>], at: &BTreeMap<&str, usize>, faults: &mut Faults<'_>) -> Vec<Option<usize>> {
    let mut parents = vec![None; switches.len()];
    let known: Vec<&str> = at.keys().copied().collect();
    for (index, switch) in switches.iter().enumerate() {
        for name in &switch.below {
            let Some(&child) = at.get(name.as_str()) else {
                faults.at(&switch.line, format!("there is no switch `{name}`"), nearest(name, &known));
                continue;
            };
            if let Some(other) = parents[child].replace(index) {
                let other: &Switch<'_> = &switches[other];
                faults.at(&switch.line, format!("{name} is below {} and below {}", other.name, switch.name), None);
            }
        }
    }
    parents
}

fn in_a_loop(start: usize, parents: &[Option<usize>]) -> bool {
    let mut above = parents[start];
    for _ in 0..parents.len() {
        match above {
            Some(switch) if switch == start => return true,
            Some(switch) => above = parents[switch],
            None => return false,
        }
    }
    false
}

/// No node is under two leaves, and what an upper switch says of its nodes is what is below it.
fn nodes_once(switches: &[Switch<'_>], at: &BTreeMap<&str, usize>, faults: &mut Faults<'_>) {
    let mut owner: BTreeMap<&str, &str> = BTreeMap::new();
    for switch in switches.iter().filter(|switch| switch.below.is_empty()) {
        for node in &switch.nodes {
            if let Some(other) = owner.insert(node, &switch.name) {
                faults.at(&switch.line, format!("{node} is under {other} and under {}", switch.name), None);
            }
        }
    }
    if !faults.is_empty() {
        return;
    }
    for switch in switches.iter().filter(|switch| switch.level.is_some() && !switch.below.is_empty()) {
        let mut below = Vec::new();
        let mut stack: Vec<&str> = switch.below.iter().map(String::as_str).collect();
        while let Some(name) = stack.pop() {
            let child = &switches[at[name]];
            if child.below.is_empty() {
                below.extend(&child.nodes);
            }
            stack.extend(child.below.iter().map(String::as_str));
        }
        let mut said: Vec<&String> = switch.nodes.iter().collect();
        below.sort_unstable();
        said.sort_unstable();
        if !said.is_empty() && below != said {
            let message = format!("{} says {} nodes, and {} are below it", switch.name, said.len(), below.len());
            faults.at(&switch.line, message, None);
        }
    }
}
