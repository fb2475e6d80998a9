//! Log-probabilities on their way to the requests that asked: read from the step's readback behind its records, and
//! sent before their tokens are published. Rows that did not ask cost nothing here.

use super::runner::{InFlight, RowOwner, ScoredChunk};
use super::{Engine, EngineError, Running};
use crate::model::kernels::bindings::G4_TOKEN_NAN;
use crate::model::kernels::{G4Logprobs, G4Record};
use crate::request::{Failure, LOGPROBS_MAX, RequestId, Terminal, TokenLogprobs};

/// Who a slot belongs to, for the rows of steps about to be launched.
pub(super) fn row_owner(running: &[Option<Running>], generations: &[u32], slot: usize, id: RequestId) -> RowOwner {
    let asks = |running: &Running| running.ticket.request.sampling.logprobs.is_some();
    let wants_logprobs = running[slot].as_ref().is_some_and(asks);
    RowOwner { slot, generation: generations[slot], id, wants_logprobs }
}

impl Engine {
    /// Sends what a collected step reports of a prompt chunk that is scored, and of rows that asked and still run.
    pub(super) fn publish_logprobs(&mut self, flight: &InFlight, records: &[G4Record]) -> Result<(), EngineError> {
        if let Some(scored) = &flight.scored
            && let Some(failure) = self.publish_prompt_logprobs(flight, scored)?
        {
            self.end(scored.owner.id, Terminal::Failed(failure));
            self.door.step_done();
        }
        let asking = flight.rows.iter().zip(records).filter(|(owner, _)| owner.wants_logprobs);
        for (index, (owner, record)) in asking.enumerate() {
            if let (Some(running), Ok(token)) = (self.running(owner), u32::try_from(record.token)) {
                let entry = self.runner.logprobs(flight, index, owner.generation)?;
                running.ticket.publish_logprobs(token_logprobs(token, &entry));
            }
        }
        Ok(())
    }

    /// Sends the scores of a prompt chunk, in the order of its tokens; why the request fails, when it does.
    fn publish_prompt_logprobs(&self, flight: &InFlight, scored: &ScoredChunk) -> Result<Option<Failure>, EngineError> {
        let Some(running) = self.running(&scored.owner) else { return Ok(None) };
        for row in 0..scored.count {
            let (position, (record, entry)) = (scored.first + row, self.runner.score(flight, scored, row)?);
            let token = running.ticket.request.prompt[position];
            match record.token {
                G4_TOKEN_NAN => return Ok(Some(Failure::PromptNotANumber { position: position - 1 })),
                got if got == token as i32 => running.ticket.publish_logprobs(token_logprobs(token, &entry)),
                got => return Err(EngineError::BadState { id: scored.owner.id, token: got, step: flight.step }),
            }
        }
        Ok(None)
    }
}

/// Ids of an entry end with the first that is none.
fn token_logprobs(token: u32, entry: &G4Logprobs) -> TokenLogprobs {
    let mut top = [(0, 0.0); LOGPROBS_MAX];
    let mut count = 0;
    for (&id, &logprob) in entry.id.iter().zip(&entry.logprob) {
        let Ok(id) = u32::try_from(id) else { break };
        top[count] = (id, logprob);
        count += 1;
    }
    TokenLogprobs::new(token, entry.token_logprob, entry.rank as u32, &top[..count])
}
