//! Which layers stand on which stage: torchtitan's own division, or what a configuration lists.

use ir::Schedule;

use super::names;
use crate::settings::{Settings, Value};

/// How layers are divided into stages, for any model.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Split {
    /// By torchtitan's rule.
    Ruled {
        /// Layers that the embedding counts for.
        first_less: u32,
        /// Layers that norm and head count for.
        last_less: u32,
        /// Layers of a stage at most, which says how many stages there are.
        per_stage: Option<u32>,
    },
    /// The first layer of each stage after the first.
    Points(Vec<u32>),
    /// Layers of each stage.
    Listed(Vec<u32>),
}

/// More layers than any model has.
const MOST_LAYERS: u32 = 1 << 16;

pub(super) fn read(settings: &mut Settings<'_>, pipeline: u32) -> Split {
    let points = settings.take(names::SPLIT_POINTS);
    let parts = settings.take(names::PARTS);
    let (first, last) = (settings.whole(names::FIRST_LESS, 0), settings.whole(names::LAST_LESS, 0));
    let per_stage = settings.whole(names::PER_STAGE, 1);
    match (parts, points) {
        (Some((key, Value::List(parts))), _) if !parts.is_empty() => {
            let counts: Option<Vec<u32>> = parts.iter().map(count).collect();
            counts.map_or_else(
                || {
                    settings.fault(
                        key,
                        "does not list the modules of each stage by name",
                        "[[\"tok_embeddings\", \"layers.0\"], [\"layers.1\", \"norm\", \"output\"]]",
                    );
                    Split::Points(Vec::new())
                },
                Split::Listed,
            )
        }
        (_, Some((key, Value::List(points)))) if !points.is_empty() => {
            let layers: Option<Vec<u32>> = points.iter().map(layer).collect();
            let layers = layers.filter(|layers| layers.is_sorted_by(|a, b| a < b));
            layers.map_or_else(
                || {
                    settings.fault(
                        key,
                        "does not list first layers of stages in order",
                        "[\"layers.8\", \"layers.16\"]",
                    );
                    Split::Points(Vec::new())
                },
                Split::Points,
            )
        }
        (parts, points) => {
            for (key, value) in parts.into_iter().chain(points) {
                if !matches!(value, Value::List(_)) {
                    settings.fault(key, format!("is {}, not a list", value.shown()), "a list of names of modules");
                }
            }
            for (key, written) in [(names::FIRST_LESS, first), (names::LAST_LESS, last)] {
                if written.is_none() && pipeline > 1 {
                    settings.assume(key[0], 1);
                }
            }
            Split::Ruled { first_less: first.unwrap_or(1), last_less: last.unwrap_or(1), per_stage }
        }
    }
}

/// The number in `layers.N`.
fn layer(value: &Value) -> Option<u32> {
    let Value::Text(text) = value else { return None };
    text.strip_prefix("layers.")?.parse().ok().filter(|layer| *layer < MOST_LAYERS)
}

/// Layers among the modules of a stage.
fn count(part: &Value) -> Option<u32> {
    let Value::List(modules) = part else { return None };
    let texts: Option<Vec<&Value>> = modules.iter().map(|one| matches!(one, Value::Text(_)).then_some(one)).collect();
    u32::try_from(texts?.into_iter().filter(|one| layer(one).is_some()).count()).ok()
}

impl Split {
    /// Layers of each chunk of each of `pipeline` positions, where a schedule places them; `chunks` of each where the division
    /// does not say how many.
    ///
    /// # Errors
    /// The key, what is wrong and what would do.
    pub(super) fn stages(
        &self,
        layers: u32,
        pipeline: u32,
        (schedule, chunks): (&Schedule, u32),
    ) -> Result<Vec<Vec<u32>>, (&'static str, String, String)> {
        if layers > MOST_LAYERS || pipeline > layers {
            let message = format!("{pipeline} stages for {layers} layers");
            return Err((names::PIPELINE[0], message, "at most one stage for each layer".to_owned()));
        }
        let (key, all) = match self {
            Self::Ruled { first_less, last_less, per_stage } => {
                let weight = layers.saturating_add(*first_less).saturating_add(*last_less);
                let stages = match per_stage {
                    Some(per_stage) if pipeline > 1 => weight.div_ceil(*per_stage),
                    _ => pipeline.saturating_mul(chunks),
                };
                let key = if per_stage.is_some() { names::PER_STAGE[0] } else { names::PIPELINE[0] };
                let all = ruled(layers, stages, (*first_less, *last_less)).ok_or_else(|| {
                    let message = format!("{layers} layers do not divide into {stages} stages");
                    (key, message, format!("at most {weight} stages, each with a layer"))
                })?;
                (key, all)
            }
            Self::Points(points) => {
                let ends = points.iter().copied().chain([layers]);
                let starts = [0].into_iter().chain(points.iter().copied());
                if points.last().is_some_and(|last| *last >= layers) {
                    let message = format!("begins a stage behind the last of {layers} layers");
                    return Err((names::SPLIT_POINTS[0], message, "a layer that the model has".to_owned()));
                }
                (names::SPLIT_POINTS[0], starts.zip(ends).map(|(start, end)| end - start).collect())
            }
            Self::Listed(counts) => {
                let sum = counts.iter().fold(0u32, |sum, count| sum.saturating_add(*count));
                if sum != layers {
                    let message = format!("lists {sum} layers, and the model has {layers}");
                    return Err((names::PARTS[0], message, "each layer once".to_owned()));
                }
                (names::PARTS[0], counts.clone())
            }
        };
        let stages = u32::try_from(all.len()).unwrap_or(u32::MAX);
        if !stages.is_multiple_of(pipeline) {
            let message = format!("{stages} stages do not divide over {pipeline} ranks");
            return Err((key, message, format!("a multiple of {pipeline} stages")));
        }
        let of = |position: u32| {
            let own = (0..stages).filter(move |stage| schedule.position(*stage, pipeline) == position);
            own.map(|stage| all[stage as usize]).collect()
        };
        Ok((0..pipeline).map(of).collect())
    }
}

/// torchtitan's rule: the embedding counts for so many layers of the first stage, norm and head for so many of the last;
/// the first stages take what is left over. `None` if a stage in between would be empty.
pub(super) fn ruled(layers: u32, stages: u32, (first_less, last_less): (u32, u32)) -> Option<Vec<u32>> {
    if stages <= 1 {
        return Some(vec![layers]);
    }
    // Every stage but the first and the last has a layer.
    if stages > layers.saturating_add(2) {
        return None;
    }
    let weight = layers.checked_add(first_less)?.checked_add(last_less)?;
    let (each, extra) = (weight / stages, weight % stages);
    let counts = (0..stages).map(|stage| {
        let here = each + u32::from(stage < extra);
        match stage {
            0 => here.checked_sub(first_less),
            last if last + 1 == stages => here.checked_sub(last_less),
            _ => (here > 0).then_some(here),
        }
    });
    counts.collect()
}

#[cfg(test)]
mod tests {
    use super::ruled;

    #[test]
    fn the_rule_counts_embedding_and_head() {
        let check =
            |layers, stages, less, expect: Option<&[u32]>| assert_eq!(ruled(layers, stages, less).as_deref(), expect);
        check(32, 1, (1, 1), Some(&[32]));
        check(32, 2, (1, 1), Some(&[16, 16]));
        check(126, 8, (1, 1), Some(&[15, 16, 16, 16, 16, 16, 16, 15]));
        check(32, 4, (1, 1), Some(&[8, 9, 8, 7]));
        check(32, 4, (0, 0), Some(&[8, 8, 8, 8]));
        check(2, 4, (1, 1), Some(&[0, 1, 1, 0]));
        check(1, 8, (1, 1), None);
    }
}
