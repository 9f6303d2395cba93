//! `[cost] collectives`: measured times of collectives, from what nccl-tests printed or written out.

use std::path::Path;

use cost::CollectivePoints;
use formats::nccl_tests::{self, Said};
use ir::program::CollectiveKind;
use ir::{Cluster, NodeKind};

use super::Sight;
use crate::read::{Table, Value, suggest};

/// The most points of one curve: sizes from a byte to an exabyte have 60 doublings.
const MOST_POINTS: usize = 10_000;

/// Reads the list. What a file does not say comes from the keys beside it, else from the cluster.
pub(super) fn read(value: &Value<'_>, sight: &Sight<'_>, cluster: Option<&Cluster>) -> Option<Vec<CollectivePoints>> {
    let items = value.list()?;
    let curves: Vec<Option<CollectivePoints>> = items.iter().map(|item| curve(item, sight, cluster)).collect();
    let curves: Vec<CollectivePoints> = curves.into_iter().collect::<Option<_>>()?;
    for (index, of) in curves.iter().enumerate() {
        let same = |other: &CollectivePoints| {
            (&other.link, &other.kind, other.ranks, other.nodes) == (&of.link, &of.kind, of.ranks, of.nodes)
        };
        if curves[..index].iter().any(same) {
            let message = format!("a second {} of {} ranks on {} nodes over {}", of.kind, of.ranks, of.nodes, of.link);
            items[index].problem(message, Some("leave one out".to_owned()));
            return None;
        }
    }
    Some(curves)
}

fn curve(value: &Value<'_>, sight: &Sight<'_>, cluster: Option<&Cluster>) -> Option<CollectivePoints> {
    let table = value.table()?;
    let kind = table.get("kind").map(|v| v.one_of(CollectiveKind::ALL, CollectiveKind::name));
    let ranks = table.get("ranks").map(|v| v.integer(2..=1 << 20).and_then(|n| u32::try_from(n).ok()));
    let nodes = table.get("nodes").map(|v| v.count());
    let named = table.get("link");
    let link = named.as_ref().map(|v| v.text());
    let (file, points) = (table.get("file"), table.get("points"));
    table.finish();
    // An outer `None` is a key that is not there, an inner one a key that is wrong.
    if matches!(kind, Some(None))
        || matches!(ranks, Some(None))
        || matches!(nodes, Some(None))
        || matches!(link, Some(None))
    {
        return None;
    }
    let said = Said { kind: kind.flatten(), ranks: ranks.flatten() };
    let found = match (file, points) {
        (Some(file), None) => from_file(&file, &said, sight)?,
        (None, Some(points)) => written(&table, &points, &said)?,
        (None, None) | (Some(_), Some(_)) => {
            value.problem("names a file or has points", Some("such as { file = \"all_reduce_perf.txt\" }".to_owned()));
            return None;
        }
    };
    let cluster = cluster?;
    let nodes = self::nodes(value, nodes.flatten(), &found, cluster)?;
    let link = self::link(value, named.as_ref().zip(link.flatten()), found.ranks, nodes, cluster)?;
    let (kind, ranks, points) = (found.kind.name().to_owned(), found.ranks, found.points);
    Some(CollectivePoints { link, kind, ranks, nodes, points })
}

fn from_file(file: &Value<'_>, said: &Said, sight: &Sight<'_>) -> Option<nccl_tests::Curve> {
    let (name, text) = sight.read(Path::new(file.text()?), file)?;
    match nccl_tests::read(&text, &name, said) {
        Ok(curve) => Some(curve),
        Err(problems) => {
            problems.into_iter().for_each(|problem| sight.report(problem));
            None
        }
    }
}

/// `[[bytes, microseconds], ...]`.
fn written(table: &Table<'_>, points: &Value<'_>, said: &Said) -> Option<nccl_tests::Curve> {
    for (key, example) in [("kind", "\"all-reduce\""), ("ranks", "8")] {
        if !table.has(key) {
            table.require(key, example);
        }
    }
    let items = points.list()?;
    let pair = |item: &Value<'_>| -> Option<[f64; 2]> {
        let numbers = item.list()?;
        let [bytes, microseconds] = &numbers[..] else {
            item.problem("is no pair of bytes and microseconds", None);
            return None;
        };
        Some([bytes.number(1.0..=1e18)?, microseconds.number(1e-3..=1e15)?])
    };
    let pairs: Vec<Option<[f64; 2]>> = items.iter().map(pair).collect();
    let pairs: Vec<[f64; 2]> = pairs.into_iter().collect::<Option<_>>()?;
    if pairs.len() < 2 || pairs.len() > MOST_POINTS || !pairs.is_sorted_by(|a, b| a[0] < b[0]) {
        points.problem("is no curve: two points or more, sizes increasing", None);
        return None;
    }
    Some(nccl_tests::Curve { kind: said.kind?, ranks: said.ranks?, nodes: None, points: pairs })
}

/// Nodes that hold the members: those listed or written, else one if they fit into it, else whole ones.
fn nodes(value: &Value<'_>, written: Option<u32>, curve: &nccl_tests::Curve, cluster: &Cluster) -> Option<u32> {
    if let (Some(written), Some(listed)) = (written, curve.nodes)
        && written != listed
    {
        value.problem(format!("the file lists {listed} nodes, and {written} are written"), None);
        return None;
    }
    let per_node = cluster.node_kinds.iter().map(|kind| kind.devices.len()).max().unwrap_or(1);
    let per_node = u32::try_from(per_node.max(1)).ok()?;
    let nodes = written.or(curve.nodes).unwrap_or_else(|| curve.ranks.div_ceil(per_node));
    if !curve.ranks.is_multiple_of(nodes) || curve.ranks / nodes > per_node {
        let message = format!("{} ranks are not equal parts of {nodes} nodes of {per_node} devices", curve.ranks);
        value.problem(message, Some("say how many nodes there were: nodes = 2".to_owned()));
        return None;
    }
    Some(nodes)
}

/// The link that joined the members: the one written, which must be in the cluster, else that of its nodes.
fn link(
    value: &Value<'_>,
    written: Option<(&Value<'_>, &str)>,
    ranks: u32,
    nodes: u32,
    cluster: &Cluster,
) -> Option<String> {
    let of = |kind: &NodeKind| {
        let link = if nodes > 1 {
            &kind.nic
        } else if ranks > kind.domain_size {
            &kind.host_link
        } else {
            &kind.domain_link
        };
        link.name.clone()
    };
    let mut links: Vec<String> = cluster.node_kinds.iter().map(of).collect();
    links.dedup();
    let Some((written, name)) = written else {
        if let [only] = &links[..] {
            return Some(only.clone());
        }
        value.problem(
            "the cluster's nodes have unlike links",
            Some(format!("write link, one of: {}", links.join(", "))),
        );
        return None;
    };
    let all = cluster.node_kinds.iter().flat_map(|kind| [&kind.domain_link, &kind.host_link, &kind.nic]);
    let names: Vec<&str> = all.map(|link| link.name.as_str()).collect();
    if !names.contains(&name) {
        written.problem(format!("the cluster has no link `{name}`"), Some(suggest(name, names)));
        return None;
    }
    Some(name.to_owned())
}
