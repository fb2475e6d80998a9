//! The report as a page for people. Sizes are decimal, as cards and files are sold; the JSON has every byte.

use std::fmt::{Formatter, Result};

use super::cards::{Card, Fit};
use super::report::{Model, Plan, Report};
use crate::limits::ROWS_MAX;

pub(super) struct Page<'a>(pub &'a Report);

impl Page<'_> {
    pub fn write(&self, f: &mut Formatter) -> Result {
        let report = self.0;
        writeln!(f, "{}", report.model.source)?;
        self.model(f, &report.model)?;
        self.weights(f)?;
        self.files(f)?;
        self.plans(f)?;
        if !report.cards.is_empty() {
            self.cards(f, &report.cards)?;
        }
        Ok(())
    }

    fn model(&self, f: &mut Formatter, model: &Model) -> Result {
        let present = |is_there: bool| if is_there { "there" } else { "missing" };
        let ids: Vec<String> = model.eos_ids.iter().map(u32::to_string).collect();
        let shared = match model.shared_kv_layers {
            0 => String::new(),
            count => format!("; the last {count} read another's K and V"),
        };
        let experts = model.experts.map_or(String::new(), |[all, top]| format!(", {top} of {all} experts a token"));
        let rows = [
            (
                "size",
                model.size.map_or("other than the published ones".to_owned(), |size| format!("{size}, as published")),
            ),
            ("model_type", model.model_type.to_owned()),
            (
                "layers",
                format!(
                    "{}: {} sliding (window {}), {} global{shared}",
                    model.layers, model.sliding_layers, model.window, model.global_layers
                ),
            ),
            ("width", format!("{}, {} query heads{experts}, vocabulary {}", model.hidden, model.heads, model.vocab)),
            ("positions", model.max_position.to_string()),
            (
                "text parameters",
                format!(
                    "{}, {} without embeddings",
                    count(model.parameters),
                    count(model.parameters_without_embeddings)
                ),
            ),
            ("head", if model.own_head { "its own" } else { "the embedding" }.to_owned()),
            ("eos ids", ids.join(", ")),
            ("tokenizer", format!("{}, chat template {}", present(model.tokenizer), present(model.chat_template))),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(f, "  {name:<22}{value}"))
    }

    fn weights(&self, f: &mut Formatter) -> Result {
        let Report { model, weights, kv, .. } = self.0;
        let mut rows = vec![
            ("weights on the device", format!("{} ({} bytes)", size(weights.device_bytes), weights.device_bytes)),
            ("read a decode step", format!("{} ({} bytes)", size(weights.step_bytes), weights.step_bytes)),
        ];
        if let Some(width) = weights.per_layer_width {
            let table = size(weights.per_layer_table_bytes);
            rows.push((
                "per-layer embeddings",
                format!("{width} wide, {table} in all, looked up by row on the {}", weights.per_layer_table),
            ));
        }
        let (sliding, global) = (kv.sliding_token_bytes, kv.global_token_bytes);
        rows.push(("KV a token, sliding", format!("{sliding} bytes, of the last {} tokens", model.window)));
        rows.push(("KV a token, global", format!("{global} bytes")));
        rows.iter().try_for_each(|(name, value)| writeln!(f, "  {name:<22}{value}"))
    }

    fn files(&self, f: &mut Formatter) -> Result {
        let Report { files, left_out, .. } = self.0;
        if files.is_empty() {
            return writeln!(f, "\nno files: the weights are made up on the device");
        }
        writeln!(f, "\nfiles")?;
        for file in files {
            writeln!(f, "  {:<40}{:>7} tensors{:>11}", file.path, file.tensors, size(file.bytes))?;
        }
        if left_out.is_empty() {
            return writeln!(f, "  nothing in them is left out");
        }
        writeln!(f, "left out")?;
        for group in left_out {
            let (tensors, bytes) = (group.tensors, size(group.bytes));
            writeln!(f, "  {:<40}{tensors:>7} tensors{bytes:>11}  {}", group.name, group.why)?;
        }
        Ok(())
    }

    fn plans(&self, f: &mut Formatter) -> Result {
        let heads = ["context", "slots", "KV pages", "weights", "KV sliding", "KV global", "other", "total"];
        writeln!(f, "\nmemory plan")?;
        writeln!(f, "  {}", heads.map(|head| format!("{head:>11}")).concat())?;
        let row = |plan: &Plan| {
            let counts = [plan.context, plan.slots, plan.kv_pages].map(|n| n.to_string());
            let sizes =
                [plan.weight_bytes, plan.kv_sliding_bytes, plan.kv_global_bytes, plan.other_bytes, plan.total_bytes];
            counts.into_iter().chain(sizes.map(size)).map(|cell| format!("{cell:>11}")).collect::<String>()
        };
        self.0.plans.iter().try_for_each(|plan| writeln!(f, "  {}", row(plan)))?;
        let Some(first) = self.0.plans.first() else { return Ok(()) };
        let slots = self.0.plans.iter().filter(|plan| plan.context == first.context).map(|plan| plan.slots).max();
        writeln!(f, "\n{} tokens, {} slots, line by line, bytes", first.context, slots.unwrap_or(first.slots))?;
        for line in &self.0.plan_lines {
            writeln!(f, "  {:<24}{:>16}  {}", line.name, line.bytes, line.arithmetic)?;
        }
        Ok(())
    }

    fn cards(&self, f: &mut Formatter, cards: &[Card]) -> Result {
        let table = |f: &mut Formatter, heads: Vec<String>, rows: Vec<Vec<String>>| {
            let cells = |cells: &[String]| cells.iter().map(|cell| format!("{cell:>15}")).collect::<String>();
            writeln!(f, "  {:>10}{}", "memory", cells(&heads))?;
            rows.iter()
                .zip(cards)
                .try_for_each(|(row, card)| writeln!(f, "  {:>10}{}", size(card.memory_bytes), cells(row)))
        };
        let short = |bytes: u64| if bytes > 0 { format!("{} short", size(bytes)) } else { "under a page".to_owned() };
        writeln!(
            f,
            "\nof 90 % of the memory (with --kv-pages all of it): the context that so many slots can all have"
        )?;
        let slots = |fit: &Fit| format!("{} slot{}", fit.slots, if fit.slots == 1 { "" } else { "s" });
        let heads = cards[0].by_slots.iter().map(slots).collect();
        let cell = |fit: &Fit| if fit.context == 0 { short(fit.missing_bytes) } else { fit.context.to_string() };
        table(f, heads, cards.iter().map(|card| card.by_slots.iter().map(cell).collect()).collect())?;
        writeln!(f, "\nand the slots, at most {ROWS_MAX}, that can all have so long a context")?;
        let heads = cards[0].by_context.iter().map(|fit| format!("{} tokens", fit.context)).collect();
        let cell = |fit: &Fit| if fit.slots == 0 { short(fit.missing_bytes) } else { fit.slots.to_string() };
        table(f, heads, cards.iter().map(|card| card.by_context.iter().map(cell).collect()).collect())
    }
}

/// Three or four digits and a unit.
fn size(bytes: u64) -> String {
    scaled(bytes, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")], "B")
}

fn count(parameters: u64) -> String {
    scaled(parameters, &[(1e9, "billion"), (1e6, "million")], "")
}

fn scaled(number: u64, units: &[(f64, &str)], one: &str) -> String {
    match units.iter().find(|(scale, _)| number as f64 >= *scale) {
        Some((scale, unit)) => format!("{:.*} {unit}", decimals(number as f64 / scale), number as f64 / scale),
        None => format!("{number} {one}").trim_end().to_owned(),
    }
}

fn decimals(number: f64) -> usize {
    match number {
        ..10.0 => 3,
        10.0..100.0 => 2,
        _ => 1,
    }
}
