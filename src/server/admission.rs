//! From a parsed request to tickets in the engine's queue: places first, then the work of tokenising, then the limits.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use crate::engine::handle::TokenStream;
use crate::error::Rejection;
use crate::limits::TOKENISE_INLINE_BYTES_MAX;
use crate::request::GenerateRequest;
use crate::sampling::SamplingParams;
use crate::server::wire::{CompletionRequest, Prompt, Route};
use crate::server::{App, ServedModel};
use crate::text::PromptText;

/// OpenAI's default of the completions route.
pub const COMPLETION_TOKENS_DEFAULT: usize = 16;

/// One accepted choice of a prompt.
pub struct Accepted {
    pub prompt_ids: Vec<u32>,
    /// The prompt as text, where it is to stand before the answer.
    pub echo: Option<Arc<PromptText>>,
    pub stream: TokenStream,
}

/// Admits every choice of every prompt, prompt by prompt, or none. `long`: the request is too much for a reactor's
/// thread. `share` is what its body holds of the memory for large ones; it is given back when the prompts are ids.
pub async fn admit(
    app: &App,
    model: &Arc<ServedModel>,
    request: &mut CompletionRequest,
    long: bool,
    share: Option<OwnedSemaphorePermit>,
) -> Result<Vec<Accepted>, Rejection> {
    check_model(model, request)?;
    let choices = request.sampling.n.unwrap_or(1);
    let prompts = request.prompts.len();
    let (count, limit) = (prompts * choices, app.config.max_waiting);
    if count > limit {
        return Err(Rejection::TooManyChoices { prompts, n: choices, limit });
    }
    let places = app.engine.reserve(count)?;
    let (prompts, (places, share)) =
        tokenise(model, std::mem::take(&mut request.prompts), long, (places, share)).await?;
    drop(share);
    let mut sampling = request.sampling.over(&model.sampling, salt);
    sampling.logprobs = request.logprobs;
    sampling.prompt_logprobs = request.prompt_logprobs.max(request.logprobs.filter(|_| request.echo));
    let echoes = echo(model, request.echo, &prompts).await?;
    let stop_token_ids = request.sampling.resolve(model, &mut sampling)?;
    if let Some(allowed) = &sampling.allowed_token_ids
        && sampling.min_tokens > 0
        && allowed.iter().all(|id| model.is_eos(*id) || stop_token_ids.contains(id))
    {
        return Err(Rejection::OnlyEndsAllowed { allowed: allowed.len(), min_tokens: sampling.min_tokens });
    }
    let tokens_default = match request.route {
        Route::Completions => COMPLETION_TOKENS_DEFAULT,
        // What is left of the context.
        Route::Chat => usize::MAX,
    };
    // All are checked before the first is submitted: a refusal costs no device work.
    let requests = prompts
        .into_iter()
        .enumerate()
        .map(|(i, prompt)| {
            model.check_ids(i, &prompt)?;
            let max_tokens = model.max_tokens(i, prompt.len(), request.max_tokens, tokens_default)?;
            // Echo alone: one token is generated and not given out.
            let max_tokens = max_tokens.max(1);
            // Prompts of one request share its seed, or its salt; choices of a prompt draw from streams of their own.
            let (sampling, stop_token_ids) = (sampling.clone(), stop_token_ids.clone());
            if sampling.min_tokens > max_tokens {
                return Err(Rejection::MinTokens { min_tokens: sampling.min_tokens, max_tokens });
            }
            Ok(GenerateRequest { prompt, max_tokens, ignore_eos: request.ignore_eos, stop_token_ids, sampling })
        })
        .collect::<Result<Vec<_>, Rejection>>()?;
    let requests = requests.into_iter().flat_map(|request| {
        (0..choices as u16).map(move |choice| {
            let sampling = SamplingParams { choice, ..request.sampling.clone() };
            GenerateRequest { sampling, ..request.clone() }
        })
    });
    places
        .into_iter()
        .zip(requests)
        .enumerate()
        .map(|(index, (place, request))| {
            let (prompt_ids, echo) = (request.prompt.clone(), echoes.get(index / choices).cloned());
            Ok(Accepted { prompt_ids, echo, stream: place.submit(request)? })
        })
        .collect()
}

/// 64 bits of the operating system's generator: never one of this process, which replicas could share.
fn salt() -> u64 {
    let mut bytes = [0; 8];
    // Fails only on kernels without the call.
    let read = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(read.ok(), Some(bytes.len()), "the operating system gives no random bytes");
    u64::from_le_bytes(bytes)
}

fn check_model(model: &ServedModel, request: &CompletionRequest) -> Result<(), Rejection> {
    match &request.model {
        Some(asked) if *asked != model.id => {
            Err(Rejection::UnknownModel { asked: asked.clone(), served: model.id.clone() })
        }
        _ => Ok(()),
    }
}

/// Prompts in ids; on a thread of its own where that is long: the reactor's threads also answer the probes. Such work
/// goes on when its client leaves, so it holds what bounds it, `held`, itself.
async fn tokenise<H: Send + 'static>(
    model: &Arc<ServedModel>,
    prompts: Vec<Prompt>,
    long: bool,
    held: H,
) -> Result<(Vec<Vec<u32>>, H), Rejection> {
    let model = model.clone();
    off_reactor(long, move || {
        let ids = prompts.iter().enumerate().map(|(i, prompt)| match prompt {
            Prompt::Text(text) => model.encode(i, text),
            Prompt::Ids(ids) => model.narrow(i, ids),
            Prompt::Chat(conversation) => model.encode_chat(conversation),
        });
        Ok((ids.collect::<Result<_, _>>()?, held))
    })
    .await
}

/// Texts of prompts that are echoed, one a prompt; of many tokens on a thread of its own, as in [`tokenise`].
async fn echo(model: &Arc<ServedModel>, wanted: bool, prompts: &[Vec<u32>]) -> Result<Vec<Arc<PromptText>>, Rejection> {
    if !wanted {
        return Ok(Vec::new());
    }
    let (model, prompts) = (model.clone(), prompts.to_vec());
    let tokens: usize = prompts.iter().map(Vec::len).sum();
    off_reactor(tokens > TOKENISE_INLINE_BYTES_MAX, move || {
        Ok(prompts.iter().map(|ids| Arc::new(PromptText::new(&model.tokenizer, ids))).collect())
    })
    .await
}

/// Runs `work` here if it is short, else on a blocking thread.
pub async fn off_reactor<T: Send + 'static>(
    long: bool,
    work: impl FnOnce() -> Result<T, Rejection> + Send + 'static,
) -> Result<T, Rejection> {
    if !long {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_) => Err(Rejection::Panicked),
    }
}
