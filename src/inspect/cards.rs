//! What a card holds, as the server would decide at start: the memory plan against that much free memory.

use serde::Serialize;

use super::report::Asked;
use crate::limits::ROWS_MAX;
use crate::model::config::ModelConfig;
use crate::model::plan::{MemoryPlan, PlanError, largest};

/// One card.
#[derive(Debug, Serialize)]
pub struct Card {
    pub memory_bytes: u64,
    /// The longest context that so many slots can all have at once, in whole pages; 0: none.
    pub by_slots: Vec<Fit>,
    /// The most slots that can all have this context at once, up to the server's limit; 0: none.
    pub by_context: Vec<Fit>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Fit {
    pub context: usize,
    pub slots: usize,
    /// Bytes by which one slot with this context (in `by_slots`: the rings of so many slots and one page) exceeds what
    /// may be used; 0: it fits.
    pub missing_bytes: u64,
}

impl Card {
    pub fn of(config: &ModelConfig, own_head: bool, asked: &Asked, memory_bytes: u64) -> Card {
        let fit = Fitting { config, own_head, asked, memory_bytes };
        let page = asked.options(None, 1).page_tokens_global;
        let longest = |slots| {
            let pages = config.max_position / page;
            // A model made for less than a page of tokens.
            let whole = if fit.holds(config.max_position, slots) { config.max_position } else { 0 };
            whole.max(page * largest(pages, |pages| fit.holds(pages * page, slots)))
        };
        let most = |context| largest(ROWS_MAX, |slots| fit.holds(context, slots));
        Card {
            memory_bytes,
            by_slots: asked
                .slots
                .iter()
                .map(|&slots| Fit { context: longest(slots), slots, missing_bytes: fit.missing_bytes(None, slots) })
                .collect(),
            by_context: asked
                .contexts
                .iter()
                .map(|&context| Fit {
                    context,
                    slots: most(context),
                    missing_bytes: fit.missing_bytes(Some(context), 1),
                })
                .collect(),
        }
    }
}

struct Fitting<'a> {
    config: &'a ModelConfig,
    own_head: bool,
    asked: &'a Asked,
    memory_bytes: u64,
}

impl Fitting<'_> {
    /// Whether so many slots can all have this context at once. With more of either, no less is needed.
    fn holds(&self, context: usize, slots: usize) -> bool {
        let options = self.asked.options(Some(context), slots);
        let plan = MemoryPlan::resolve(self.config, &options, self.own_head, self.memory_bytes);
        plan.is_ok_and(|plan| plan.full_sequences() >= slots)
    }

    fn missing_bytes(&self, context: Option<usize>, slots: usize) -> u64 {
        match MemoryPlan::resolve(self.config, &self.asked.options(context, slots), self.own_head, self.memory_bytes) {
            Err(PlanError::DoesNotFit(why)) => why.needed_bytes - why.budget_bytes,
            _ => 0,
        }
    }
}
