//! The largest model that fits on the scenario's cluster: of a list, or of the scenario's own at other sizes.

use ir::Model;

use super::trial;
use crate::results::{ModelRow, ModelSection};
use crate::scenario::{Loaded, SizeChoice};
use crate::verbs::whatif;
use crate::{Context, Error, words};
use reports::show;

/// Sizes of a scaled model that are tried at most.
const MOST_SIZES: usize = 40;

/// Models smallest first, and the largest that fits.
pub(super) fn largest(loaded: &Loaded, choice: &SizeChoice, context: &Context<'_>) -> Result<ModelSection, Error> {
    let mut rows = if choice.models.is_empty() {
        scaled(loaded, context)?
    } else {
        let mut rows = Vec::with_capacity(choice.models.len());
        for (done, model) in choice.models.iter().enumerate() {
            context.step("size", done as u64, choice.models.len() as u64, model.name.as_str())?;
            rows.push(row(loaded, model, context)?);
        }
        rows
    };
    rows.sort_by_key(|row| row.parameters);
    let largest = rows.iter().rposition(|row| row.fits);
    let answer = match largest.map(|index| &rows[index]) {
        Some(row) => format!("{} with {} parameters: {}.", row.model, show::count(row.parameters), row.plan),
        None => "None of the models tried fits.".to_owned(),
    };
    let scenario = &loaded.scenario;
    let question = format!(
        "What is the largest model that fits on {} devices with sequences of {} tokens?",
        scenario.cluster.devices(),
        scenario.workload.sequence_length
    );
    Ok(ModelSection { question, answer, rows, largest })
}

fn row(loaded: &Loaded, model: &Model, context: &Context<'_>) -> Result<ModelRow, Error> {
    let tried = trial::of_model(loaded, model.clone(), context)?;
    let empty = ModelRow {
        model: model.name.clone(),
        parameters: model.parameters(),
        active_parameters: model.active_parameters(),
        fits: false,
        plan: String::new(),
        step_s: None,
        model_flops_utilization: None,
        memory_share: None,
        reason: String::new(),
    };
    Ok(match tried {
        Ok(trial) => ModelRow {
            fits: true,
            plan: words::plan(&trial.plan),
            step_s: Some(trial.step_s),
            model_flops_utilization: trial.model_flops_utilization,
            memory_share: Some(whatif::fullest(&trial.prediction)),
            ..empty
        },
        Err(reason) => ModelRow { reason, ..empty },
    })
}

/// The scenario's model grown and shrunk: width by whole groups of heads, depth in proportion, the rest by the width.
///
/// Sizes double until one does not fit, or halve until one does; then every size between is tried. That a size fits does not
/// say that a smaller one does.
fn scaled(loaded: &Loaded, context: &Context<'_>) -> Result<Vec<ModelRow>, Error> {
    let base = &loaded.scenario.model;
    let mut rows: Vec<(u32, ModelRow)> = Vec::new();
    let mut tried = |steps: u32| -> Result<Option<bool>, Error> {
        if let Some((_, row)) = rows.iter().find(|(known, _)| *known == steps) {
            return Ok(Some(row.fits));
        }
        let Some(model) = at_scale(base, steps).filter(|_| rows.len() < MOST_SIZES) else { return Ok(None) };
        context.step("size", rows.len() as u64, 0, model.name.as_str())?;
        let row = row(loaded, &model, context)?;
        let fits = row.fits;
        rows.push((steps, row));
        Ok(Some(fits))
    };
    // In eighths of the model's own width.
    let mut fitting = None;
    let mut over = None;
    let mut steps = 8;
    loop {
        match tried(steps)? {
            Some(true) => fitting = Some(steps),
            Some(false) => over = Some(steps),
            None => break,
        }
        match (fitting, over) {
            (Some(_), Some(_)) => break,
            (Some(_), None) => steps *= 2,
            (None, _) if steps > 1 => steps /= 2,
            (None, _) => break,
        }
    }
    if let (Some(low), Some(high)) = (fitting, over) {
        for between in (low + 1..high).rev() {
            if tried(between)? == Some(true) {
                break;
            }
        }
    }
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// The model at `eighths` eighths of its width; `None` where its heads do not divide that way, or it grows past all use.
fn at_scale(base: &Model, eighths: u32) -> Option<Model> {
    let by = |size: u32| size.checked_mul(eighths).map(|size| size / 8).filter(|size| *size > 0);
    if eighths == 8 {
        return Some(base.clone());
    }
    let exact = |size: u32| by(size).filter(|_| (u64::from(size) * u64::from(eighths)).is_multiple_of(8));
    let heads = exact(base.heads)?;
    // Key and value heads stay as many, if the query heads still divide over them.
    let kv_heads = if base.kv_heads == base.heads { heads } else { base.kv_heads };
    if !heads.is_multiple_of(kv_heads) || heads > 4096 {
        return None;
    }
    let mut model = base.clone();
    (model.heads, model.kv_heads) = (heads, kv_heads);
    model.hidden = exact(base.hidden)?;
    model.ffn = by(base.ffn)?.next_multiple_of(256).max(256);
    // Layers of several kinds keep their order and number; equal ones grow with the width, by fours, as pipelines want.
    if base.variants.pattern.is_empty() {
        model.layers = by(base.layers)?.next_multiple_of(4);
    }
    if let Some(experts) = &mut model.variants.experts {
        experts.ffn = by(experts.ffn)?.max(1);
        experts.shared_ffn = by(experts.shared_ffn).unwrap_or(0);
    }
    model.name = format!("{} x {}/8: width {}, {} layers", base.name, eighths, model.hidden, model.layers);
    model.problems().is_empty().then_some(model)
}

#[cfg(test)]
mod tests {
    use super::at_scale;
    use crate::catalog::Catalog;

    #[test]
    fn a_model_grows_in_all_its_sizes() {
        let catalog = Catalog::embedded();
        let base = catalog.model("llama-3.1-8b").expect("in the catalog");
        let twice = at_scale(base, 16).expect("its heads divide");
        assert_eq!((twice.hidden, twice.heads, twice.kv_heads, twice.layers, twice.ffn), (8192, 64, 8, 64, 28672));
        let growth = twice.parameters() as f64 / base.parameters() as f64;
        assert!((6.0..8.5).contains(&growth), "{growth}");
        assert_eq!(at_scale(base, 8).as_ref(), Some(base));
        let half = at_scale(base, 4).expect("its heads divide");
        assert!(half.parameters() < base.parameters() / 3, "{}", half.parameters());
        assert_eq!(at_scale(base, 9), None, "36 query heads do not divide over 8");
    }
}
