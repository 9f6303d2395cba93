//! `[cost] profiles`: measured layers of the model, as Sailor's profiler writes them, by kind of device.

use std::path::Path;

use cost::{Profile, ProfiledLayer, ProfiledPoint};
use formats::sailor;
use ir::Cluster;

use super::Sight;
use crate::read::{Value, suggest};

/// A profile of one kind of device.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfileChoice {
    /// The content of the file.
    pub text: String,
    /// What it says.
    pub profile: Profile,
    /// Points that are missing, in sentences.
    pub gaps: Vec<String>,
}

/// Reads the list.
pub(super) fn read(value: &Value<'_>, sight: &Sight<'_>, cluster: Option<&Cluster>) -> Option<Vec<ProfileChoice>> {
    let items = value.list()?;
    if items.is_empty() {
        value.problem(
            "needs a profile at least",
            Some("[{ device = \"a100-sxm4-40gb\", file = \"profile.json\" }]".to_owned()),
        );
        return None;
    }
    let found: Vec<Option<ProfileChoice>> = items.iter().map(|item| one(item, sight, cluster)).collect();
    found.into_iter().collect()
}

fn one(value: &Value<'_>, sight: &Sight<'_>, cluster: Option<&Cluster>) -> Option<ProfileChoice> {
    let table = value.table()?;
    let device = table.get("device").map(|v| device(&v, cluster));
    let interpolate = table.get("interpolate").map_or(Some(false), |v| v.boolean());
    let (file, written) = (table.get("file"), table.get("profile"));
    let source = table.get("source").map(|v| v.text().map(str::to_owned));
    table.finish();
    let (source, name, text) = match (file, written) {
        (Some(file), None) => {
            let (name, text) = sight.read(Path::new(file.text()?), &file)?;
            (source.unwrap_or_else(|| file.text().map(str::to_owned))?, name, text)
        }
        (None, Some(written)) => {
            let text = written.text()?.to_owned();
            let name = written.path().to_owned();
            sight.sources.borrow_mut().add(name.clone(), text.clone());
            (source.unwrap_or_else(|| Some(name.clone()))?, name, text)
        }
        (None, None) | (Some(_), Some(_)) => {
            value.problem(
                "names a file or has a profile",
                Some("{ device = \"...\", file = \"profile.json\" }".to_owned()),
            );
            return None;
        }
    };
    let device = match device {
        Some(device) => device?,
        None => only_device(value, cluster?)?,
    };
    let read = match sailor::profile(&text, &name) {
        Ok(read) => read,
        Err(problems) => {
            problems.into_iter().for_each(|problem| sight.report(problem));
            return None;
        }
    };
    let gaps = read.gaps.clone();
    Some(ProfileChoice { profile: profile(&read, source, device, interpolate?), text, gaps })
}

/// Measured layers as prices are made of them.
pub(crate) fn profile(read: &sailor::Profile, source: String, device: String, interpolate: bool) -> Profile {
    let layer =
        |of: &sailor::LayerTimes| ProfiledLayer { forward: of.forward, backward: of.backward, update: of.update };
    let points = read.points.iter().map(|point| ProfiledPoint {
        tensor: point.tensor,
        microbatch: point.microbatch,
        layers: point.layers.iter().map(layer).collect(),
    });
    Profile { source, device, interpolate, points: points.collect() }
}

/// A kind of device of the cluster, by our name or Sailor's.
fn device(value: &Value<'_>, cluster: Option<&Cluster>) -> Option<String> {
    let wanted = value.text()?;
    let names = || cluster.into_iter().flat_map(|cluster| cluster.device_kinds.iter().map(|kind| kind.name.as_str()));
    let found = names().find(|name| *name == wanted || sailor::device(name) == wanted);
    if found.is_none() && cluster.is_some() {
        value.problem(format!("the cluster has no `{wanted}`"), Some(suggest(wanted, names())));
    }
    found.map(str::to_owned)
}

fn only_device(value: &Value<'_>, cluster: &Cluster) -> Option<String> {
    match cluster.device_kinds.as_slice() {
        [kind] => Some(kind.name.clone()),
        kinds => {
            let names: Vec<&str> = kinds.iter().map(|kind| kind.name.as_str()).collect();
            value.problem("does not say of which device it is", Some(format!("device = one of {}", names.join(", "))));
            None
        }
    }
}
