//! `gemma4-serve inspect`: what a checkpoint is, what loading it takes and which cards hold it. Reads configuration and
//! headers, and norms for what is not finite; no device, no matrix. Every byte comes from the memory plan that the
//! server resolves.

mod cards;
mod page;
mod report;

use clap::Args;

use crate::config::{ConfigError, ModelFlags, in_range};
use crate::limits::{PREFILL_CHUNK_MAX, ROWS_MAX};
use crate::model::checkpoint::CheckpointError;
use crate::model::plan::PlanError;
pub use report::{Asked, Report};

#[derive(Args, Clone, Debug)]
pub struct InspectFlags {
    #[command(flatten)]
    model: ModelFlags,
    /// Tokens of prompt and answer together [default: 8192 and 131072].
    #[arg(long, value_name = "TOKENS", value_parser = in_range(2, 1 << 24))]
    max_context: Option<usize>,
    /// Sequences decoded together, 1 to 128 [default: 1, 2, 4, 8, 16, 32 and 64].
    #[arg(long, value_name = "N", value_parser = in_range(1, ROWS_MAX))]
    max_running: Option<usize>,
    /// Pages of the global layers' KV pool [default: what all sequences need at full length].
    #[arg(long, value_name = "PAGES", value_parser = in_range(1, 1 << 30))]
    kv_pages: Option<usize>,
    /// Prompt tokens computed between two decode steps, 1 to 65536.
    #[arg(long, default_value_t = 2048, value_name = "TOKENS", value_parser = in_range(1, PREFILL_CHUNK_MAX))]
    prefill_chunk: usize,
    /// Free memory of a card, such as 80GB (10^9 bytes each) or 80GiB (2^30); may be given several times [default:
    /// 24GB, 48GB, 80GB and 141GB].
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Vec<u64>,
    /// Prints the same as JSON, sizes in bytes.
    #[arg(long)]
    json: bool,
}

/// Why there is nothing to print; `Display` names the flag, file or tensor.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Contexts and slots that are shown when no flag names others.
const CONTEXTS: [usize; 2] = [8_192, 131_072];
const SLOTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const CARDS_GB: [u64; 4] = [24, 48, 80, 141];
const GB: u64 = 1_000_000_000;

/// The whole output.
pub fn run(flags: InspectFlags) -> Result<String, InspectError> {
    let per_layer_table = flags.model.per_layer_table;
    let source = flags.model.resolve()?;
    let checkpoint = source.open()?;
    let limit = checkpoint.config.max_position;
    let contexts = match flags.max_context {
        Some(context) => vec![context],
        // A model made for less than the first of them is shown at its own limit.
        None if limit < CONTEXTS[0] => vec![limit],
        None => CONTEXTS.into_iter().filter(|&context| context <= limit).collect(),
    };
    let asked = Asked {
        contexts,
        slots: flags.max_running.map_or(SLOTS.to_vec(), |slots| vec![slots]),
        kv_pages: flags.kv_pages,
        prefill_chunk: flags.prefill_chunk,
        per_layer_table,
        cards: if flags.memory.is_empty() { CARDS_GB.map(|gb| gb * GB).to_vec() } else { flags.memory },
    };
    let report = Report::of(&source.to_string(), &checkpoint, &asked)?;
    Ok(if flags.json { report.json() } else { report.to_string() })
}

/// A size with its unit. A card of "80 GB" has about 80 GiB less what the driver takes: 80GB is the safe reading.
fn memory(text: &str) -> Result<u64, String> {
    let error = || "must be a size such as 80GB, 79.5GiB or 512MiB".to_owned();
    let at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(error)?;
    let unit = match &text[at..] {
        "MB" => 1e6,
        "GB" => 1e9,
        "TB" => 1e12,
        "MiB" => 1048576.0,
        "GiB" => 1073741824.0,
        "TiB" => 1099511627776.0,
        _ => return Err(error()),
    };
    match text[..at].trim_end().parse::<f64>() {
        Ok(number) if number > 0.0 && number * unit <= 1e15 => Ok((number * unit) as u64),
        _ => Err(error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_size_has_a_unit() {
        for (text, bytes) in
            [("24GB", 24 * GB), ("1GiB", 1 << 30), ("512 MiB", 1 << 29), ("1.5GB", 1_500_000_000), ("2TB", 2000 * GB)]
        {
            assert_eq!(memory(text), Ok(bytes), "{text}");
        }
        for text in ["", "24", "GB", "-1GB", "0GB", "nanGB", "infGB", "1e300GB", "24gb", "24 G B", "24\u{e9}GB"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }
}
